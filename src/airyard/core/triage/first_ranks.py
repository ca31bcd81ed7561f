"""Names the rank that a fault of a machine struck, where a kernel's log or a monitor names a process or a GPU only.

Owns: which of their words lead to a rank, and what is said where none does. Must not know: where ranks run
(``places.py``), which fault decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airyard.core.health.facts import HealthEvent
from airyard.core.triage.causes import FailureCause, FailureClass
from airyard.core.triage.kernel_lines import KernelEvent, kernel_event, parse_line
from airyard.core.triage.machine_faults import MachineFault
from airyard.core.triage.places import Places

_HINT = "NCCL_DEBUG=INFO has every rank tell its process and GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The rank, where it is known, and how; else why it is not."""

    rank: int | None = None
    why: str = ""


def of_fault(fault: MachineFault, places: Places) -> Named:
    """Return whom a fault in a kernel's log struck first."""
    of_card = fault.failure_class in (FailureClass.HARDWARE, FailureClass.DRIVER)
    return _named(fault.pids, fault.pci, fault.host, places, "the kernel's log", of_card=of_card)


def of_event(event: HealthEvent, places: Places, devices: Mapping[str, Sequence[int]]) -> Named:
    """Return whom a fault struck that a monitor has seen. ``devices``: of each node, as its processes count them."""
    said = list(_kernels(event))
    pids = tuple(dict.fromkeys(one.pid for one in said if one.pid is not None))
    pci = next((one.pci for one in said if one.pci), "")
    host = event.node or event.machine
    named = _named(pids, pci, host, places, "what the monitor saw", of_card=True)
    if named.rank is not None or event.device is None:
        return named
    order = list(devices.get(host, ()))
    rank = places.of_device(host, order.index(event.device)) if event.device in order else None
    if rank is not None:
        return Named(rank=rank, why=f"GPU {event.device} of {host} is the one that it computes on")
    if pids or pci:
        return named
    return Named(why=f"no line says which rank GPU {event.device} of {host} is; {_HINT}")


def unnamed(verdict: FailureCause) -> str:
    """Return why no rank is named where no machine's fault decided."""
    if verdict.rule in ("nothing.found", "traceback.unread"):
        return ""
    if verdict.rule == "collective.timeout":
        return "all ranks waited for each other: who gave up first is not who failed first"
    if verdict.failure_class is FailureClass.UNKNOWN:
        return "only effects were seen, and they are of others than the rank that failed"
    return "the line that decides does not say of which rank it is"


def _kernels(event: HealthEvent) -> Iterator[KernelEvent]:
    for text in event.evidence:
        line = parse_line(text)
        if line is not None and (found := kernel_event(line)) is not None:
            yield found


def _named(pids: Sequence[int], pci: str, host: str, places: Places, source: str, *, of_card: bool) -> Named:
    """Go by the processes first. Where process and GPU are of two ranks nobody is named.

    ``of_card``: it strikes whoever computes on the GPU, as a process whose number in a container is another.
    """
    by_process = next(
        ((pid, rank) for pid in pids if (rank := places.of_process(host, pid)) is not None), None
    )
    by_card = places.of_card(host, pci) if pci else None
    there = f" of {host}" if host else ""
    if by_process is not None:
        pid, rank = by_process
        if by_card is not None and by_card != rank:
            return Named(why=f"process {pid}{there} is rank {rank}, and GPU {pci} is of rank {by_card}")
        return Named(rank=rank, why=f"it is process {pid}{there}")
    if by_card is not None and (of_card or not pids):
        return Named(rank=by_card, why=f"it computes on GPU {pci}{there}")
    what = " or ".join([*([f"process {pids[0]}"] if pids else []), *([f"GPU {pci}"] if pci else [])])
    if not what:
        return Named(why=f"{source} names no process and no GPU")
    if not host and places.several_hosts:
        return Named(why=f"{source} does not say of which host {what} is")
    return Named(why=f"no line says which rank {what}{there} is{'' if places.known else f'; {_HINT}'}")
