"""What the kernel's own lines say of a machine: bursts of them, and the fault that each burst comes from.

Owns: grouping, what a burst is the sign of. Must not know: what jobs printed (``judging.py`` weighs both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airyard.core.run import Cause
from airyard.core.triage.causes import Action, FailureClass
from airyard.core.triage.kernel_lines import KernelEvent, KernelFinding, KernelKind
from airyard.core.triage.nvlink import LinkVerdict, SwitchVerdict, link_event, switch_event, xid74
from airyard.core.triage.xid import Weight, xid_facts

BURST_MS = 180_000
"""One fault makes lines for a while: a burst ends when nothing came for so long."""
STORM = 20
"""So many corrected errors of one PCIe port are a sign; fewer are daily life."""
MANY_PROCESSES = 3
MOST_PIDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFault:
    """The fault that a burst comes from. ``hard``: it speaks against the machine alone and at once."""

    rule: str
    failure_class: FailureClass
    cause: Cause
    action: Action
    precedence: int
    hard: bool
    message: str
    pci: str
    host: str
    at_ms: int | None
    lines: tuple[KernelFinding, ...]
    confidence: float = 0.9
    pids: tuple[int, ...] = ()
    """The processes that the kernel names with it, the first first."""


def bursts(findings: Sequence[KernelFinding]) -> list[list[KernelFinding]]:
    """Group the findings of each log by silence of three minutes; lines without a time go with the one before."""
    by_file: dict[str, list[KernelFinding]] = {}
    for finding in findings:
        by_file.setdefault(finding.file, []).append(finding)
    groups: list[list[KernelFinding]] = []
    for of_file in by_file.values():
        last_ms: int | None = None
        group: list[KernelFinding] = []
        for finding in of_file:
            at_ms = finding.event.at_ms if finding.event.at_ms is not None else finding.event.uptime_ms
            if group and at_ms is not None and last_ms is not None and at_ms - last_ms > BURST_MS:
                groups.append(group)
                group = []
            group.append(finding)
            last_ms = at_ms if at_ms is not None else last_ms
        groups.append(group)
    return groups


def faults(findings: Sequence[KernelFinding]) -> list[MachineFault]:
    """Return what each burst comes from, where it comes from anything."""
    found = [fault for burst in bursts(findings) if (fault := fault_of(burst)) is not None]
    repeated = repeated_soft(findings)
    return [*found, repeated] if repeated is not None else found


def fault_of(burst: Sequence[KernelFinding]) -> MachineFault | None:
    """Return the root of one burst: the strongest of its events, the earliest of equals."""
    found = [fault for finding in burst if (fault := single(finding, burst)) is not None]
    if not found:
        return storm(burst)
    root = max(found, key=lambda fault: (fault.hard, fault.precedence))
    told = next((action for finding in burst if (action := recovery(finding.event)) is not None), None)
    return replace(root, action=told) if told is not None else root


_RECOVERY = (
    ("Node Reboot Required", Action.CORDON_REBOOT),
    ("GPU Reset Required", Action.CORDON_RESET),
    ("Drain and Reset", Action.CORDON_RESET),
)


def recovery(event: KernelEvent) -> Action | None:
    """Return what the driver itself says of a cure, in an Xid 154: it knows better than any table."""
    if event.kind is not KernelKind.XID or event.code != 154:
        return None
    new = event.text.rpartition(" to ")[2].lower()
    return next((action for words, action in _RECOVERY if words.lower() in new), None)


def _fault(
    finding: KernelFinding,
    burst: Sequence[KernelFinding],
    failure_class: FailureClass,
    cause: Cause,
    action: Action,
    message: str,
    *,
    precedence: int = 50,
    hard: bool = True,
    confidence: float = 0.9,
) -> MachineFault:
    event = finding.event
    others = [each for each in burst if each is not finding and each.event.rule != event.rule]
    same = (each.event for each in burst if each.event.rule == event.rule and each.event.pci == event.pci)
    return MachineFault(
        rule=event.rule,
        failure_class=failure_class,
        cause=cause,
        action=action,
        precedence=precedence,
        hard=hard,
        message=message,
        pci=event.pci,
        host=event.host,
        at_ms=event.at_ms,
        lines=(finding, *others[:4]),
        confidence=confidence,
        pids=tuple(dict.fromkeys(one.pid for one in same if one.pid is not None))[:MOST_PIDS],
    )


_PLAIN: dict[KernelKind, tuple[FailureClass, Cause, Action, str, int]] = {
    KernelKind.OFF_BUS: (
        FailureClass.HARDWARE, Cause.DEVICE, Action.CORDON_REBOOT, "the GPU has fallen off the bus", 100,
    ),
    KernelKind.AER_FATAL: (
        FailureClass.HARDWARE, Cause.NODE, Action.CORDON_REBOOT, "a fatal error of a PCIe link", 95,
    ),
    KernelKind.DRIVER_MISMATCH: (
        FailureClass.DRIVER, Cause.NODE, Action.CORDON_REBOOT,
        "the driver's library and its kernel module are of two versions", 70,
    ),
    KernelKind.DRIVER_INIT: (
        FailureClass.DRIVER, Cause.NODE, Action.CORDON_REBOOT, "the driver could not start the GPU", 65,
    ),
    KernelKind.OOM_KILL: (
        FailureClass.USER, Cause.USER_LIMIT, Action.FIX_CODE,
        "the host's memory did not suffice, and the kernel killed a process", 60,
    ),
    KernelKind.PANIC: (FailureClass.DRIVER, Cause.NODE, Action.CORDON_REBOOT, "the kernel panicked", 90),
    KernelKind.LOCKUP: (
        FailureClass.DRIVER, Cause.NODE, Action.CORDON_REBOOT, "a processor was stuck in the kernel", 60,
    ),
    KernelKind.MEMORY_UNCORRECTED: (
        FailureClass.HARDWARE, Cause.NODE, Action.CORDON_REBOOT, "an uncorrected error of the host's memory", 85,
    ),
    KernelKind.NIC: (
        FailureClass.NETWORK, Cause.NETWORK, Action.CORDON_REBOOT, "a network adapter stopped working", 80,
    ),
    KernelKind.LINK_DOWN: (
        FailureClass.NETWORK, Cause.NETWORK, Action.RETRY_ELSEWHERE, "a port of the network went down", 55,
    ),
    KernelKind.FILE_SYSTEM: (
        FailureClass.NETWORK, Cause.STORAGE, Action.RETRY_ELSEWHERE, "a file server did not answer", 50,
    ),
    KernelKind.DISK: (FailureClass.HARDWARE, Cause.STORAGE, Action.CORDON, "a disk of the machine fails", 75),
}  # fmt: skip


_PASSING = frozenset({KernelKind.LINK_DOWN, KernelKind.FILE_SYSTEM})
"""What comes and goes by itself, at every start of a machine too: it counts where nothing else was seen."""


def single(finding: KernelFinding, burst: Sequence[KernelFinding]) -> MachineFault | None:
    """Return what one line of a burst is the sign of by itself."""
    event = finding.event
    if event.kind is KernelKind.XID and event.code is not None:
        return _xid(finding, event.code, burst)
    if event.kind is KernelKind.SXID and event.code is not None:
        return _sxid(finding, event.code, burst)
    plain = _PLAIN.get(event.kind)
    if plain is None:
        return None
    failure_class, cause, action, message, precedence = plain
    hard = event.kind not in _PASSING
    return _fault(finding, burst, failure_class, cause, action, message, precedence=precedence, hard=hard)


def _xid(finding: KernelFinding, code: int, burst: Sequence[KernelFinding]) -> MachineFault | None:
    facts = xid_facts(code)
    event = finding.event
    message = f"Xid {code}: {facts.meaning}"
    precedence = 60 + 4 * facts.precedence
    if 144 <= code <= 150:
        return _link(finding, code, event, message, precedence, burst)
    if code == 74 and xid74(event.words, earlier=_before(finding, burst)) is LinkVerdict.REPLACE:
        return _fault(
            finding, burst, facts.failure_class, Cause.DEVICE, Action.REPLACE, message, precedence=precedence
        )
    if code == 94:
        return _fault(
            finding, burst, facts.failure_class, Cause.DEVICE, facts.action, message, precedence=precedence
        )
    if facts.weight is not Weight.HARD:
        return None
    cause = Cause.DEVICE if facts.failure_class is FailureClass.HARDWARE else Cause.NODE
    return _fault(finding, burst, facts.failure_class, cause, facts.action, message, precedence=precedence)


def _before(finding: KernelFinding, burst: Sequence[KernelFinding]) -> bool:
    same = (
        each
        for each in burst
        if each.event.rule == finding.event.rule and each.event.pci == finding.event.pci
    )
    return next(same) is not finding


def _link(
    finding: KernelFinding,
    code: int,
    event: KernelEvent,
    message: str,
    precedence: int,
    burst: Sequence[KernelFinding],
) -> MachineFault | None:
    found = link_event(code, event.unit, event.fatal, event.words[0] if event.words else None)
    if found.verdict is LinkVerdict.IGNORE:
        return None
    # Where the peer is as likely, this GPU alone is not blamed; where Xid 154 decides, the node is rebooted.
    action = Action.CORDON_RESET if found.verdict is LinkVerdict.RESET else Action.CORDON_REBOOT
    cause = Cause.DEVICE if found.verdict is LinkVerdict.RESET else Cause.NODE
    return _fault(
        finding, burst, FailureClass.HARDWARE, cause, action, message, precedence=precedence, confidence=0.8
    )


def _sxid(finding: KernelFinding, code: int, burst: Sequence[KernelFinding]) -> MachineFault | None:
    verdict = switch_event(code, finding.event.fatal)
    if verdict in (SwitchVerdict.MINOR, SwitchVerdict.UNKNOWN):
        return None
    return _fault(
        finding,
        burst,
        FailureClass.HARDWARE,
        Cause.NODE,
        Action.CORDON_REBOOT,
        f"SXid {code}: an error of an NVSwitch",
        precedence=88,
        confidence=0.8,
    )


def storm(burst: Sequence[KernelFinding]) -> MachineFault | None:
    """Return the fault of a link that corrects errors all the time."""
    corrected = [each for each in burst if each.event.kind is KernelKind.AER_CORRECTED]
    if len(corrected) < STORM:
        return None
    return _fault(
        corrected[0],
        burst,
        FailureClass.HARDWARE,
        Cause.NODE,
        Action.CORDON_REBOOT,
        f"a PCIe link corrected {len(corrected)} errors in a short time",
        precedence=40,
        hard=False,
        confidence=0.6,
    )


_SOFT_MMU = (13, 31)


def repeated_soft(findings: Sequence[KernelFinding]) -> MachineFault | None:
    """Judge repeated faults of addresses: one program everywhere is the program's; one GPU under many is the GPU's."""
    soft = [each for each in findings if each.event.kind is KernelKind.XID and each.event.code in _SOFT_MMU]
    if not soft:
        return None
    devices = {each.event.pci for each in soft}
    pids = {each.event.pid for each in soft if each.event.pid is not None}
    names = {each.event.name for each in soft if each.event.name}
    code = soft[0].event.code
    if len(names) >= MANY_PROCESSES:
        return _fault(
            soft[0], soft, FailureClass.DRIVER, Cause.NODE, Action.RETRY_ELSEWHERE,
            f"Xid {code} with every program that uses the GPU", precedence=45, hard=False, confidence=0.6,
        )  # fmt: skip
    if len(devices) == 1 and len(pids) >= MANY_PROCESSES:
        return _fault(
            soft[0], soft, FailureClass.HARDWARE, Cause.DEVICE, Action.RETRY_ELSEWHERE,
            f"Xid {code} on one GPU under {len(pids)} processes", precedence=45, hard=False, confidence=0.6,
        )  # fmt: skip
    return _fault(
        soft[0], soft, FailureClass.USER, Cause.USER_CODE, Action.FIX_CODE,
        f"Xid {code}: {xid_facts(code or 0).meaning}; as a rule the program's own", precedence=42, hard=False,
        confidence=0.6,
    )  # fmt: skip
