"""How well pair tests find bad nodes: the production tournament and vote beside simpler ways, on simulated outcomes.

Owns: nodes that are bad, tests that err, the table. Must not know: how a pair is tested. Outcomes are drawn, not
measured: a test with a bad node passes with the miss rate, any other fails with the false-fail rate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from airyard.core.health.fabric import (
    CERTIFY,
    QUICK,
    Outcome,
    PairResult,
    Voting,
    concluded,
    first_pass,
)
from airyard.core.health.tournament import Pair, once_more, second_pass, sweep
from benchmarks.figures import verdict

RUNS = 4_000
RECALL = 0.99
SETTINGS = ((16, 1, 0.01, 0.02), (64, 3, 0.01, 0.02), (64, 3, 0.03, 0.10), (128, 3, 0.03, 0.10))
"""Nodes, bad ones, false-fail and miss rate."""
AIM = SETTINGS[1]
NEVER = 1_000


@dataclass(slots=True)
class Tester:
    """Tests of pairs and groups whose outcome is drawn, and how many there were."""

    chance: Random
    bad: frozenset[str]
    false_fail: float
    miss: float
    tests: int = 0

    def group_fails(self, nodes: Sequence[str]) -> bool:
        """Return whether a test of these nodes together fails."""
        self.tests += 1
        ill = not self.bad.isdisjoint(nodes)
        return self.chance.random() >= self.miss if ill else self.chance.random() < self.false_fail

    def pairs(self, pairs: Sequence[Pair]) -> list[PairResult]:
        """Test pairs one by one."""
        return [
            PairResult(pair=pair, outcome=Outcome.FAIL if self.group_fails(pair.edge) else Outcome.PASS)
            for pair in pairs
        ]


def by_vote(voting: Voting) -> Callable[[Tester, Sequence[str]], set[str]]:
    """Return the way of production: rounds, then suspects against certified nodes, as far as the vote has any."""

    def run(tester: Tester, nodes: Sequence[str]) -> set[str]:
        number = tester.chance.randrange(len(nodes))
        rounds = sweep(nodes, number, rounds=voting.rounds)
        tests = tester.pairs([pair for waves in rounds for wave in waves for pair in wave])
        first = first_pass(nodes, tests, voting=voting)
        more = second_pass(first.suspects, first.certified, number, tests=voting.again)
        again = tester.pairs([*more, *once_more(first.edges)])
        return set(concluded(first, tests, again, voting=voting).bad)

    return run


def plain_halving(tester: Tester, nodes: Sequence[str]) -> set[str]:
    """Halve groups that fail, each tested once: what is missed is missed for good."""
    found: set[str] = set()
    left = [list(nodes)]
    while left:
        group = left.pop()
        if not tester.group_fails(group):
            continue
        if len(group) == 1:
            found.update(group)
            continue
        middle = len(group) // 2
        left += [group[:middle], group[middle:]]
    return found


def voted_halving(tester: Tester, nodes: Sequence[str]) -> set[str]:
    """Halve with two of three for each group, one bad node after the other, until the rest passes."""
    found: set[str] = set()
    left = list(nodes)
    while left and voted(tester, left):
        group = left
        while len(group) > 1:
            middle = (len(group) + 1) // 2
            failing = (half for half in (group[:middle], group[middle:]) if voted(tester, half))
            group = next(failing, [])
        if not group:  # both halves are well: it is the combination
            break
        found.update(group)
        left.remove(group[0])
    return found


def voted(tester: Tester, group: Sequence[str]) -> bool:
    """Return what two of three tests of a group say."""
    first, second = tester.group_fails(group), tester.group_fails(group)
    return first if first is second else tester.group_fails(group)


WAYS: dict[str, Callable[[Tester, Sequence[str]], set[str]]] = {
    "two-pass": by_vote(QUICK),
    "3 of 3": by_vote(Voting(rounds=3, bad_from=3, suspect_from=NEVER)),
    "4 of 5": by_vote(Voting(suspect_from=NEVER)),
    "4 of 5, suspects again": by_vote(CERTIFY),
    "plain halving": plain_halving,
    "halving, 2 of 3": voted_halving,
}
OURS = "4 of 5, suspects again"


def measure(
    way: str, setting: tuple[int, int, float, float], runs: int, seed: int
) -> tuple[float, float, float]:
    """Return recall, healthy nodes called bad a run, and tests a run."""
    count, bad, false_fail, miss = setting
    chance = Random(f"{seed} {setting}")
    nodes = [f"n{number:03}" for number in range(count)]
    hits = wrong = tests = 0
    for _ in range(runs):
        tester = Tester(chance, frozenset(chance.sample(nodes, bad)), false_fail, miss)
        found = WAYS[way](tester, nodes)
        hits += len(found & tester.bad)
        wrong += len(found - tester.bad)
        tests += tester.tests
    return hits / (runs * bad), wrong / runs, tests / runs


def main(argv: Sequence[str] = ()) -> int:
    """Print recall, false nodes and tests of each way, and whether the aim is kept."""
    parser = argparse.ArgumentParser(prog="bench_fabric", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="100 runs a cell")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    runs = 100 if options.quick else RUNS
    print(f"{runs} runs a cell, seed {options.seed}: recall / healthy nodes called bad a run / tests a run")
    ours = 0.0
    for setting in SETTINGS:
        count, bad, false_fail, miss = setting
        print(f"{count} nodes, {bad} bad; a test fails falsely {false_fail:.0%}, misses {miss:.0%}")
        for way in WAYS:
            recall, wrong, tests = measure(way, setting, runs, options.seed)
            print(f"  {way:24} {recall:.3f} / {wrong:.3f} / {tests:.0f}")
            if way == OURS and setting == AIM:
                ours = recall
    print(
        f"{OURS}, {AIM[0]} nodes, {AIM[1]} bad: {verdict(ours, RECALL, '', at_least=True, digits=4)} (recall)"
    )
    return 0 if options.quick or ours >= RECALL else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
