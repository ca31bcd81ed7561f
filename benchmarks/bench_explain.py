"""What explaining costs, by the size of the yard: expected starts of all and of the first runs, one run's explanation.

Owns: the measurement on one core, in processor time (other work on the machine does not count). Must not know: sockets.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from airyard.app.outlook import Outlook
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.planner import plan
from benchmarks.figures import verdict
from benchmarks.planner_yards import PlannerYard

SIZES = ((80, 1_000), (1_000, 10_000), (4_000, 20_000))
"""Nodes of eight devices, waiting runs."""
LIMITS_S = {1_000: (2.0, 0.5)}
"""Nodes → limits of the expected starts of all runs, and of the explanation of one that are known."""
EXPLAINED = 20
ROUNDS = 3
COMPARED = ((20, 300), (80, 1_000))
BANDS = ((0, 10), (10, 50), (50, 100), (100, 300), (300, 1_000))
"""Positions, of which the errors are told together."""
ALL_PLANS = 1_000_000
MINUTE_MS = 60_000


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="bench_explain")
    parser.add_argument("--quick", action="store_true", help="no yard of 4,000 nodes")
    options = parser.parse_args(list(argv))
    print("processor milliseconds; expected starts are p50 and p90, explanations have their counterfactuals")
    print(
        f"{'nodes':>6} {'waiting':>8} {'order':>8} {'first 100':>10} {'all':>9} {'explain, p50 / worst':>21}"
    )
    for nodes, waiting in SIZES[:-1] if options.quick else SIZES:
        _one_size(nodes, waiting)
    print(
        "expected starts against plans made one after the other until everybody has started, p50, in minutes:"
    )
    print(
        f"{'nodes':>6} {'waiting':>8} {'position':>10} {'median wait':>12} {'median error':>13} {'exact':>6}"
    )
    for nodes, waiting in COMPARED[:-1] if options.quick else COMPARED:
        _compare(nodes, waiting)
    return 0


def _one_size(nodes: int, waiting: int) -> None:
    yard = PlannerYard(nodes, waiting)
    made = plan(yard.book, yard.now_ms)
    outlook = Outlook(yard.book, made, ())
    order_ms = _milliseconds(lambda: outlook.queue(yard.now_ms))
    queue = outlook.queue(yard.now_ms)
    first_ms = _milliseconds(lambda: outlook.etas(yard.now_ms, queue[:100]))
    # The best of a few: what else the machine does makes a core slower.
    all_ms = min(_milliseconds(lambda: etas(yard.book, yard.now_ms)) for _ in range(ROUNDS))
    outlook.etas(yard.now_ms)
    chosen = random.Random(1).sample(queue, EXPLAINED)
    each_ms = [_milliseconds(lambda run_id=run_id: outlook.explain(run_id, yard.now_ms)) for run_id in chosen]
    print(
        f"{nodes:>6} {len(queue):>8} {order_ms:>8.0f} {first_ms:>10.0f} {all_ms:>9.0f} "
        f"{statistics.median(each_ms):>11.0f} / {max(each_ms):.0f}",
        flush=True,
    )
    if nodes in LIMITS_S:
        of_all, of_one = LIMITS_S[nodes]
        per_s = all_ms / 1000 * waiting / len(queue)
        print(f"       expected starts of {waiting}: {verdict(per_s, of_all, ' s')}")
        print(
            f"       an explanation, the worst of {EXPLAINED}: {verdict(max(each_ms) / 1000, of_one, ' s')}"
        )


def _compare(nodes: int, waiting: int) -> None:
    yard = PlannerYard(nodes, waiting)
    truth = etas(yard.book, yard.now_ms, plans=ALL_PLANS)
    found = etas(yard.book, yard.now_ms)
    queue = [run_id for run_id in Outlook(yard.book, None, ()).queue(yard.now_ms) if run_id in truth]
    for first, last in BANDS:
        ids = queue[first:last]
        if not ids:
            continue
        errors = [abs(found[run_id].p50_ms - truth[run_id].p50_ms) / MINUTE_MS for run_id in ids]
        waits = [(truth[run_id].p50_ms - yard.now_ms) / MINUTE_MS for run_id in ids]
        exact = sum(error == 0 for error in errors) / len(errors)
        print(
            f"{nodes:>6} {len(queue):>8} {f'{first + 1}-{first + len(ids)}':>10} {statistics.median(waits):>12.1f} "
            f"{statistics.median(errors):>13.1f} {exact:>6.0%}",
            flush=True,
        )


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1000
