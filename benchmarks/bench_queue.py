"""A long queue beside many running runs: what a submit waits, what readers wait, what all processes keep in memory.

Owns: what is timed, and the figures. Must not know: how the server does it.

Real: the server process with its HTTP, authentication, SQLite journal, control loop and planner (tracking off), and
its protocols to agents and runners. Simulated: the machine. One process (``stand_in_agent.py``) answers for its agent
and for every runner: each member keeps a connection open and asks for orders, becomes ready, starts, ends after a
random time; no command runs. About four runs a second end and start, so the planner has something to do all the time.

Beside each figure stands what the same machine took at the same time for parts of the way: a request that touches
neither the loop nor the journal, and a write of 4 KiB that is synced. What else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from airyard.sdk.embedded import read_endpoint
from benchmarks.bench_memory import show
from benchmarks.figures import verdict
from benchmarks.queue_server import STOPWATCH_FILE
from benchmarks.queue_yard import QueueYard, queue_yard
from benchmarks.yards import scratch

WAITING, NODES, SUBMITS, BASELINE = 10_000, 290, 500, 200
QUICK = (200, 20, 40, 20)
RUNNING = 1_000
EVERY_S = 0.2
"""Between two submits of the paced ones."""
SUBMITTERS = 4
READS = 30
SETTLE_S = 10.0
FILL_LIMIT_S = 1_800.0
MEMORY_LIMIT_MB = 1_000.0
SUBMIT_LIMIT_MS = 100.0


class Bystander:
    """Takes the parts of a submit's way that have nothing to do with the queue."""

    def __init__(self, one: QueueYard, folder: Path) -> None:
        endpoint = read_endpoint(one.yard.home)
        assert endpoint is not None
        self._connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=60)
        self._file = os.open(folder / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.requests: list[float] = []
        self.syncs: list[float] = []

    def look(self) -> None:
        """Take both once."""
        begun = time.perf_counter()
        self._connection.request("GET", "/api/v1/identify?nonce=0123456789abcdef")
        self._connection.getresponse().read()
        self.requests.append((time.perf_counter() - begun) * 1000)
        begun = time.perf_counter()
        os.write(self._file, b"x" * 4096)
        os.fdatasync(self._file)
        self.syncs.append((time.perf_counter() - begun) * 1000)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of them are."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def row(name: str, values: Sequence[float]) -> None:
    """Print one line of a table."""
    if not values:
        return
    found = [percentile(values, part) for part in (0.5, 0.9, 0.99, 1.0)]
    print(f"  {name:34}" + "".join(f"{value:9.1f}" for value in found) + f"{len(values):7}", flush=True)


class Phase:
    """One part of the measurement: what the server's threads did meanwhile, and its processor time."""

    def __init__(self, one: QueueYard, name: str) -> None:
        self._one = one
        waiting, active = one.counts()
        print(f"{name}: {waiting} waiting, {active} running, load {os.getloadavg()[0]:.1f}")
        print(f"  {'milliseconds':34}" + "".join(f"{part:>9}" for part in ("p50", "p90", "p99", "max", "n")))
        self._begun_s, self._cpu_s = time.monotonic(), _cpu_s(one.server.pid)

    def end(self) -> None:
        """Print what the stopwatches saw."""
        spent_s = time.monotonic() - self._begun_s
        busy = (_cpu_s(self._one.server.pid) - self._cpu_s) / spent_s
        seen: dict[str, list[tuple[float, float]]] = {}
        for line in (self._one.yard.home / STOPWATCH_FILE).read_text().splitlines():
            what, begun_s, *times = line.split()
            if len(times) == 2 and float(begun_s) >= self._begun_s:
                seen.setdefault(what, []).append((float(times[0]), float(times[1])))
        for what, pairs_ in sorted(seen.items()):
            row(f"{what}, wall", [wall for wall, _ in pairs_])
            row(f"{what}, processor", [cpu for _, cpu in pairs_])
        plans = len(seen.get("plan", ()))
        print(f"  {plans / spent_s:.1f} plans a second; the server used {busy:.0%} of one core\n")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def paced(one: QueueYard, folder: Path, name: str, submits: int) -> list[float]:
    """Submit at a steady pace, one at a time; print and return the milliseconds."""
    phase, bystander = Phase(one, name), Bystander(one, folder)
    found = []
    due = time.monotonic()
    for _ in range(submits):
        due += EVERY_S
        found.append(one.submit())
        bystander.look()
        time.sleep(max(due - time.monotonic(), 0))
    row("submit", found)
    row("a request without loop and journal", bystander.requests)
    row("4 KiB written and synced", bystander.syncs)
    phase.end()
    return found


@contextmanager
def onlookers(one: QueueYard) -> Iterator[None]:
    """Have somebody look at the list, the queue and an explanation all the time, a second after each round."""
    client, over = one.yard.client(), threading.Event()
    queued = [run["run_id"] for run in client.list(state="queued", limit=100)]

    def look() -> None:
        for run_id in itertools.cycle(queued):
            client.list()
            client.queue_page()
            client.explain(run_id)
            if over.wait(1.0):
                return

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        yield
        over.set()
        looking.result()


def at_once(one: QueueYard, submits: int) -> list[float]:
    """Submit from several threads without a pause."""
    phase = Phase(one, f"{SUBMITTERS} submitters at once")
    begun = time.monotonic()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        found = list(pool.map(lambda _: one.submit(), range(submits)))
    row("submit", found)
    print(f"  {submits / (time.monotonic() - begun):.0f} submits a second")
    phase.end()
    return found


def fill(one: QueueYard, waiting: int) -> None:
    """Submit until so many wait."""
    begun, before = time.monotonic(), one.load.made
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        while (missing := waiting - one.counts()[0]) > 0:
            list(pool.map(lambda _: one.submit(), range(missing)))
            if time.monotonic() - begun > FILL_LIMIT_S:
                raise RuntimeError(f"{waiting} runs do not wait after {FILL_LIMIT_S:.0f} s")
    spent_s, made = time.monotonic() - begun, one.load.made - before
    print(f"filled: {made} submits in {spent_s:.0f} s, {made / spent_s:.0f} a second\n")


def reads(one: QueueYard) -> None:
    """Time what people look at, while runs start and end."""
    client, draw = one.client, random.Random(2)
    queued = [run["run_id"] for run in client.list(state="queued", limit=400)]
    active = [run["run_id"] for run in client.list(state="active", limit=400)]
    ways: dict[str, Callable[[], object]] = {
        "list": client.list,
        "list --state queued, 500 runs": lambda: client.list(state="queued", limit=500),
        "queue, 100 runs": client.queue_page,
        "explain of a waiting run": lambda: client.explain(draw.choice(queued)),
        "explain of a running run": lambda: client.explain(draw.choice(active)),
        "pools": client.pools,
        "nodes": client.nodes,
        "status": client.status,
    }
    phase = Phase(one, "readers")
    for name, way in ways.items():
        found = []
        for _ in range(READS):
            begun = time.perf_counter()
            way()
            found.append((time.perf_counter() - begun) * 1000)
        row(name, found)
    phase.end()


def main(argv: Sequence[str] = ()) -> int:
    """Print what submits and readers wait for with an empty and with a long queue, and what the processes keep."""
    parser = argparse.ArgumentParser(prog="bench_queue", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="200 waiting, 20 nodes, to see that it works")
    parser.add_argument("--waiting", type=int, default=WAITING, help="how long the queue is")
    options = parser.parse_args(list(argv))
    waiting, nodes, submits, baseline = (
        QUICK if options.quick else (options.waiting, NODES, SUBMITS, BASELINE)
    )
    print(f"{nodes} nodes of 8 devices, {os.cpu_count()} cores, {EVERY_S:g} s between paced submits")
    with scratch() as folder, queue_yard(folder, nodes) as one:
        idle = paced(one, folder, "an empty queue", baseline)
        fill(one, waiting)
        time.sleep(SETTLE_S)
        full = paced(one, folder, "a long queue", submits)
        many = at_once(one, submits)
        with onlookers(one):
            watched = paced(one, folder, "a long queue that others look at", baseline)
        reads(one)
        queued, active = one.counts()
        found = one.use()
        show(f"memory: {queued} waiting, {active} running", found)
        peak_mb = sum(_peak_mb(process.pid) for process in (one.server, one.agent))
    if not options.quick and min(queued / waiting, active / RUNNING) < 0.95:
        raise RuntimeError(f"{queued} waited and {active} ran, not {waiting} and {RUNNING}")
    p99 = percentile(full, 0.99)
    print(f"  all processes, PSS: {verdict(found['all'].pss_mb, MEMORY_LIMIT_MB, ' MB', digits=0)}")
    print(f"  all processes, peak RSS: {verdict(peak_mb, MEMORY_LIMIT_MB, ' MB', digits=0)}")
    print(f"  submit, p99: {verdict(p99, SUBMIT_LIMIT_MS, ' ms', digits=1)}")
    print(
        f"  submit, {SUBMITTERS} at once, p99: {verdict(percentile(many, 0.99), SUBMIT_LIMIT_MS, ' ms', digits=1)}"
    )
    print(
        f"  submit, others looking, p99: {verdict(percentile(watched, 0.99), SUBMIT_LIMIT_MS, ' ms', digits=1)}"
    )
    print(f"  submit, long queue / empty queue, p50: {percentile(full, 0.5) / percentile(idle, 0.5):.2f}")
    print(f"  submit, long queue / empty queue, p99: {p99 / percentile(idle, 0.99):.2f}")
    return 0
