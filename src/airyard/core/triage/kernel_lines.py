"""Reads lines of the kernel's log: when, from which facility, and what fault of a machine they tell of.

Owns: the forms of such lines (``dmesg`` with ``-T`` or ``-x``, ``journalctl``, as JSON, syslog, ``/dev/kmsg``) and of
the messages. Must not know: where the lines come from, what becomes of a node.

A job may write to ``/dev/kmsg``: such a line reads back with the facility *user*. Only the kernel's own are evidence.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import Enum

from airyard.core.triage.moments import stamp_ms

_LONGEST_TEXT = 500


HINTS = re.compile(
    rb"NVRM|Xid|fallen off|AER|PCIe Bus Error|oom|Killed process|lockup|LOCKUP|stalls|panic|EDAC|Hardware Error"
    rb"|mlx|\bib|blocked for more|not responding|Lustre|ceph|I/O error|medium error|read-only|nvme|segfault"
    rb"|version|fabricmanager"
)
"""Without one of these a line tells of no fault."""


class KernelKind(Enum):
    """What a line tells of. The values are the rules' names; Xid and SXid are followed by their number."""

    XID = "xid"
    SXID = "sxid"
    OFF_BUS = "gpu.off_bus"
    DRIVER_MISMATCH = "driver.mismatch"
    DRIVER_INIT = "driver.init"
    AER_FATAL = "pcie.aer_fatal"
    AER_CORRECTED = "pcie.aer_corrected"
    OOM_KILL = "host.oom"
    LOCKUP = "host.lockup"
    PANIC = "host.panic"
    MEMORY_UNCORRECTED = "host.edac"
    HUNG_TASK = "host.hung_task"
    NIC = "net.mlx5"
    NIC_HINT = "net.mlx5_hint"
    LINK_DOWN = "net.link_down"
    FILE_SYSTEM = "storage.nfs"
    DISK = "disk.error"
    SEGFAULT = "process.segfault"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLine:
    """One line without its heading. ``facility`` is empty where the form does not show it."""

    text: str
    facility: str = ""
    at_ms: int | None = None
    """Since 1970, where the line says so."""
    uptime_ms: int | None = None
    host: str = ""

    @property
    def ours(self) -> bool:
        """False when somebody other than the kernel wrote it."""
        return self.facility in ("", "kern")

    @property
    def headed(self) -> bool:
        """Whether the line itself says when or from whom it is."""
        return bool(self.facility) or self.at_ms is not None or self.uptime_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvent:
    """A fault that a line tells of. ``fatal`` is the line's own word, None where it has none."""

    kind: KernelKind
    text: str
    code: int | None = None
    pci: str = ""
    pid: int | None = None
    name: str = ""
    unit: str = ""
    fatal: bool | None = None
    words: tuple[int, ...] = ()
    """Numbers in hexadecimal after the message: registers of an Xid 74, words of an NVLink event."""
    at_ms: int | None = None
    uptime_ms: int | None = None
    host: str = ""

    @property
    def rule(self) -> str:
        """The rule's name: ``xid.79``, ``gpu.off_bus``."""
        return f"{self.kind.value}.{self.code}" if self.code is not None else self.kind.value


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFinding:
    """A line of a kernel's log that tells of a fault."""

    event: KernelEvent
    file: str
    number: int


_FACILITIES = (
    "kern",
    "user",
    "mail",
    "daemon",
    "auth",
    "syslog",
    "lpr",
    "news",
    "uucp",
    "cron",
    "authpriv",
    "ftp",
)
_KMSG = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.S)
_DMESG_X = re.compile(r"(\w+) *:\w+ *: *(.*)", re.S)
_APART = re.compile(r"\[ *\+\d+\.\d+\] ?(.*)", re.S)
"""Of ``dmesg --time-format delta``: the time since the line before."""
_UPTIME = re.compile(r"\[ *(\d+)\.(\d+)(?: +<[ \d.]+>)?\] ?(.*)", re.S)
_MINUTE = re.compile(r"\[(\w{3} +\d+ +\d\d:\d\d)\] ?(.*)", re.S)
"""Of ``dmesg -H``: the first line of each minute."""
_PRIORITY = re.compile(r"<(\d{1,3})>(?:1 )?(.*)", re.S)
"""Of ``dmesg -r`` and of syslog as it is sent: facility and level in one number."""
_CALLER = re.compile(r"\[ *[TC]\d+\] ?")
"""Which thread or processor wrote it, where the kernel is built to say so."""
_MONOTONIC = re.compile(r"(\S+) kernel: (.*)", re.S)
"""What follows the time in ``journalctl -o short-monotonic``, of the kernel."""
_HUMAN = re.compile(r"\[(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\] ?(.*)", re.S)
_SYSLOG = re.compile(
    r"(?:\w{3} (?=\d{4}-))?(\w{3} +\d+ \d\d:\d\d:\d\d(?:\.\d+)?|\d{9,11}\.\d{3,9}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,5}(?= ))?) (\S+) "
    r"(?:(\S+?)(?:\[\d+\])?:|(\S+) - - -) (.*)",
    re.S,
)
_ISO_ALONE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}(?:Z|[+-]\d\d:?\d\d)) (.*)", re.S)
"""Of ``dmesg --time-format iso``: nobody else writes a comma, and no host follows."""
_KERNEL_TAGS = ("kernel", "kern")


