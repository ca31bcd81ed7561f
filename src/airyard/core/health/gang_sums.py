"""Who is silent in a sum over a gang's nodes that does not end, and what follows for health. Pure.

Owns: the phases of a rank, which rank stands out, the words of it and what is read back from them, the suspicion.
Must not know: torch, stores, processes.

A rank that still tells of itself, and has come less far than all others, singles its node out. One that does not tell
any more may be cut off as well as hang: its node and the one where all meet are as likely. Where all have come as far
any node or edge may be it. None of this is ever confirmed: the sum is run by the run's own environment, which may tell
what it likes. So it weighs as what a job prints does, and makes a suspect only with what somebody else says: a monitor,
or the sum of another gang.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, islice

from airyard.core.health.facts import Component, HealthEvent, Retest, Severity, Source
from airyard.core.health.states import Hit

CHECK = "net.all_reduce"
RULE = "fabric.gang"
"""A sum over a gang with this node in it did not end, or came out wrong on all. Pair tests are due."""
AGAIN = "fabric.gang_again"
"""... of another gang within a day, with which it has nothing in common but this node, or little and another owner."""
RULES = frozenset({RULE, AGAIN})
_PHASES = ("", "came", "joined", "summed", "done")
"""Nothing was told; it has torch and found the others' meeting place; all have met; so many sums; it is through."""
_TOLD = (
    "nothing",
    "that it came",
    "that it joined the others",
    "of a first sum",
    "that it was through",
)
_FURTHER = ("to the meeting", "to join the others", "to a first sum", "to the last sum", "to leave")
_NAMED, _EDGES = 4, 6
EDGES_SEEN = 32
"""So many doubted edges of a sweep are looked at by themselves; its rounds meet others by chance."""
_ABOUT = f"preflight: {CHECK}: "
_SAID = re.compile(rf"^{re.escape(_ABOUT)}(?:(?!; next: ).)*? \[(suspects?): ([^\]]*)\]", re.DOTALL)
_EVENT = "gang/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where the ranks stood when a sum did not end in time. ``phases``: by rank; None: their meeting place was silent.

    ``quiet``: ranks that told nothing more. ``moved``: some went on all the same.
    """

    phases: tuple[str, ...] | None
    quiet: frozenset[int] = frozenset()
    moved: bool = False


def silence_in_words(look: Look, owners: Sequence[int], names: Mapping[int, str], *, teller: int) -> str:
    """Return what is told of who was silent; the nodes that it names are read back by ``events_of``.

    ``owners``: the member of each rank. ``names``: the node of each. ``teller``: the member that looked.
    """
    meeting = names[owners[0]]
    if look.phases is None:
        text = f"node {meeting}, where the ranks meet, does not answer node {names[teller]} any more"
        return f"{text} {_mark((meeting, names[teller]))}"
    phases = look.phases[: len(owners)]
    members = len(set(owners))
    quiet = sorted(rank for rank in look.quiet if rank < len(phases))
    if _are_few(quiet, owners, members):
        text = f"{_ranks(quiet, owners, names)} told {_TOLD[_step(phases[quiet[0]])]}, and then nothing more"
        return f"{text} {_mark((*_nodes(quiet, owners, names), meeting))}"
    if look.moved:
        return f"ranks on {members} nodes were still at work: any node or edge may be slow"
    least = min(map(_progress, phases))
    behind = [rank for rank, phase in enumerate(phases) if _progress(phase) == least]
    if not _are_few(behind, owners, members):
        return f"no rank on {members} nodes got {_FURTHER[least[0]]}: any node or edge may be at fault"
    text = f"{_ranks(behind, owners, names)} told {_TOLD[least[0]]}, and got no further, unlike the others"
    nodes = _nodes(behind, owners, names)
    # One that told nothing may hang as well as not reach the meeting place.
    return f"{text} {_mark((*nodes, meeting) if least[0] == 0 else nodes, sure=least[0] > 0)}"


def is_about(message: str) -> bool:
    """True for the end of a member whose gang's sum failed, with nobody's node blamed."""
    return message.startswith(_ABOUT)


class Earlier:
    """What is known when a sum fails: which gangs' sums failed before on which nodes, and whose runs they were."""

    def __init__(self, hits: Mapping[str, Iterable[Hit]], owner_of: Callable[[int], str]) -> None:
        """``hits``: the evidence against nodes by now. ``owner_of``: empty for a run that is not known any more."""
        self._runs: dict[str, dict[str, int]] = {}
        self._nodes: dict[int, set[str]] = {}
        self._owner_of = owner_of
        for node, each in hits.items():
            for hit in each:
                if hit.rule in RULES:
                    run_id = _run_of(hit.event_id)
                    self._runs.setdefault(node, {})[hit.rule] = run_id
                    self._nodes.setdefault(run_id, set()).add(node)

    def is_another(self, node: str, run_id: int, gang: Set[str]) -> bool:
        """Return whether a node's hint of before is of another gang: no retry, nor the same nodes or program.

        One user's runs may all fail by what they have in common, and so may those on the same nodes: then this node
        has to be all that the two have in common, or another user's gang has another node.
        """
        runs = self._runs.get(node, {})
        first = runs.get(RULE)
        if first is None or first == run_id:
            return False
        if runs.get(AGAIN) == run_id:
            return True
        partners = gang - {node}
        common = self._nodes[first] & partners
        one, other = self._owner_of(first), self._owner_of(run_id)
        return not common or (common != partners and bool(one) and bool(other) and one != other)


