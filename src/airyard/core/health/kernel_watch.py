"""What lines of the kernel's log, as they come, say of the machine: the rules of triage, one burst after the other.

Owns: which fault is how grave for the node, bursts, repeated soft faults. Must not know: where the lines come from.
What a line means is in ``core/triage`` (``machine_faults``, ``xid``, ``nvlink``): there is no second table here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from airyard.core.health.facts import Component, Remedy, Retest, Severity, Source
from airyard.core.health.sightings import Sighting
from airyard.core.triage.causes import Action, FailureClass
from airyard.core.triage.kernel_lines import KernelEvent, KernelFinding, KernelKind
from airyard.core.triage.machine_faults import (
    BURST_MS,
    MachineFault,
    recovery,
    repeated_soft,
    single,
    storm,
)
from airyard.core.triage.xid import Weight, xid_facts

REMEDY_OF: dict[Action, Remedy] = {
    Action.CORDON_RESET: Remedy.GPU_RESET,
    Action.CORDON_REBOOT: Remedy.REBOOT,
    Action.REPLACE: Remedy.REPLACE,
}
COMPONENT_OF: dict[FailureClass, Component] = {
    FailureClass.DRIVER: Component.DRIVER,
    FailureClass.NETWORK: Component.NETWORK,
}
"""Where neither the kind of a line nor its number says more; else the GPU."""
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
LOCKUPS = 3
"""So many stuck processors in an hour, each a minute after the last, ask for a reboot: a virtual machine whose host is
busy shows one now and then."""
_LOCKUPS_APART_MS = 60_000
_KEPT_IN_A_BURST = 200
_KEPT_SOFT = 200

_MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172})
_LINK_XIDS = frozenset({74, 136, 137, *range(144, 151), 155})
_OF_THE_HOST = frozenset(
    {
        KernelKind.OOM_KILL,
        KernelKind.PANIC,
        KernelKind.LOCKUP,
        KernelKind.MEMORY_UNCORRECTED,
        KernelKind.HUNG_TASK,
    }
)
_GRAVE: dict[KernelKind, Severity] = {
    # What runs goes on for now: it may leave in its own time.
    KernelKind.LOCKUP: Severity.HIGH,
    # Which disk it is, and whether anybody uses it, a line does not say: a suspicion, until a write fails.
    KernelKind.DISK: Severity.HIGH,
}
_SOFT: dict[KernelKind, Severity] = {
    KernelKind.HUNG_TASK: Severity.WARNING,
    KernelKind.NIC_HINT: Severity.WARNING,
    # The port's own rule judges how long it was down; a file server is nobody's node.
    KernelKind.LINK_DOWN: Severity.INFO,
    KernelKind.FILE_SYSTEM: Severity.INFO,
    KernelKind.OOM_KILL: Severity.INFO,
}
_RETEST: dict[KernelKind, Retest] = {
    KernelKind.OFF_BUS: Retest.T3,
    KernelKind.AER_FATAL: Retest.T3,
    KernelKind.SXID: Retest.T3,
    KernelKind.NIC: Retest.T4,
    KernelKind.MEMORY_UNCORRECTED: Retest.T2,
}


_CLIENT = (
    "a program has a library of another version than the driver: as a rule its container's or environment's"
)


class KernelWatch:
    """Judges what is new in one kernel's log. Time is that of the log: milliseconds since the machine was started."""

    def __init__(self) -> None:
        self._burst: deque[KernelFinding] = deque(maxlen=_KEPT_IN_A_BURST)
        self._last_ms = 0
        self._soft: deque[tuple[int, KernelFinding]] = deque(maxlen=_KEPT_SOFT)
        self._lockups_ms: deque[int] = deque(maxlen=LOCKUPS)

    def judge(self, findings: list[KernelFinding], now_ms: int) -> list[Sighting]:
        """Return what the newest lines say, in the light of those of the same burst.

        What the driver says of a cure (Xid 154) comes a moment after the fault: give lines of one moment together.
        """
        found: list[Sighting] = []
        if findings and now_ms - self._last_ms > BURST_MS:
            self._burst.clear()
        for finding in findings:
            self._burst.append(finding)
            self._last_ms = now_ms
        while self._soft and now_ms - self._soft[0][0] > DAY_MS:
            self._soft.popleft()
        burst = list(self._burst)
        for finding in findings[-_KEPT_IN_A_BURST:]:
            found += self._one(finding, burst, now_ms)
        if any(finding.event.kind is KernelKind.AER_CORRECTED for finding in findings):
            many = storm(burst)
            if many is not None:
                found.append(_sighting(many, many.lines[0], Severity.WARNING, Retest.T2))
        return found

    def _one(self, finding: KernelFinding, burst: list[KernelFinding], now_ms: int) -> list[Sighting]:
        event = finding.event
        if event.kind is KernelKind.DRIVER_MISMATCH:
            # Any program with a library of another driver brings it about; of the host's own NVML tells.
            return [
                replace(
                    _soft(finding, Severity.INFO, _CLIENT), rule="driver.client", component=Component.DRIVER
                )
            ]
        fault = single(finding, burst)
        if fault is not None and fault.hard and fault.failure_class is not FailureClass.USER:
            told = next(
                (cure for each in burst if _beside(each, event) and (cure := recovery(each.event))), None
            )
            one = _hard(replace(fault, action=told) if told is not None else fault, finding)
            return [one if event.kind is not KernelKind.LOCKUP else self._stuck(one, now_ms)]
        if event.kind is KernelKind.XID and event.code is not None:
            return self._soft_xid(finding, event.code, now_ms)
        severity = _SOFT.get(event.kind)
        return [_soft(finding, severity, event.text)] if severity is not None else []

    def _stuck(self, one: Sighting, now_ms: int) -> Sighting:
        """Return a stuck processor as a suspicion, until it came often enough to be the machine's own."""
        if not self._lockups_ms or now_ms - self._lockups_ms[-1] >= _LOCKUPS_APART_MS:
            self._lockups_ms.append(now_ms)
        often = len(self._lockups_ms) == LOCKUPS and now_ms - self._lockups_ms[0] <= HOUR_MS
        return one if often else replace(one, remedy=Remedy.NONE)

    def _soft_xid(self, finding: KernelFinding, code: int, now_ms: int) -> list[Sighting]:
        """Judge an Xid that does not count alone: as a rule the program's; one GPU under many programs is the GPU's."""
        facts = xid_facts(code)
        if facts.weight is not Weight.SOFT:
            return []
        text = f"Xid {code}: {facts.meaning}"
        if facts.failure_class is not FailureClass.USER:
            return [_soft(finding, Severity.WARNING, text, retest=facts.retest)]
        self._soft.append((now_ms, finding))
        many = repeated_soft([each for _, each in self._soft])
        if many is None or many.failure_class is FailureClass.USER or many.pci != finding.event.pci:
            return [_soft(finding, Severity.INFO, f"{text}; as a rule the program's own")]
        return [_sighting(many, finding, Severity.WARNING, facts.retest)]