def parse_line(line: str) -> KernelLine | None:
    """Take a line's heading off; None for an empty one. Never raises."""
    line = line.rstrip("\r\n")
    if not line.strip():
        return None
    found = _KMSG.fullmatch(line)
    if found is not None:
        facility = _facility(int(found[1]) >> 3)
        return KernelLine(text=found[4], facility=facility, uptime_ms=int(found[3]) // 1000)
    if line.startswith("{") and (entry := _journal_entry(line)) is not None:
        return entry
    facility = ""
    found = _PRIORITY.fullmatch(line)
    if found is not None:
        facility, line = _facility(int(found[1]) >> 3), found[2]
    found = _DMESG_X.fullmatch(line)
    if found is not None and found[1] in _FACILITIES:
        facility, line = found[1], found[2]
    at_ms: int | None = None
    host = ""
    found = _ISO_ALONE.fullmatch(line)
    if found is not None:
        return KernelLine(text=found[2], facility=facility, at_ms=stamp_ms(found[1]))
    found = _SYSLOG.fullmatch(line)
    if found is not None:
        at_ms, host, line = _stamp(found[1]), found[2], found[5]
        tag = found[3] or found[4]
        if tag.lower() not in _KERNEL_TAGS:
            facility = facility or f"tag {tag}"
        elif not facility and at_ms is None:
            facility = "kern"
    found = _HUMAN.fullmatch(line)
    if found is not None:
        return KernelLine(text=_plain(found[2]), facility=facility, at_ms=stamp_ms(found[1]), host=host)
    found = _UPTIME.fullmatch(line)
    if found is not None:
        uptime_ms = int(found[1]) * 1000 + int(found[2][:3].ljust(3, "0"))
        text = _plain(found[3])
        told = _MONOTONIC.fullmatch(text)
        if told is not None:
            host, text = told[1], told[2]
        return KernelLine(text=text, facility=facility, at_ms=at_ms, uptime_ms=uptime_ms, host=host)
    found = _APART.fullmatch(line)
    minute = _MINUTE.fullmatch(line)
    if minute is not None:
        return KernelLine(text=_plain(minute[2]), facility=facility or "kern", host=host)
    text = _plain(found[1] if found is not None else line)
    return KernelLine(text=text, facility=facility, at_ms=at_ms, host=host)


def _plain(text: str) -> str:
    """Return a message without the caller before it."""
    return text[found.end() :] if (found := _CALLER.match(text)) is not None else text


def _stamp(text: str) -> int | None:
    """Return the time of a heading; seconds since 1970 with a fraction are one, too."""
    if text[:9].isdigit():
        seconds, _, fraction = text.partition(".")
        return int(seconds) * 1000 + int(fraction[:3])
    return stamp_ms(text)


def _facility(number: int) -> str:
    return _FACILITIES[number] if number < len(_FACILITIES) else f"facility {number}"


def _journal_entry(line: str) -> KernelLine | None:
    """Read an entry of ``journalctl -o json``; None for what is none. Any service can call itself *kernel* there."""
    try:
        entry = json.loads(line)
        text = entry["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(text, str):  # octets that are no text
        return None
    transport, number = str(entry.get("_TRANSPORT", "")), str(entry.get("SYSLOG_FACILITY", "0"))
    facility = f"transport {transport or 'unknown'}"
    if transport == "kernel":
        facility = "kern" if number == "0" else f"facility {number}"
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    return KernelLine(
        text=text,
        facility=facility,
        at_ms=int(stamp) // 1000 if stamp.isdecimal() and len(stamp) < 19 else None,
        host=str(entry.get("_HOSTNAME", "")),
    )


_PCI = r"(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_XID = re.compile(rf"NVRM: Xid \({_PCI}\): (\d+)\b,?(.*)", re.S)
_SXID = re.compile(rf"nvidia-nvswitch\d*: SXid \({_PCI}\): (\d+)\b,?(.*)", re.S)
_PID = re.compile(r"\bpid='?(\d+)'?")
_NAME = re.compile(r"\bname=([^,\s]+)")
_UNIT = re.compile(
    r"^\s*(?:pid='?[^,]*'?,\s*)?(?:name=[^,]*,\s*)?([A-Z][A-Z0-9_]+) (Nonfatal|Non-fatal|Fatal)\b"
)
_FATAL = re.compile(r"\b(non-?fatal|fatal)\b", re.I)
_HEX = re.compile(r"\b0x([0-9a-fA-F]{1,16})\b")
_ANY_PCI = re.compile(r"\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)\b")

# The kernel itself prints names that users choose: of programs, files, cgroups. So each expression is tried at the
# start of the message alone, where its subsystem stands, and a message about a process is one about nothing else.
_OF_PROCESS = re.compile(
    r"\[\d+\]:? (?:segfault at|general protection|trap |bad frame|unhandled)|^traps: |invoked oom-killer|oom-kill:"
    r"|Killed process|oom_reaper|page allocation failure|page allocation stalls|drop_caches|greatest stack depth"
    r"|^INFO: task |blocked for more than|soft lockup|\bComm: |^audit|fork rejected|core_pattern"
    r"|^process '|^warning: `",
    re.IGNORECASE,
)
_KINDS_OF_PROCESSES = frozenset(
    (KernelKind.OOM_KILL, KernelKind.HUNG_TASK, KernelKind.SEGFAULT, KernelKind.LOCKUP)
)
_DEVICE = r"[\w.-]{2,24} (?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]: "
"""A driver and its device, as the kernel writes them before what a device has to say."""


def _rule(kind: KernelKind, *alternatives: str) -> tuple[KernelKind, re.Pattern[str]]:
    return kind, re.compile("|".join(alternatives), re.IGNORECASE)


_MESSAGES: tuple[tuple[KernelKind, re.Pattern[str]], ...] = (
    _rule(KernelKind.OFF_BUS, rf"(?:NVRM: |nvidia[: ]|GPU {_ANY_PCI.pattern}).*fallen off the bus"),
    _rule(
        KernelKind.DRIVER_MISMATCH,
        r"NVRM: API mismatch",
        r"NVRM: .*kernel module .* version .* does not match",
    ),
    _rule(
        KernelKind.DRIVER_INIT,
        r"NVRM: .*RmInitAdapter failed",
        r"NVRM: .*rm_init_adapter failed",
        r"NVRM: .*probe .*failed",
    ),
    _rule(
        KernelKind.AER_FATAL,
        rf"{_DEVICE}AER: .*Uncorrect(?:ed|able) \(Fatal\)",
        rf"{_DEVICE}(?:AER: )?PCIe Bus Error: severity=(?:Uncorrect(?:ed|able) \(Fatal\)|Fatal)",
    ),
    _rule(
        KernelKind.AER_CORRECTED,
        rf"{_DEVICE}AER: .*Correct(?:ed|able) error",
        rf"{_DEVICE}(?:AER: )?PCIe Bus Error: severity=Correct(?:ed|able)\b",
    ),
    _rule(
        KernelKind.OOM_KILL,
        r"(?:[\w ]{0,40}out of memory: )?Killed process (\d+) \(([^)]*)\)",
        r"oom-kill:",
        r".{1,16} invoked oom-killer",
    ),
    _rule(KernelKind.PANIC, r"Kernel panic - not syncing"),
    _rule(
        KernelKind.LOCKUP,
        r"(?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU",
        r"(?:NMI )?watchdog: (?:CPU\d+: )?Watchdog detected hard LOCKUP",
        r"(?:rcu: )?INFO: rcu\w* .*detected (?:expedited )?stalls?\b",
    ),
    _rule(
        KernelKind.MEMORY_UNCORRECTED,
        r"EDAC \w+: (?:\d+ )?UE .*\b(?:on|page|row)\b",
        r"mce: Uncorrected hardware memory error",
        r"Memory failure: 0x[0-9a-f]+: .*hardware memory corruption",
        r"(?:mce: |\{\d+\})?\[Hardware Error\].*(?:uncorrected|event severity: (?:fatal|recoverable))",
    ),
    _rule(
        KernelKind.NIC,
        r"mlx5_core .*Will cause a leak of a command resource",
        r"mlx5_core .*health compromised",
        r"mlx5_core .*unrecoverable hardware error",
    ),
    _rule(
        KernelKind.NIC_HINT,
        r"mlx5_core .*Detected insufficient power on the PCIe slot",
        r"mlx5_core .*(?:High Temperature|Cable unplugged)",
    ),
    _rule(KernelKind.LINK_DOWN, r"mlx5_core .*Link down", r"ib\d+: .*link (?:is )?down"),
    _rule(KernelKind.HUNG_TASK, r"INFO: task (.{1,16}?):(\d+) blocked for more than"),
    _rule(
        KernelKind.FILE_SYSTEM,
        r"nfs: server \S+ not responding",
        r"Lustre.*(?:Connection .* was lost|evicted)",
        r"(?:lib)?ceph: .*(?:hung|timed out)",
    ),
    _rule(
        KernelKind.DISK,
        r"(?:blk_update_request: |print_req_error: |Buffer )?(?:critical medium error|I/O error)(?:, dev | on dev)",
        r"(?:EXT[234]|XFS|BTRFS|F2FS)[\w-]* ?[(:].*Remounting filesystem read-only",
        r"(?:nvme )?nvme\d+: (?:controller is down|Device not ready|I/O .* timeout)",
    ),
    _rule(KernelKind.SEGFAULT, r"(.{1,16}?)\[(\d+)\]: segfault at "),
)


def continues(head: KernelLine, line: KernelLine) -> bool:
    """Return whether a line without a heading can be the kernel's, as the next of the message that ``head`` begins.

    The driver writes some messages in several lines, each with its name. A program's name with a line break in it, or
    what a service writes, begins otherwise.
    """
    first = line.text.split(maxsplit=1)[:1]
    return head.ours and _OF_PROCESS.search(head.text) is None and head.text.split(maxsplit=1)[:1] == first


def kernel_event(line: KernelLine) -> KernelEvent | None:
    """Return the fault that a line of the kernel's own tells of; None for others, and for what somebody else wrote."""
    if not line.ours:
        return None
    text = line.text.lstrip()
    event = _numbered(text, _XID, KernelKind.XID) or _numbered(text, _SXID, KernelKind.SXID)
    event = event or _message(text)
    if event is None:
        return None
    return replace(event, at_ms=line.at_ms, uptime_ms=line.uptime_ms, host=line.host)


def _numbered(text: str, expression: re.Pattern[str], kind: KernelKind) -> KernelEvent | None:
    found = expression.match(text)
    if found is None:
        return None
    rest = found[3]
    pid, name = _PID.search(rest), _NAME.search(rest)
    unit = _UNIT.match(rest)
    fatal = _FATAL.search(unit[0] if unit else rest if name is None else "")  # a program may be named so
    return KernelEvent(
        kind=kind,
        text=text[:_LONGEST_TEXT],
        code=int(found[2]),
        pci=pci_address(found[1]),
        pid=int(pid[1]) if pid else None,
        name=name[1] if name else "",
        unit=unit[1] if unit else "",
        fatal=not fatal[1].lower().startswith("non") if fatal else None,
        words=tuple(int(word, 16) for word in _HEX.findall(rest)),
    )


def _message(text: str) -> KernelEvent | None:
    of_process = _OF_PROCESS.search(text) is not None
    for kind, expression in _MESSAGES:
        if of_process and kind not in _KINDS_OF_PROCESSES:
            continue
        found = expression.match(text)
        if found is None:
            continue
        pci = _ANY_PCI.search(text)
        pid, name = _process(kind, found)
        return KernelEvent(
            kind=kind,
            text=text[:_LONGEST_TEXT],
            pci=pci_address(pci[1]) if pci else "",
            pid=pid,
            name=name,
        )
    return None


def _process(kind: KernelKind, found: re.Match[str]) -> tuple[int | None, str]:
    if kind is KernelKind.OOM_KILL and found[1]:
        return int(found[1]), found[2]
    if kind in (KernelKind.HUNG_TASK, KernelKind.SEGFAULT):
        return int(found[2]), found[1]
    return None, ""


def pci_address(text: str) -> str:
    """Return an address as ``0000:3b:00``: lower case, four digits of domain, without the function's number."""
    domain, bus, rest = text.lower().split(":")
    return f"{domain[-4:]}:{bus}:{rest.partition('.')[0]}"


class OffBus:
    """Joins the lines of one message: the driver names the GPU some lines before it says that it has left the bus."""

    _NAMED = re.compile(rf"NVRM: The NVIDIA (?:GPU|probe routine).*?{_ANY_PCI.pattern}", re.I)
    _REACH = 4

    def __init__(self) -> None:
        self._pci = ""
        self._left = 0

    def address(self, line: KernelLine, event: KernelEvent | None) -> KernelEvent | None:
        """Take in a line and its event; return the event with the GPU's address where it was named before."""
        found = self._NAMED.search(line.text) if line.ours else None
        if found is not None:
            self._pci, self._left = pci_address(found[1]), self._REACH
        elif self._left:
            self._left -= 1
        if event is not None and event.kind is KernelKind.OFF_BUS and not event.pci and self._left:
            return replace(event, pci=self._pci)
        return event
