"""Submit to first log line at the watching client, environment warm, beside bare bash and submitit's local launcher.

Owns: the comparison. Must not know: the control plane. Two ways in, each beside a peer that does as much: the whole
command line (process start to the line on its stdout; peer: a Python process that imports submitit, submits and
follows the log) and a live client (submit to the LOG object; peer: submit to the line in the log, in a live process).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from airyard.sdk import Client
from airyard.sdk.submission import prepare
from benchmarks.figures import Way, ratios, spread, take_turns, verdict
from benchmarks.peers import peer_python
from benchmarks.yards import BenchYard, bare_environment, environment_cache, scratch, wait_ended, yard

SUBMITIT = ("submitit==1.5.4", "cloudpickle==3.1.3", "typing-extensions==4.16.0")
AIM_MS = 500.0
MARK = "first-line"
NODES = (1, 4)
END_LIMIT_S = 60

SUBMITIT_DRIVER = f"""
import sys, time
started = time.perf_counter()
from pathlib import Path
import submitit

def task():
    print({MARK!r}, flush=True)

def launch(folder, tasks, started):
    executor = submitit.LocalExecutor(folder=folder)
    executor.update_parameters(tasks_per_node=tasks, timeout_min=5)
    job = executor.submit(task)
    logs = [Path(str(job.paths.stdout).replace("_0_log", f"_{{rank}}_log")) for rank in range(tasks)]
    while not any(log.exists() and {MARK!r} in log.read_text() for log in logs):
        time.sleep(0.001)
    print(f"{{(time.perf_counter() - started) * 1000:.3f}}", flush=True)
    job.results()

folder, tasks = sys.argv[1], int(sys.argv[2])
if sys.argv[3] == "once":
    launch(folder, tasks, started)
else:
    for line in sys.stdin:
        launch(folder, tasks, time.perf_counter())
        print("ended", flush=True)
"""


def until_line(command: Sequence[str], environment: dict[str, str], folder: Path) -> float:
    """Start a process; return the milliseconds until the marked line comes out. It must end with 0."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        text=True,
    )
    assert process.stdout is not None
    line = next((line for line in process.stdout if MARK in line), None)
    spent_ms = (time.perf_counter() - started) * 1000
    _, complaint = process.communicate(timeout=END_LIMIT_S)
    if line is None or process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}, no line\n{complaint[-2000:]}")
    return spent_ms


def bash_way(folder: Path) -> Way:
    """Return what runs the command bare."""
    return lambda: until_line(["bash", "-c", f"echo {MARK}"], bare_environment(), folder)


def command_way(one: BenchYard, nodes: int) -> Way:
    """Return what runs ``airyard run --watch`` as a user would."""
    command = one.command("run", str(one.workload(f"echo {MARK}", nodes=nodes)), "--watch")
    return lambda: until_line(command, one.environment, one.home)


def client_way(one: BenchYard, client: Client, nodes: int) -> Way:
    """Return what submits and follows by a live client; the wait for the run's end is not counted."""
    path = one.workload(f"echo {MARK}", nodes=nodes)

    def launch() -> float:
        started = time.perf_counter()
        run_id = client.submit_prepared(prepare(path))["run"]["run_id"]
        lines = (event["line"] for event in client.stream(run_id) if event["type"] == "LOG")
        if MARK not in lines:
            raise RuntimeError(f"run {run_id} ended without its line: {client.get(run_id)}")
        spent_ms = (time.perf_counter() - started) * 1000
        wait_ended(client, run_id)
        return spent_ms

    return launch


class Submitit:
    """submitit's LocalExecutor in an environment of its own."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        self._driver = folder / "driver.py"
        folder.mkdir()
        self._driver.write_text(SUBMITIT_DRIVER)

    def _command(self, tasks: int, mode: str) -> list[str]:
        return [str(self._python), str(self._driver), str(self._folder / "jobs"), str(tasks), mode]

    def whole(self, tasks: int) -> Way:
        """Return what starts a process, imports submitit, submits and follows."""

        def launch() -> float:
            started = time.perf_counter()
            with subprocess.Popen(
                self._command(tasks, "once"), stdout=subprocess.PIPE, text=True, env=bare_environment()
            ) as process:
                assert process.stdout is not None
                line = process.stdout.readline()
                spent_ms = (time.perf_counter() - started) * 1000
                process.wait(END_LIMIT_S)
            if not line or process.returncode != 0:
                raise RuntimeError(f"submitit: exit {process.returncode}")
            return spent_ms

        return launch

    def live(self, tasks: int, stack: ExitStack) -> Way:
        """Return what submits in a live process."""
        process = subprocess.Popen(
            self._command(tasks, "live"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=bare_environment(),
        )
        stack.callback(process.wait, END_LIMIT_S)
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdin.close)
        sink, source = process.stdin, process.stdout

        def launch() -> float:
            sink.write("go\n")
            sink.flush()
            spent_ms = float(source.readline())
            assert source.readline() == "ended\n"
            return spent_ms

        return launch


def report(title: str, found: dict[str, list[float]], ours: Sequence[str], limit_ms: float | None) -> None:
    """Print each way's spread, our ratios to the peers and, where there is one, the limit."""
    print(title)
    for name, values in found.items():
        print(f"  {name:24} {spread(values)}")
    for name in ours:
        for peer in [other for other in found if other not in ours]:
            print(f"  {name} / {peer}: {ratios(found[name], found[peer])}")
        if limit_ms is not None:
            print(f"  {name}: p50 {verdict(statistics.median(found[name]), limit_ms, ' ms', digits=0)}")


def measure(
    nodes: int, rounds: int, yards: dict[str, BenchYard], folder: Path, peer: Submitit | None
) -> None:
    """Measure both ways in for one size of gang."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(one.client()) for name, one in yards.items()}
        tasks = f"{nodes} node{'s' if nodes > 1 else ''}"
        ours = [f"airyard, {name}" for name in yards]
        ways: dict[str, Way] = {"bare bash -c": bash_way(folder)}
        limit_ms = AIM_MS if nodes == 1 else None
        if peer:
            ways["submitit"] = peer.whole(nodes)
        ways |= {f"airyard, {name}": command_way(one, nodes) for name, one in yards.items()}
        report(f"{tasks}, command line: process start to line", take_turns(ways, rounds), ours, limit_ms)
        if peer:
            ways["submitit"] = peer.live(nodes, stack)
        ways |= {f"airyard, {name}": client_way(one, clients[name], nodes) for name, one in yards.items()}
        report(f"{tasks}, live client: submit to line", take_turns(ways, rounds), ours, limit_ms)


def main(argv: Sequence[str] = ()) -> int:
    """Print launch latencies for 1 and 4 CPU slots with tracking off and on, and their ratios to the peers."""
    parser = argparse.ArgumentParser(prog="bench_launch", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    rounds = 2 if parser.parse_args(argv).quick else 15
    with scratch() as folder, ExitStack() as stack:
        python = peer_python(folder / "submitit-venv", SUBMITIT)
        peer = Submitit(python, folder / "submitit") if python else None
        yards = {
            f"tracking {name}": stack.enter_context(
                yard(
                    folder / f"yard-{name}",
                    cache=environment_cache(folder),
                    tracking=tracking,
                    config=f"[engine]\ncpu_slots = {max(NODES)}\n",
                )
            )
            for name, tracking in (("off", "off"), ("on", "embedded"))
        }
        for one in yards.values():
            one.warm(max(NODES))
        for nodes in NODES:
            measure(nodes, rounds, yards, folder, peer)
    return 0
