"""Whether the nodes of a gang are alike, and by which name their certificate goes. Pure.

Owns: which facts are compared, who of the members is odd, how many ranks each has.
Must not know: how facts are read or sent, what is tested.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Facts = Mapping[str, str]
"""What a member says of its node: ``node``, ``boot_id``, ``certified``, and what is compared. Empty: not told."""

COMPARED = {
    "driver": ("card.driver", "the driver is {here}, on {there} {others}", "give all nodes the same driver"),
    "image": ("host.image", "the image is {here}, on {there} {others}", "start the same image on all nodes"),
    "communication": (
        "net.communication",
        "NCCL is set up otherwise (fingerprint {here}) than on {there} ({others})",
        "compare NCCL_ variables of the agents and /etc/nccl.conf",
    ),
}
"""By fact: the check that it is of, the words, the next step."""
SURE = frozenset({"driver"})
"""What counts where nobody asked for checks."""
RANKS_MOST = 64
"""Of one member: more GPUs has no machine."""
_KEY_LETTERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A fact in which nodes differ. ``members`` have another value than most; nobody where there is no majority."""

    fact: str
    check: str
    members: frozenset[int]
    tied: bool
    message: str
    """Of the first odd node; with a tie, of the first two values."""
    next_step: str


def odd_ones(facts: Mapping[int, Facts]) -> Iterator[Odd]:
    """Return each fact in which members differ. One that some node does not tell is left out."""
    for fact, (check, words, step) in COMPARED.items():
        values = {member: said.get(fact, "") for member, said in sorted(facts.items())}
        nodes = {facts[member].get("node", str(member)): value for member, value in values.items()}
        counts = Counter(nodes.values())
        if "" in counts or len(counts) < 2:
            continue
        most = counts.most_common()
        usual, tied = most[0][0], most[0][1] == most[1][1]
        odd = frozenset(member for member, value in values.items() if value != usual)
        first = min(odd)
        there = next(node for node, value in nodes.items() if value == usual)
        message = words.format(here=values[first], there=f"node {there}", others=usual)
        yield Odd(
            fact=fact,
            check=check,
            members=frozenset() if tied else odd,
            tied=tied,
            message=f"on node {facts[first].get('node', '')} {message}" if tied else message,
            next_step=step,
        )


def group_key(facts: Mapping[int, Facts], rules: str) -> str:
    """Return a name for these very nodes and GPUs as they run now: another boot, driver, set of rules has another."""
    names = ("node", "boot_id", "driver", "gpus")
    told = sorted({"/".join(said.get(name, "") for name in names) for said in facts.values()})
    return hashlib.sha256("\n".join((rules, *told)).encode()).hexdigest()[:_KEY_LETTERS]


def certified(facts: Mapping[int, Facts], key: str) -> bool:
    """True when every node says that it has passed with all of them: then all members leave the test out alike."""
    return all(key in said.get("certified", "").split() for said in facts.values())


def rank_owners(facts: Mapping[int, Facts]) -> tuple[int, ...]:
    """Return the member of each rank of the sum: one a GPU; one a member where some member does not tell of its own."""
    told = {member: said.get("ranks", "") for member, said in sorted(facts.items())}
    known = all(count.isdecimal() and 0 < int(count) <= RANKS_MOST for count in told.values())
    return tuple(member for member, count in told.items() for _ in range(int(count) if known else 1))


def are_whole(facts: Mapping[int, Facts]) -> bool:
    """True when each member has all GPUs of its node: what is known of speeds is of whole nodes."""
    return all(said.get("whole") == "1" for said in facts.values())