def _beside(other: KernelFinding, event: KernelEvent) -> bool:
    return other.event.pci in ("", event.pci)


def _hard(fault: MachineFault, finding: KernelFinding) -> Sighting:
    event = finding.event
    severity = _GRAVE.get(event.kind, Severity.CRITICAL)
    retest = _RETEST.get(event.kind, Retest.T1)
    if event.kind is KernelKind.XID and event.code is not None:
        facts = xid_facts(event.code)
        retest = facts.retest
        if facts.weight is Weight.SOFT and event.code not in range(144, 151):
            severity = Severity.WARNING  # hard for the program that it hit, not for the node
    return _sighting(fault, finding, severity, retest)


def _sighting(fault: MachineFault, finding: KernelFinding, severity: Severity, retest: Retest) -> Sighting:
    event = finding.event
    rule = fault.rule
    if event.kind is KernelKind.XID and event.code in range(144, 151):
        rule = f"nvlink.{event.code}"  # judged by its words, not by its number alone
    lines = (finding, *(line for line in fault.lines if line is not finding))
    return Sighting(
        rule=rule,
        component=component_of(event, COMPONENT_OF.get(fault.failure_class, Component.GPU)),
        severity=severity,
        source=Source.KERNEL,
        message=fault.message,
        pci=event.pci,
        mark=str(finding.number),
        at_ms=event.uptime_ms,
        code=event.code,
        remedy=REMEDY_OF.get(fault.action, Remedy.NONE),
        retest=retest,
        evidence=tuple(line.event.text for line in lines),
    )


def _soft(
    finding: KernelFinding, severity: Severity, message: str, *, retest: Retest = Retest.T1
) -> Sighting:
    event = finding.event
    return Sighting(
        rule=event.rule,
        component=component_of(event, Component.GPU),
        severity=severity,
        source=Source.KERNEL,
        message=message,
        pci=event.pci,
        mark=str(finding.number),
        at_ms=event.uptime_ms,
        code=event.code,
        retest=retest,
        evidence=(event.text,),
    )


def component_of(event: KernelEvent, otherwise: Component) -> Component:
    """Return which part of the machine a line is about."""
    if event.kind in _OF_THE_HOST:
        return Component.HOST
    if event.kind in (KernelKind.NIC, KernelKind.NIC_HINT, KernelKind.LINK_DOWN):
        return Component.NETWORK
    if event.kind is KernelKind.DISK:
        return Component.DISK
    if event.kind is KernelKind.FILE_SYSTEM:
        return Component.STORAGE
    if event.kind is KernelKind.SXID or event.code in _LINK_XIDS:
        return Component.NVLINK
    if event.kind is KernelKind.XID and event.code in _MEMORY_XIDS:
        return Component.GPU_MEMORY
    return otherwise
