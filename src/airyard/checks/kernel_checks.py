"""The rule over the kernel's log: no hard fault of the machine since it was started.

Owns: reading ``/dev/kmsg`` once, from its start. Must not know: what a line means (``core/triage`` does).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, warned
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest
from airyard.core.health.kernel_watch import COMPONENT_OF, REMEDY_OF
from airyard.core.triage.causes import FailureClass
from airyard.core.triage.machine_faults import MachineFault, faults
from airyard.core.triage.reading import Findings, Reader

_MOST = 64 << 20
_RECORD = 8192
NAME = "kernel.faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the log told; ``problem``: why it could not be read."""

    findings: Findings | None = None
    problem: str = ""


def collect(site: Site) -> KernelLog:
    """Read what the kernel has kept of its log since it was started. It is a ring: the oldest lines may be gone."""
    reader = Reader("/dev/kmsg", kernel=True)
    try:
        descriptor = os.open(site.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return KernelLog(problem=str(error.strerror))
    taken = 0
    try:
        while taken < _MOST:
            try:
                record = os.read(descriptor, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # it was overwritten while it was read: go on with the next one
            except OSError as error:
                return KernelLog(problem=str(error.strerror))
            if not record:
                break
            taken += len(record)
            reader.feed(record if record.endswith(b"\n") else record + b"\n")
    finally:
        os.close(descriptor)
    return KernelLog(findings=reader.findings())


def _faults(read: KernelLog, limits: Thresholds) -> Iterator[CheckResult]:
    if read.findings is None:
        yield skipped(NAME, f"the kernel's log cannot be read: {read.problem}")
        return
    hard = [
        fault
        for fault in faults(read.findings.kernel)
        if fault.hard
        and fault.failure_class in (FailureClass.HARDWARE, FailureClass.DRIVER, FailureClass.NETWORK)
    ]
    for fault in hard:
        yield _told(fault)
    if read.findings.foreign_kernel_lines:
        yield warned(
            NAME,
            f"{read.findings.foreign_kernel_lines} lines that look like faults were not written by the kernel",
            "see who writes to /dev/kmsg; they do not count",
        )
    elif not hard:
        yield passed(NAME, f"no hard fault in {read.findings.lines:,} lines")


def _told(fault: MachineFault) -> CheckResult:
    where = f" on {fault.pci}" if fault.pci else ""
    return failed(
        NAME,
        f"{fault.message}{where}, since the machine was started",
        "cure it and start the machine again: the log keeps the fault until then",
        COMPONENT_OF.get(fault.failure_class, Component.GPU),
        REMEDY_OF.get(fault.action, Remedy.NONE),
        Retest.T2,
        details={"line": fault.lines[0].event.text[:200]},
    )


PROBE = Probe(
    name="kernel",
    collect=collect,
    deadline_s=10.0,
    checks=(
        Check(
            name=NAME,
            number=25,
            title="the kernel's log",
            passes="no hard fault since the machine was started",
            judge=_faults,
        ),
    ),
)
