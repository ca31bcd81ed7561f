"""A real server with the simulated machines of ``airyard dev fleet``, and what its process takes.

Owns: their start and end, the server's processor time and memory. Must not know: what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from airyard.sdk import embedded
from airyard.sdk.submission import prepare
from airyard.sim.fleet.child import FleetProcess
from benchmarks.bench_memory import use_of
from benchmarks.yards import BenchYard

GPU = "GPU_8xH100"
JOIN_LIMIT_S = 300.0
LOOK_S = 0.1
SUBMITTERS = 8


class FleetYard:
    """The server, its machines, a client, and what has been done to the machines."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.yard = BenchYard(folder)
        os.environ["AIRYARD_TRACKING_SERVER"] = "off"
        self.struck: list[Mapping[str, Any]] = []
        self._ends = ExitStack()  # what is there to be ended, also when the rest did not come up
        self._ends.callback(self.yard.close)
        try:
            self._bring_up(folder, nodes)
        except BaseException:
            self.close()
            raise

    def _bring_up(self, folder: Path, nodes: int) -> None:
        embedded.find_or_start(folder, announce=lambda line: None, arguments=["--engine", "dev"]).close()
        self.server_pid = self.yard_endpoint().pid
        self._ends.callback(self._kill_server)
        begun_s = time.monotonic()
        self.fleet = FleetProcess(folder, nodes, gpu=GPU, heard=self._hear)
        self._ends.callback(self.fleet.close)
        self.fleet.wait_joined(JOIN_LIMIT_S)
        self.joined_s = time.monotonic() - begun_s
        self.client = self.yard.client()

    def yard_endpoint(self) -> embedded.Endpoint:
        """Return what the server says of itself."""
        found = embedded.read_endpoint(self.yard.home)
        assert found is not None
        return found

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "fault":
            self.struck.append(event)

    def submit(self, command: str, *, count: int = 1, nodes: int = 1, gpu: str = GPU) -> Burst:
        """Submit the same workload so many times, from several threads without a pause."""
        path = self.yard.home / "workload.json"
        path.write_text(
            f'{{"experiment_name": "bench", "max_retries": 0, "command": {_json(command)}, "compute": '
            f'{{"accelerator_type": "{gpu}", "num_accelerators": {nodes * _devices(gpu)}}}}}'
        )
        return Burst(self, prepare(path), count)

    def strike(
        self, do: str, wanted: int, names: Sequence[str] = (), **fault: Any
    ) -> list[Mapping[str, Any]]:
        """Do a fault to so many machines, or to those named; return what was done, once it has been."""
        what = {"kill-runner": "runner-killed", "kill-agent": "agent-killed"}.get(do, do)
        before = len(self.struck)
        self.fleet.strike(do=do, machines=list(names) or wanted, **fault)

        def done() -> list[Mapping[str, Any]]:
            return [event for event in self.struck[before:] if event["what"] == what]

        until(lambda: len(done()) >= wanted, 10, f"{wanted} times {do}")
        return done()

    def runs(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return the runs' documents."""
        return [dict(self.client.get(run_id)) for run_id in ids]

    def wait_running(self, ids: Sequence[int], limit_s: float = 300) -> None:
        """Wait until none of these is queued or being prepared."""
        wanted = set(ids)

        def all_run() -> bool:
            for state in ("queued", "preparing"):
                found = self.client.list(state=state, limit=None)
                if any(run["run_id"] in wanted for run in found):
                    return False
            return True

        until(all_run, limit_s, f"{len(ids)} runs to start")

    def close(self) -> None:
        """End everything at once."""
        self._ends.close()

    def _kill_server(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.server_pid, signal.SIGKILL)


class Burst:
    """Submits from several threads: the ids, each one's milliseconds, and how long all took."""

    def __init__(self, one: FleetYard, prepared: Any, count: int) -> None:
        self.ms: list[float] = []
        begun_s = time.perf_counter()

        def submit(_: int) -> int:
            started = time.perf_counter()
            answer = one.client.submit_prepared(prepared)
            self.ms.append((time.perf_counter() - started) * 1000)
            return int(answer["run"]["run_id"])

        with ThreadPoolExecutor(min(SUBMITTERS, count)) as pool:
            self.ids = list(pool.map(submit, range(count)))
        self.seconds = time.perf_counter() - begun_s


class Meter:
    """The server's and the fleet's processor time between two moments."""

    def __init__(self, one: FleetYard) -> None:
        self._pids = (one.server_pid, one.fleet.pid)
        self._begun_s, self._before = time.monotonic(), [cpu_s(pid) for pid in self._pids]

    def end(self) -> tuple[float, float]:
        """Return cores of the server and of the fleet since the beginning."""
        spent_s = time.monotonic() - self._begun_s
        server, fleet = (
            (cpu_s(pid) - before) / spent_s for pid, before in zip(self._pids, self._before, strict=True)
        )
        return server, fleet


class Peak:
    """The server's largest PSS, looked at every second while the context lasts."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(1.0):
            self.mb = max(self.mb, use_of(self._pid).pss_mb)

    def __enter__(self) -> Peak:
        self.mb = use_of(self._pid).pss_mb
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.mb = max(self.mb, use_of(self._pid).pss_mb)


@contextmanager
def fleet_yard(folder: Path, nodes: int) -> Iterator[FleetYard]:
    """Give a running fleet, and end it afterwards."""
    made = FleetYard(folder, nodes)
    try:
        yield made
    finally:
        made.close()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def moment_s(text: str) -> float:
    """Read a time of the API."""
    return datetime.fromisoformat(text).timestamp()


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Poll until true. Raises: RuntimeError after the limit."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(LOOK_S)


def _devices(gpu: str) -> int:
    return int(gpu.removeprefix("GPU_").split("x", 1)[0])


def _json(text: str) -> str:
    return json.dumps(text)
