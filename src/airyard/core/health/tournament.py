"""Who is tested against whom: a round-robin tournament by the circle method, within what leaf switches may bear.

Owns: rounds, waves, the pairs of the second pass. Must not know: what a test measures, what its result means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Wave = tuple["Pair", ...]
"""Pairs that are tested at the same time; no node is in two of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One test between two nodes. ``a`` serves, ``b`` begins."""

    a: str
    b: str

    @property
    def edge(self) -> tuple[str, str]:
        """The two nodes, whoever begins."""
        return (self.a, self.b) if self.a < self.b else (self.b, self.a)


def rounds_of(nodes: Sequence[str]) -> int:
    """Return how many rounds meet every edge once."""
    return max(len(nodes) - 1 + len(nodes) % 2, 0) if len(nodes) > 1 else 0


def round_of(nodes: Sequence[str], number: int) -> Wave:
    """Return one round: disjoint pairs of all nodes, but one where their number is odd. ``number`` wraps around.

    The circle method: one node stays, the others move on by one seat each round.
    """
    seats: list[str | None] = [*sorted(nodes)]
    if len(seats) < 2:
        return ()
    if len(seats) % 2:
        seats.append(None)
    still, moving = seats[0], seats[1:]
    shift = number % len(moving)
    moving = moving[shift:] + moving[:shift]
    circle = [still, *moving]
    half = len(circle) // 2
    met = zip(circle[:half], reversed(circle[half:]), strict=True)
    return tuple(Pair(a=a, b=b) for a, b in met if a is not None and b is not None)


def sweep(
    nodes: Sequence[str], number: int, *, rounds: int = 5, leaf_of: Mapping[str, str] | None = None
) -> tuple[tuple[Wave, ...], ...]:
    """Return the rounds of one sweep, each cut into waves. The next ``number`` meets other edges, until all were met.

    With an odd number of nodes one round more is played, so that all have ``rounds`` tests (a handful: one less).
    """
    if len(nodes) < 2:
        return ()
    played = rounds + len(nodes) % 2
    first = number * played
    leaves = leaf_of or {}
    return tuple(waves(round_of(nodes, first + offset), leaves) for offset in range(played))


def waves(pairs: Sequence[Pair], leaf_of: Mapping[str, str]) -> tuple[Wave, ...]:
    """Cut a round so that at most half of a leaf's nodes are at work at once: what else runs there has the rest.

    ``leaf_of`` names every node of a leaf, also those that are not tested. A pair that alone is more than half a leaf
    has a wave to itself there. Cost: pairs × waves, of which there are two to four.
    """
    if not leaf_of:
        return (tuple(pairs),) if pairs else ()
    on_leaf = Counter(leaf_of.values())
    made: list[tuple[list[Pair], Counter[str]]] = []
    for pair in pairs:
        needs = Counter(leaf_of[node] for node in (pair.a, pair.b) if node in leaf_of)
        for wave, busy in made:
            if all(busy[leaf] + more <= on_leaf[leaf] // 2 for leaf, more in needs.items()):
                wave.append(pair)
                busy.update(needs)
                break
        else:
            made.append(([pair], needs))
    return tuple(tuple(wave) for wave, _ in made)


def second_pass(
    suspects: Sequence[str], certified: Sequence[str], number: int, *, tests: int = 3
) -> tuple[Pair, ...]:
    """Return the tests of suspects, each against different certified nodes (as far as there are), in both directions.

    Which certified nodes are taken goes around with ``number``. Suspects that share one are tested one after the other.
    """
    good = sorted(set(certified) - set(suspects))
    if not good:
        return ()
    pairs: list[Pair] = []
    for place, suspect in enumerate(sorted(suspects)):
        for test in range(tests):
            other = good[(number + place * tests + test) % len(good)]
            pairs.append(Pair(a=suspect, b=other) if test % 2 == 0 else Pair(a=other, b=suspect))
    return tuple(pairs)


def once_more(edges: Sequence[tuple[str, str]]) -> tuple[Pair, ...]:
    """Return the tests of edges that alone failed, in the other direction."""
    return tuple(Pair(a=b, b=a) for a, b in edges)


def disjoint(pairs: Sequence[Pair]) -> tuple[Wave, ...]:
    """Cut any tests into waves in which no node is twice."""
    made: list[tuple[list[Pair], set[str]]] = []
    for pair in pairs:
        for wave, busy in made:
            if pair.a not in busy and pair.b not in busy:
                wave.append(pair)
                busy.update((pair.a, pair.b))
                break
        else:
            made.append(([pair], {pair.a, pair.b}))
    return tuple(tuple(wave) for wave, _ in made)
