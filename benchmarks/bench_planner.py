"""What a plan costs, by the size of the yard, after one submit, one end, a burst; and placements a second.

Owns: the measurement on one core, in processor time (other work on the machine does not count). Must not know: sockets.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airyard.adapters.journal_sql import SqlJournal
from airyard.app.control import Control
from airyard.app.planning import Planning
from airyard.core import commands as c
from airyard.core.cluster import Device, Machine, Node
from airyard.core.ids import MemberKey
from airyard.core.run import Exit, LogClose, RunState
from airyard.core.scheduling.planner import plan
from airyard.core.workload import Compute, Tracking, Workload
from benchmarks.figures import verdict
from benchmarks.planner_yards import PlannerYard

SIZES = ((10, 1_000), (80, 1_000), (100, 2_000), (1_000, 10_000), (4_000, 20_000))
"""Nodes of eight devices, waiting runs."""
LIMITS_MS = {80: (2.0, None), 1_000: (20.0, 250.0), 4_000: (None, 1_000.0)}
"""Nodes → limits of a plan after one change, and after a burst."""
ROUNDS = 60
QUICK_ROUNDS = 10
PLACEMENTS_LIMIT = 1_000.0


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="bench_planner")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no yard of 4,000 nodes")
    options = parser.parse_args(list(argv))
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    print("processor milliseconds of a plan: p50 / p99 of each kind of change")
    print(
        f"{'nodes':>6} {'waiting':>8} {'running':>8} {'submit':>15} {'end':>15} {'burst':>17} {'whole book':>11}"
    )
    for nodes, waiting in SIZES[:-1] if options.quick else SIZES:
        _one_size(nodes, waiting, rounds)
    _placements(2_000 if options.quick else 8_000)
    return 0


def _one_size(nodes: int, waiting: int, rounds: int) -> None:
    started = time.process_time()
    yard = PlannerYard(nodes, waiting)
    built_s = time.process_time() - started
    queued, running = len(yard.book.queue.runs), len(yard.book.running)
    submit = _plans(yard, yard.submit, rounds)
    end = _plans(yard, yard.end, rounds)

    def burst() -> None:
        for _ in range(max(nodes // 50, 1)):
            yard.end()
            yard.submit()

    bursts = _plans(yard, burst, rounds)
    print(
        f"{nodes:>6} {queued:>8} {running:>8} {_pair(submit):>15} {_pair(end):>15} {_pair(bursts):>17} "
        f"{built_s * 1000:>8.0f} ms",
        flush=True,
    )
    one, many = LIMITS_MS.get(nodes, (None, None))
    if one is not None:
        print(f"       one change, p50: {verdict(statistics.median([*submit, *end]), one, ' ms')}")
    if many is not None:
        print(f"       any plan, p99:   {verdict(_p99([*submit, *end, *bursts]), many, ' ms')}")


def _plans(yard: PlannerYard, change: Callable[[], None], rounds: int) -> list[float]:
    """Change the yard, plan, carry the plan out; return the milliseconds of each plan."""
    found = []
    for _ in range(rounds):
        change()
        yard.now_ms += 1000
        started = time.process_time()
        made = plan(yard.book, yard.now_ms)
        found.append((time.process_time() - started) * 1000)
        yard.carry_out(made)
    return found


def _pair(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} / {_p99(values):.1f}"


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(int(len(values) * 0.99), len(values) - 1)]


class _Clock:
    """Time that stands still but for what is asked."""

    def __init__(self) -> None:
        self.at_ms = 1_800_000_000_000

    def now_ms(self) -> int:
        self.at_ms += 1
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


def _placements(runs: int) -> None:
    """Place one-device runs on 1,000 nodes through plan, commit and a journal on disk, wave after wave."""
    with tempfile.TemporaryDirectory() as folder:
        clock = _Clock()
        control = Control(SqlJournal(Path(folder) / "journal.db"), clock)
        control.open()
        planning = Planning()
        for index in range(1_000):
            control.commit([_machine(index)])
        placed = 0
        placing_s = all_s = 0.0
        for wave in range(3):
            begun = time.perf_counter()
            for first in range(0, runs, 256):
                control.commit([_submit(wave, number) for number in range(first, min(first + 256, runs))])
            before = time.perf_counter()
            delta = control.delta_to_plan()
            assert delta is not None
            planning.absorb(delta, clock.now_ms())
            control.commit([c.CommitPlan(plan=planning.make(clock.now_ms()))])
            placing_s += time.perf_counter() - before
            active = [run for run in control.state.runs.values() if run.state is RunState.ACTIVE]
            placed += len(active)
            for first in range(0, len(active), 256):
                control.commit([_ends(run.run_id, clock.at_ms) for run in active[first : first + 256]])
            all_s += time.perf_counter() - begun
        print(f"{placed} placements of one-device runs on 1,000 nodes, in waves of {runs}")
        rate = verdict(placed / placing_s, PLACEMENTS_LIMIT, "/s", at_least=True, digits=0)
        print(f"       plan, commit and journal: {rate}")
        print(f"       submits and ends included: {placed / all_s:.0f}/s")


def _machine(index: int) -> c.MachineSeen:
    name = f"n{index}"
    node = Node(
        name=name,
        machine=name,
        accelerator="GPU_8xH100",
        model="H100",
        devices=tuple(Device(index=number, uuid=f"{name}-{number}") for number in range(8)),
        cpus=128.0,
        memory_bytes=1 << 40,
    )
    return c.MachineSeen(machine=Machine(name=name, boot_id="b", address=name), nodes=(node,), members=())


def _submit(wave: int, number: int) -> c.SubmitRun:
    workload = Workload(
        experiment="bench", command="true", compute=Compute.of("GPU_1xH100"), tracking=Tracking(enabled=False)
    )
    return c.SubmitRun(owner="ada", workload=workload, idempotency_key=f"{wave}.{number}")


def _ends(run_id: int, at_ms: int) -> c.MemberGone:
    ended = Exit(code=0, signal=None, started=True, cause=None, message="", at_ms=at_ms)
    seen = c.SeenMember(
        key=MemberKey(run_id, 0, 0),
        state=c.SeenState.EXITED,
        exit=ended,
        logs=LogClose(last_seq=-1, sha256=""),
    )
    return c.MemberGone(seen=seen)
