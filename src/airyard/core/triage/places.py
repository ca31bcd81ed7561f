"""Which rank a process or a GPU of a host is: what a kernel's log says of a process or a card is said of that rank.

Owns: which lines tell where a rank runs, when two of them agree, whose process or card is nobody's. Must not know: what
a fault is (``machine_faults.py``), which finding decides.

Nothing is guessed. A process or a card has a rank only where its host is known to be the same, and all that tell of it
name one rank. Of communicators only the largest count: others number their members anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airyard.core.triage.job_lines import JobLine
from airyard.core.triage.rank_notes import MOST_RANKS, WHERE

MOST_PLACES = 20_000
"""Of one log: a rank tells of itself a few times, once a communicator."""
_COMMUNICATOR = re.compile(r"\brank (\d{1,6}) nranks (\d{1,6})\b(?: cudaDev (\d{1,3}))?")
_BUS = re.compile(r"\bbusId ([0-9a-f]{1,12})\b")
_DUMP = re.compile(r"Process (\d{1,10}): \S")
"""How py-spy heads the stacks of a process."""
_RUNS_AS = re.compile(r"(\d{1,6}) is (\d{1,10})(?:, |$)")
_LOOK = re.compile(r"look at the stall: rank (\d{1,6}), process (\d{1,10}), state ")
_FAILED_HOST = re.compile(r"\s*host +: (\S{1,200})")
_FAILED_RANK = re.compile(r"\s*rank +: (\d{1,6}) \(local_rank: \d+\)")
_FAILED_PROCESS = re.compile(r"\s*exitcode *: -?\d{1,4} \(pid: (\d{1,10})\)")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank was seen to run. ``pci`` as ``0000:3b:00``; ``device``: the card's number as the process counts.

    ``among``: the members of the communicator whose number ``rank`` is; 0 where it is told of the rank itself.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    pci: str = ""
    device: int | None = None
    among: int = 0


class PlaceLines:
    """Takes the places from the lines of one log. ``host``, ``rank``: whose log it is, where that is known."""

    def __init__(self, *, rank: int | None, host: str) -> None:
        self._rank = rank
        self._host = host
        self._failed_host = ""
        self._failed_rank: tuple[int, int] | None = None
        """The rank that torch's launcher tells of, and on which line."""
        self._seen: set[Place] = set()

    def take(self, line: JobLine, number: int) -> list[Place]:
        """Return what a line tells that was not told before."""
        found = [place for place in self._of(line, number) if place not in self._seen]
        found = found[: max(0, MOST_PLACES - len(self._seen))]
        self._seen.update(found)
        return found

    def _of(self, line: JobLine, number: int) -> list[Place]:
        host = self._host or line.host
        own = self._rank if self._rank is not None else line.prefix_rank
        if line.pid is not None:
            return self._of_nccl(line, host, line.pid, own)
        if line.text.startswith(WHERE):
            runs = _RUNS_AS.findall(line.text, len(WHERE))[:MOST_RANKS]
            return [Place(rank=int(rank), host=host, pid=int(pid)) for rank, pid in runs]
        if (look := _LOOK.search(line.text)) is not None:
            return [Place(rank=int(look[1]), host=host, pid=int(look[2]))]
        if own is not None and (dump := _DUMP.match(line.text)) is not None:
            return [Place(rank=own, host=host, pid=int(dump[1]))]
        failed = self._of_launcher(line.text, number)
        return [failed] if failed is not None else []

    @staticmethod
    def _of_nccl(line: JobLine, host: str, pid: int, own: int | None) -> list[Place]:
        told, bus = _COMMUNICATOR.search(line.text), _BUS.search(line.text)
        pci = nccl_address(bus[1]) if bus is not None else ""
        found = []
        if told is not None:
            device = int(told[3]) if told[3] else line.device
            among = int(told[2])
            found.append(Place(rank=int(told[1]), host=host, pid=pid, pci=pci, device=device, among=among))
        if own is not None:
            found.append(Place(rank=own, host=host, pid=pid, pci=pci, device=line.device))
        return found

    def _of_launcher(self, text: str, number: int) -> Place | None:
        """Return what torch's launcher says of one that failed: host, rank, exit code and process, a line each."""
        if (found := _FAILED_HOST.match(text)) is not None:
            self._failed_host = found[1]
        elif (found := _FAILED_RANK.match(text)) is not None:
            self._failed_rank = int(found[1]), number
        elif (found := _FAILED_PROCESS.match(text)) is not None and self._failed_rank is not None:
            (rank, at), self._failed_rank = self._failed_rank, None
            if number - at <= 2:
                return Place(rank=rank, host=self._host or self._failed_host, pid=int(found[1]))
        return None


