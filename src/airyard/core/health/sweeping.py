"""One sweep from its first pair to its verdict, as steps: each says which pairs to test now and takes what they read.

Owns: rounds, the second pass, how many pairs at once. Must not know: how a pair is measured, who has to make room.
Whatever was stopped says nothing; a sweep that is broken off as a whole has no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airyard.core.health.fabric import (
    CERTIFY,
    RATIOS_FROM,
    FirstPass,
    Measured,
    Outcome,
    PairResult,
    Verdict,
    Voting,
    blamed_rails,
    concluded,
    first_pass,
    judged,
)
from airyard.core.health.tournament import Pair, Wave, disjoint, once_more, second_pass, sweep, waves


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep at its end. ``doubtful``: those of the verdict's unknown that failed too often for no reason to be known,
    and of which the second pass was not finished.
    """

    verdict: Verdict
    tests: tuple[PairResult, ...]
    doubtful: tuple[str, ...] = ()

    @property
    def is_telling(self) -> bool:
        """False when no test was finished: there is nothing to say, not even that it could not be told."""
        return any(test.outcome is not Outcome.UNKNOWN for test in self.tests)


Steps = Generator[Wave, Sequence[Measured], Swept]
"""Yields pairs to test at once, is sent what they read, and returns what came of it."""


def steps(
    nodes: Sequence[str],
    number: int,
    *,
    leaf_of: Mapping[str, str] | None = None,
    at_once: int = 2,
    floor_gb_s: float = 0.0,
    compare: bool = True,
    voting: Voting = CERTIFY,
    see: Sequence[tuple[str, str]] = (),
    doubted_edges: Sequence[tuple[str, str]] = (),
) -> Steps:
    """Test nodes in rounds, then those that failed again, against certified nodes; ``number`` chooses who meets whom.

    ``at_once``: so many nodes are under test at a time. Without ``compare`` speed counts only by the floor. A bad node
    is always confirmed by the second pass. ``see``: edges that were bad before; each is tested both ways, unless
    one of its nodes is not well itself. ``doubted_edges``: the same for those that something else speaks against.
    """
    leaves = leaf_of or {}
    rounds: list[list[Measured]] = []
    for played in sweep(nodes, number, rounds=voting.rounds, leaf_of=leaves):
        read: list[Measured] = []
        for wave in played:
            for few in _batches(wave, at_once):
                read.extend((yield few))
        rounds.append(read)
    rails = blamed_rails([one for read in rounds for one in read])
    judge = partial(judged, floor_gb_s=floor_gb_s, compare=compare, rails=rails)
    tests = _judged_rounds(rounds, len(nodes), judge)
    first = first_pass(nodes, tests, voting=voting, leaf_of=leaves)
    doubted = replace(first, bad=(), suspects=tuple(sorted((*first.bad, *first.suspects))))
    reference = _of_certified(rounds, first)
    again: list[PairResult] = []
    seen = tuple(edge for edge in see if set(edge) <= set(first.certified))
    unsure = tuple(edge for edge in doubted_edges if set(edge) <= set(first.certified) and edge not in seen)
    looks = tuple(
        pair for each in (seen, unsure) for pair in (*once_more(each), *(Pair(a=a, b=b) for a, b in each))
    )
    wanted = (*second_pass(doubted.suspects, first.certified, number), *once_more(first.edges), *looks)
    for meeting in disjoint(wanted):
        for wave in waves(meeting, leaves):
            for few in _batches(wave, at_once):
                read = list((yield few))
                # By what well nodes had in the rounds: among a few bad ones the median would be theirs.
                again.extend(judge((*reference, *read))[len(reference) :])
    verdict = _with_seen(concluded(doubted, tests, again, voting=voting), seen, unsure, again)
    verdict = replace(verdict, rails=tuple(sorted(rails)))
    # Where nobody passed it is no matter of single nodes.
    doubtful = set(doubted.suspects).intersection(verdict.unknown) if verdict.certified else set()
    return Swept(verdict=verdict, tests=(*tests, *again), doubtful=tuple(sorted(doubtful)))


def _with_seen(
    verdict: Verdict,
    seen: Sequence[tuple[str, str]],
    unsure: Sequence[tuple[str, str]],
    again: Sequence[PairResult],
) -> Verdict:
    """Add the edges that were bad before and failed again, for which once is enough, and doubted ones by two failures.

    One of a test's own errors would else be an edge: doubted are many, as a rule all of a gang's.
    """
    failed = Counter(test.pair.edge for test in again if test.outcome is Outcome.FAIL)
    edges = {*verdict.edges, *(e for e in seen if failed[e]), *(e for e in unsure if failed[e] > 1)}
    return replace(verdict, edges=tuple(sorted(edges)))


def _judged_rounds(
    rounds: Sequence[Sequence[Measured]],
    nodes: int,
    judge: Callable[[Sequence[Measured]], Sequence[PairResult]],
) -> tuple[PairResult, ...]:
    """Judge each round by its own median; where a round has too few pairs for one, by that of all rounds."""
    if nodes // 2 >= 2 * RATIOS_FROM:
        return tuple(result for read in rounds for result in judge(read))
    return tuple(judge([one for read in rounds for one in read]))


def _of_certified(rounds: Sequence[Sequence[Measured]], first: FirstPass) -> list[Measured]:
    well = set(first.certified)
    return [one for read in rounds for one in read if one.finished and well.issuperset(one.pair.edge)]


def _batches(wave: Sequence[Pair], at_once: int) -> list[Wave]:
    """Cut a wave so that at most ``at_once`` nodes are under test, in even parts."""
    if not wave:
        return []
    most = max(at_once // 2, 1)
    parts = math.ceil(len(wave) / most)
    size = math.ceil(len(wave) / parts)
    return [tuple(wave[start : start + size]) for start in range(0, len(wave), size)]
