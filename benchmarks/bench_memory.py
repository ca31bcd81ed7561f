"""Memory of every process of a yard: idle, with one run, and with many queued runs, beside bare peers in the same run.

Owns: finding and naming the processes. Must not know: what they keep. PSS shares a page among those that map it, so
the sum is what the machine really gives; RSS counts it for each. Peers: an interpreter that imported the server's
frameworks and does nothing, one that imported nothing, and the bare ``mlflow server``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from airyard.sdk import Client
from airyard.sdk.submission import prepare
from benchmarks.yards import BenchYard, bare_environment, environment_cache, scratch, wait_ended, yard

QUEUED = 1000
SUBMITTERS = 4
SETTLE_S = 5.0
START_LIMIT_S = 120.0
FRAMEWORKS = "fastapi, uvicorn, sqlalchemy, pydantic, httpx, structlog, cryptography.fernet"
KINDS = (  # the first that its command line contains
    ("server", ("airyard.server",)),
    ("MLflow", ("mlflow",)),
    ("agent", ("airyard.node.agent", "airyard-agent", "nvml_child")),
    ("zygote", ("zygote",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The memory of one process or a sum, in MB (10^6)."""

    rss_mb: float
    pss_mb: float
    processes: int = 1

    def __add__(self, other: Use) -> Use:
        return Use(
            rss_mb=self.rss_mb + other.rss_mb,
            pss_mb=self.pss_mb + other.pss_mb,
            processes=self.processes + other.processes,
        )


NOTHING = Use(rss_mb=0, pss_mb=0, processes=0)


def use_of(pid: int) -> Use:
    """Return what a process uses. Raises: OSError when it is gone or not ours."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024 / 1e6
    return Use(rss_mb=fields["Rss"], pss_mb=fields["Pss"])


def kind_of(command: str) -> str:
    """Return which part of the yard a command line is."""
    return next((kind for kind, marks in KINDS if any(mark in command for mark in marks)), "command")


def yard_use(one: BenchYard) -> dict[str, Use]:
    """Return the use by kind, and all together under ``all``."""
    found: dict[str, Use] = {}
    runners = runner_pids(one.home)
    for pid, command in one.processes().items():
        with suppress(OSError):
            kind = "runner" if pid in runners else kind_of(command)
            found[kind] = found.get(kind, NOTHING) + use_of(pid)
    return found | {"all": sum(found.values(), NOTHING)}


def runner_pids(home: Path) -> set[int]:
    """Return the runners' numbers: forked from the zygote, they have its command line."""
    return {
        int(json.loads(file.read_text())["pid"])
        for file in (home / "node" / "attempts").glob("*/runner.json")
    }


def show(title: str, found: dict[str, Use]) -> None:
    """Print one table."""
    print(title)
    for kind, use in found.items():
        print(f"  {kind:8} {use.processes:3} processes  RSS {use.rss_mb:7.1f} MB  PSS {use.pss_mb:7.1f} MB")


@contextmanager
def process(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a peer in a session of its own, and end all of it afterwards."""
    with open(folder / "peer.log", "ab") as log:
        started = subprocess.Popen(
            command, env=bare_environment(), cwd=folder, start_new_session=True, stdout=log, stderr=log
        )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def bare_python(imports: str, folder: Path) -> Use:
    """Return the use of an interpreter that imported something and sleeps."""
    ready = folder / f"ready-{time.monotonic_ns()}"
    text = f"{imports}\nimport pathlib, time\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(600)"
    with process([sys.executable, "-c", text], folder) as peer:
        wait_until(ready.exists, peer)
        return use_of(peer.pid)


def bare_mlflow(folder: Path) -> Use:
    """Return the use of ``mlflow server`` with SQLite and one worker."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    store = f"sqlite:///{folder}/bare-mlflow.db"
    options = ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store, "--workers", "1"]
    with process([sys.executable, "-m", "mlflow", "server", *options], folder) as peer:

        def answers() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(answers, peer)
        time.sleep(SETTLE_S)
        total = NOTHING
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if os.getpgid(int(entry.name)) == peer.pid:
                    total += use_of(int(entry.name))
        return total


def wait_until(condition: Callable[[], bool], peer: subprocess.Popen[bytes]) -> None:
    """Poll until true. Raises: RuntimeError when the peer ended or took too long."""
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        if peer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the peer {peer.args!r} did not start (exit {peer.returncode})")
        time.sleep(0.05)


def queue_runs(one: BenchYard, client: Client, count: int) -> float:
    """Submit runs that cannot start; return the seconds it took."""
    prepared = prepare(one.workload("true", accelerator="GPU_1xA10"))
    started = time.perf_counter()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        for _ in pool.map(lambda _: client.submit_prepared(prepared), range(count)):
            pass
    return time.perf_counter() - started


def main(argv: Sequence[str] = ()) -> int:
    """Print the memory of all processes idle, with a run, and with queued runs, and the ratios to the peers."""
    parser = argparse.ArgumentParser(prog="bench_memory", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="50 queued runs, to see that it works")
    queued = 50 if parser.parse_args(argv).quick else QUEUED
    with scratch() as folder:
        nothing, frameworks = bare_python("", folder), bare_python(f"import {FRAMEWORKS}", folder)
        mlflow = bare_mlflow(folder)
        show("peers", {"python": nothing, "imports": frameworks, "mlflow": mlflow})
        made = yard(
            folder / "home",
            cache=environment_cache(folder),
            tracking="embedded",
            up=("--simulate", "GPU_1xA10=1"),
        )
        with made as one, one.client() as client:
            one.warm()
            time.sleep(SETTLE_S)
            idle = yard_use(one)
            show("idle, after one run", idle)
            blocker = prepare(one.workload("sleep 3600", accelerator="GPU_1xA10"))
            run_id = int(client.submit_prepared(blocker)["run"]["run_id"])
            while client.get(run_id)["status"] != "RUNNING":
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            running = yard_use(one)
            show("one run", running)
            spent_s = queue_runs(one, client, queued)
            time.sleep(SETTLE_S)
            full = yard_use(one)
            show(f"one run, {queued} queued (submitted in {spent_s:.1f} s)", full)
            waiting = client.status()["counts"]["queued"]
            if waiting != queued:
                raise RuntimeError(f"{waiting} runs are queued, not {queued}")
            client.cancel(run_id)
            wait_ended(client, run_id)
    each_kb = (full["server"].pss_mb - running["server"].pss_mb) * 1000 / queued
    print(f"  server idle / imports alone, PSS: {idle['server'].pss_mb / frameworks.pss_mb:.2f}")
    print(f"  MLflow idle / bare mlflow server, PSS: {idle['MLflow'].pss_mb / mlflow.pss_mb:.2f}")
    print(f"  a runner / bare interpreter, PSS: {running['runner'].pss_mb / nothing.pss_mb:.2f}")
    print(f"  all with {queued} queued / idle, PSS: {full['all'].pss_mb / idle['all'].pss_mb:.2f}")
    print(f"  server, one queued run: {each_kb:.1f} kB")
    return 0