def nccl_address(text: str) -> str:
    """Return NCCL's number of a card as ``0000:3b:00``: domain, bus, device and function without the marks."""
    digits = text.rjust(8, "0")
    return f"{digits[:-5].rjust(4, '0')[-4:]}:{digits[-5:-3]}:{digits[-3:-1]}"


class Places:
    """Answers whose a process or a card is."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = _trusted(list(places))
        self._hosts = {name for place in self._places if (name := _short(place.host))}

    @property
    def known(self) -> bool:
        """Whether any rank's process or card is known."""
        return bool(self._places)

    def host_in(self, path: str) -> str:
        """Return the only host of ranks whose name is in a path: saved logs of several hosts are told apart so."""
        path = path.lower()
        found = [
            host for host in self._hosts if re.search(rf"(?<![a-z0-9]){re.escape(host)}(?![a-z0-9])", path)
        ]
        return found[0] if len(found) == 1 else ""

    @property
    def several_hosts(self) -> bool:
        """Whether ranks are known to run on more than one host."""
        return len(self._hosts) > 1

    def of_process(self, host: str, pid: int) -> int | None:
        """Return the rank that a process is; None where nobody says so, or not all the same."""
        return self._only(place for place in self._places if place.pid == pid and self._is_on(place, host))

    def of_card(self, host: str, pci: str) -> int | None:
        """Return the rank that computes on a card, by its address."""
        return self._only(place for place in self._places if place.pci == pci and self._is_on(place, host))

    def of_device(self, host: str, device: int) -> int | None:
        """Return the rank that computes on a card, by its number among those that all processes of the host see.

        Where two processes call a card by one number each sees other cards.
        """
        here = [place for place in self._places if place.device is not None and self._is_on(place, host)]
        ranks_of: dict[int | None, set[int]] = {}
        for place in here:
            ranks_of.setdefault(place.device, set()).add(place.rank)
        if any(len(ranks) > 1 for ranks in ranks_of.values()):
            return None
        return self._only(place for place in here if place.device == device)

    def _is_on(self, place: Place, host: str) -> bool:
        """Return whether both are of one host. Who does not say so is of the only one that there is."""
        one, other = _short(place.host), _short(host)
        if one and other:
            return one == other
        return len(self._hosts) == 1 and (not other or other in self._hosts)

    @staticmethod
    def _only(found: Iterable[Place]) -> int | None:
        ranks = {place.rank for place in found}
        return ranks.pop() if len(ranks) == 1 else None


def _trusted(places: Sequence[Place]) -> list[Place]:
    """Leave out numbers that are no ranks: of smaller communicators, and of prefixes that count nodes or tasks."""
    world = max((place.among for place in places), default=0)
    by_communicator = [place for place in places if place.among == world and world > 1]
    told = [place for place in places if not place.among]
    if any(place.rank >= world for place in told) or _is_split(by_communicator):
        return _of_one_card(told)
    ranks_of = {(_short(place.host), place.pid): place.rank for place in by_communicator}
    holds: dict[int, set[int | None]] = {}
    for place in told:
        rank = ranks_of.get((_short(place.host), place.pid))
        holds.setdefault(place.rank, set()).update({rank} - {None})
    return [*by_communicator, *_of_one_card(place for place in told if len(holds[place.rank]) < 2)]


def _of_one_card(told: Iterable[Place]) -> list[Place]:
    """Leave out numbers under which several cards are told of: a prefix that counts nodes or tasks."""
    kept = list(told)
    cards: dict[tuple[int, str], set[str]] = {}
    for place in kept:
        if place.pci:
            cards.setdefault((place.rank, _short(place.host)), set()).add(place.pci)
    return [place for place in kept if len(cards.get((place.rank, _short(place.host)), ())) < 2]


def _is_split(by_communicator: Sequence[Place]) -> bool:
    """Return whether a number is held on several hosts: there are several communicators of the largest size."""
    hosts: dict[int, str] = {}
    return any(
        hosts.setdefault(place.rank, _short(place.host)) != _short(place.host) for place in by_communicator
    )


def _short(host: str) -> str:
    """Return a host's name without its domain: kernels, launchers and libraries differ in that."""
    host = host.lower()
    return host if _ADDRESS.fullmatch(host) is not None else host.partition(".")[0]
