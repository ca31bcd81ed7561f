"""``airyard sim run``: simulate seeds and say whether every promise held.

Owns: arguments, text and JSON output. Must not know: how a simulation works.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from airyard.sim.world import STEP_LIMIT, Outcome, simulate

BROKEN_EXIT = 1


def main(arguments: Sequence[str]) -> int:
    """Run the command line; 0 when every seed kept every promise, 1 otherwise, 2 for wrong arguments."""
    parser = _parser()
    try:
        options = parser.parse_args(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="airyard sim", description="The production control plane in virtual time, with seeded faults."
    )
    verbs = parser.add_subparsers(required=True, metavar="run")
    run = verbs.add_parser("run", help="simulate one seed or a range of them")
    run.add_argument("--seed", type=int, default=0, help="one seed (default 0)")
    run.add_argument("--seeds", type=_range, help="A..B: every seed from A to B, both included")
    run.add_argument("--trace", action="store_true", help="print everything that happens")
    run.add_argument("--steps", type=int, default=STEP_LIMIT, help="give up after so many steps")
    run.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdigit() or not last.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not A..B")
    return range(int(first), int(last) + 1)


def _run(options: argparse.Namespace) -> int:
    echo = _print if options.trace else None
    seen: Counter[str] = Counter()
    failed = False
    begun = time.perf_counter()
    count = 0
    for outcome in _outcomes(options, echo):
        count += 1
        seen.update(outcome.seen)
        failed |= bool(outcome.problem)
        _show(outcome, options)
    if count > 1 and options.output == "text":
        for name, times in sorted(seen.items()):
            _print(f"{times:9}  {name}")
        _print(f"{count} seeds in {time.perf_counter() - begun:.1f} s")
    return BROKEN_EXIT if failed else 0


def _outcomes(options: argparse.Namespace, echo: object) -> Iterator[Outcome]:
    for seed in options.seeds or (options.seed,):
        yield simulate(seed, _print if echo else None, options.steps)


def _show(outcome: Outcome, options: argparse.Namespace) -> None:
    if options.output == "json":
        _print(json.dumps(summary(outcome)))
        return
    if outcome.problem or not options.seeds:
        _print(report(outcome))


def summary(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as JSON."""
    return {
        "seed": outcome.seed,
        "ok": not outcome.problem,
        "problem": outcome.problem or None,
        "steps": outcome.steps,
        "virtual_ms": outcome.virtual_ms,
        "events": outcome.events,
        "journal_sha256": outcome.journal_hash,
        "seen": dict(sorted(outcome.seen.items())),
    }


def report(outcome: Outcome) -> str:
    """Return an outcome as text; a broken promise with the last lines of the trace and how to see all of it."""
    minutes = outcome.virtual_ms / 60_000
    head = (
        f"seed {outcome.seed}: {outcome.steps} steps, {outcome.events} events, {minutes:.1f} virtual minutes, "
        f"journal {outcome.journal_hash[:16]}"
    )
    if not outcome.problem:
        return f"{head}: every promise held"
    lines = [f"{head}: BROKEN at step {outcome.steps}", *outcome.tail, f"  {outcome.problem}"]
    lines.append(f"  again: airyard sim run --seed {outcome.seed} --trace")
    return "\n".join(lines)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