NOTHING_EARLIER = Earlier({}, lambda run_id: "")


def events_of(
    message: str,
    *,
    attempt: str,
    nodes: Mapping[str, str],
    at_ms: int,
    earlier: Earlier = NOTHING_EARLIER,
) -> tuple[HealthEvent, ...]:
    """Return what a sum that failed says of the gang's nodes. Said by several members it is said once.

    Each node that is named has a weak hint against it, all of the gang's where none is. One makes nobody a suspect; one
    of a second gang adds to it (``AGAIN``). ``nodes``: node → machine of the gang's members: nobody else is spoken of.
    """
    if len(nodes) < 2:
        return ()
    found = _SAID.match(message)
    named = {name for name in found[2].split() if name in nodes} if found is not None else set()
    among = sorted(named or nodes)
    singled = found is not None and found[1] == "suspect" and len(named) == 1
    edges = () if singled else (_edges_in_words(among)[:500],)
    run_id = _run_of(f"{_EVENT}{attempt}")
    return tuple(
        HealthEvent(
            event_id=f"{_EVENT}{attempt}/{name}",
            rule=AGAIN if earlier.is_another(name, run_id, nodes.keys()) else RULE,
            machine=nodes[name],
            node=name,
            at_ms=at_ms,
            component=Component.NETWORK,
            severity=Severity.WARNING,
            source=Source.CHECK,
            message=message[:300],
            retest=Retest.T4,
            confirmed=False,
            evidence=(message[:500], *edges),
        )
        for name in among
    )


def _run_of(event_id: str) -> int:
    """Return the run of an event's name, ``gang/7.0/n1``; -1 where it has none."""
    run = event_id.removeprefix(_EVENT).partition(".")[0]
    return int(run) if run.isdecimal() and len(run) < 19 else -1


def is_doubted(hits: Iterable[Hit], tested_ms: int) -> bool:
    """True for a node that was in such a gang and was not tested in pairs since; ``tested_ms``: when that began."""
    return any(hit.rule in RULES and hit.at_ms > tested_ms for hit in hits)


def edges_in_doubt(hits: Mapping[str, Iterable[Hit]]) -> tuple[tuple[str, str], ...]:
    """Return the edges between nodes that the same gang speaks against, those of the smallest gangs first.

    ``hits``: of the nodes that may be tested now.
    """
    gangs: dict[str, set[str]] = {}
    for node, each in hits.items():
        for hit in each:
            if hit.rule in RULES and hit.event_id.startswith(_EVENT):
                gangs.setdefault(hit.event_id.removesuffix(f"/{node}"), set()).add(node)
    found: dict[tuple[str, str], None] = {}
    for _, nodes in sorted(gangs.items(), key=lambda item: (len(item[1]), item[0])):
        found.update(dict.fromkeys(islice(combinations(sorted(nodes), 2), EDGES_SEEN)))
    return tuple(islice(found, EDGES_SEEN))


def _progress(phase: str) -> tuple[int, int]:
    """Return how far a rank has come: its step, and the sums of it."""
    word, _, count = phase.partition(" ")
    return _step(phase), int(count) if word == "summed" and count.isdecimal() else 0


def _step(phase: str) -> int:
    word = phase.partition(" ")[0]
    return _PHASES.index(word) if word in _PHASES else 0


def _are_few(ranks: Sequence[int], owners: Sequence[int], members: int) -> bool:
    """True for ranks of fewer than half of the members, or of one of two: they stand out."""
    theirs = len({owners[rank] for rank in ranks})
    return theirs > 0 and (2 * theirs < members or (theirs, members) == (1, 2))


def _ranks(ranks: Sequence[int], owners: Sequence[int], names: Mapping[int, str]) -> str:
    shown = ", ".join(f"{rank} on node {names[owners[rank]]}" for rank in ranks[:_NAMED])
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank {shown}{more}"


def _nodes(ranks: Sequence[int], owners: Sequence[int], names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names[owners[rank]] for rank in ranks))


def _mark(nodes: Sequence[str], *, sure: bool = False) -> str:
    only = list(dict.fromkeys(nodes))[:_NAMED]
    return f"[suspect{'' if sure and len(only) == 1 else 's'}: {' '.join(only)}]"


def _edges_in_words(nodes: Sequence[str]) -> str:
    count = len(nodes) * (len(nodes) - 1) // 2
    shown = ", ".join(f"{one} - {other}" for one, other in islice(combinations(nodes, 2), _EDGES))
    return f"edges that it may be: {shown}" + (f" and {count - _EDGES} more" if count > _EDGES else "")
