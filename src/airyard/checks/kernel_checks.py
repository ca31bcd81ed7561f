"""The rule over the kernel's log: no hard fault of the machine since it was started.

Owns: reading ``/dev/kmsg`` once, from its start. Must not know: what a line means (``core/triage`` does).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, warned
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest
from airyard.core.health.kernel_watch import COMPONENT_OF, REMEDY_OF
from airyard.core.triage.causes import FailureClass
from airyard.core.triage.kernel_lines import kernel_event, parse_line
from airyard.core.triage.machine_faults import MachineFault, faults
from airyard.core.triage.reading import Findings, Reader

_MOST = 64 << 20
_RECORD = 8192
_MOST_UNKNOWN = 20
_LONGEST_TEXT = 200
_OF_DRIVER = re.compile(rb"NVRM:|nvidia-nvswitch\d*:|nvidia-nvlink:|nvidia_peermem")
_USUAL = re.compile(
    r"loading NVIDIA|NVIDIA UNIX|module license|GPU at PCI:|GPU Board Serial|GSP firmware|open kernel module"
    r"|taints kernel|This can occur when|No NVIDIA GPU found|[Ss]uccess|[Rr]egister|[Ee]nabl|\binit(?:ialized)?\b"
    r"|request_mem_region|driver was not configured|conflicting driver|Try unloading|persistence mode|\*{4}",
)
"""What the driver says of itself when it is loaded, or beside a fault that has a rule."""
NAME = "kernel.faults"
UNKNOWN = "kernel.unknown"


class Unknown:
    """The driver's lines that no rule knows: a form of message that nobody has met is how new faults are noticed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        """The first ones, each once."""
        self.count = 0

    def feed(self, record: bytes) -> None:
        """Look at one record of the log."""
        if _OF_DRIVER.search(record) is None:
            return
        for text in record.decode("utf-8", "replace").splitlines()[
            :1
        ]:  # what follows is the record's own fields
            line = parse_line(text)
            if line is None or not line.ours or kernel_event(line) is not None or _USUAL.search(line.text):
                continue
            self.count += 1
            words = line.text[:_LONGEST_TEXT]
            if words not in self.lines and len(self.lines) < _MOST_UNKNOWN:
                self.lines.append(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLog:
    """What the log told; ``problem``: why it could not be read."""

    findings: Findings | None = None
    problem: str = ""
    unknown: tuple[str, ...] = field(default_factory=tuple)
    unknown_count: int = 0


def collect(site: Site) -> KernelLog:
    """Read what the kernel has kept of its log since it was started. It is a ring: the oldest lines may be gone."""
    reader, unknown = Reader("/dev/kmsg", kernel=True), Unknown()
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
            unknown.feed(record)
            reader.feed(record if record.endswith(b"\n") else record + b"\n")
    finally:
        os.close(descriptor)
    return KernelLog(findings=reader.findings(), unknown=tuple(unknown.lines), unknown_count=unknown.count)


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


def _unknown(read: KernelLog, limits: Thresholds) -> Iterator[CheckResult]:
    if read.findings is None:
        yield skipped(UNKNOWN, f"the kernel's log cannot be read: {read.problem}")
    elif read.unknown_count:
        yield warned(
            UNKNOWN,
            f"{read.unknown_count} lines of the GPU's driver that no rule knows: {read.unknown[0]}",
            "read them (`dmesg | grep -e NVRM -e nvidia-nv`); tell us of those that came with a fault",
            value=read.unknown_count,
            details={"lines": "\n".join(read.unknown)},
        )
    else:
        yield passed(UNKNOWN, "none")


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
        Check(
            name=UNKNOWN,
            number=25,
            title="unknown lines of the driver",
            passes="none in the kernel's log (else a warning)",
            judge=_unknown,
        ),
    ),
)
