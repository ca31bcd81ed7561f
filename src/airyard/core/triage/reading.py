"""Reads logs, however large, in blocks: finds the few lines that matter, and keeps a bounded record of them.

Owns: the search for candidate lines, counting of lines, and what is kept. Must not know: files (it is given bytes),
which finding decides (``judging.py``).

Cost: only a line that has one of some fixed words is decoded and looked at, and lines that repeat but for their numbers
are searched for these once. Memory does not grow with the log: of each rule, rank and file the first lines are kept and
the rest counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from airyard.core.triage import kernel_lines
from airyard.core.triage.job_lines import parse_line
from airyard.core.triage.kernel_lines import KernelFinding, KernelKind, KernelLine, OffBus, kernel_event
from airyard.core.triage.locales import HINTS as _OF_LOCALES
from airyard.core.triage.locales import in_english
from airyard.core.triage.places import Place, PlaceLines
from airyard.core.triage.quoting import is_quoted, spoken_of
from airyard.core.triage.signatures import Signature, signature_of

KEPT_LINES = 3
"""Of each rule, rank and file."""
KEPT_EVENTS = 2_000
"""Of each kernel log."""
KEPT_FINDINGS = 5_000
_LONGEST_LINE = 4_096
_LONGEST_TEXT = 300

_JOB_WORDS = re.compile(
    rb"rror|xception|RROR|ssertion|atchdog|NCCL WARN|ollective operation timeout|ut of memory|OOM|oom[-_]kill"
    rb"|ECC|Xid|NVML|NVLink|NVLS|fallen off|is lost|device handle|abric ?manager|NVIDIA driver|mismatch|onnection"
    rb"|roken pipe|egmentation fault|SIG[SBAKT]|signal|ommand not found|ermission denied|No space left|quota"
    rb"|allocate memory|bad_alloc|shared memory|device-side|misaligned|launch failure|NaN|\bnan\b|Address already"
    rb"|name resolution|not known|open files|shared object|undefined symbol|GLIBC|No CUDA GPUs|CUDA GPU"
    rb"|Got completion|async fatal event|async event|[Ff]ailed|killed by|Killed|exitcode|corrupted|is invalid for"
    rb"|return code|GPU handle|NVSwitch|imed out|Bus error|Cuda failure|file handle|ransport endpoint|ead-only file"
    rb"|death signal|gated repo|xceeded|DUE TO|No devices|preempted|exited on|exited with|NET/OFI|empty list|exit code"
    rb"|exhausted|out of resource|MPI_ABORT|ctor died|is dead|build stopped|is required|device ordinal"
    rb"|orrupt|magic bytes|end-of-stream|truncated|execve|pair.cc|gloo::|cannot identify"
    rb"|ptxas|fatal  |UNAVAILABLE|DEADLINE|heartbeats|invalid usage|Duplicate GPU|invalid PC|no kernel image"
    rb"|Root Cause|local_rank: |host +: |time {4,}: "
    rb"|busId|\(pid: |at the stall: rank|and their processes: |Process \d*: "
    rb"|must match|cannot be multiplied|KeyboardInterrupt|remote process exited|not initialized|\bRAM\b|em(?:ory)? us"
    rb"|Traceback \(most|" + _OF_LOCALES
)
"""Without one of these no signature can fit. Written in the case in which programs print them: that is what is fast."""
_DIGITS = b"0123456789"
_MOST_SHAPES = 50_000
_LONGEST_SHAPE = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of a job's log that fits a signature."""

    signature: Signature
    file: str
    number: int
    text: str
    rank: int | None
    host: str = ""
    device: int | None = None
    at_ms: int | None = None
    quoted: bool = False
    """Words stand before it that no launcher, logger or traceback writes: somebody may only speak of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a watchdog said of one rank's collectives: the numbers of the last one enqueued, completed, or stuck."""

    file: str
    number: int
    rank: int | None
    group: str = ""
    stuck: int | None = None
    operation: str = ""
    enqueued: int | None = None
    completed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailed:
    """Whom a launcher says to have failed first, of the ranks that it launched. ``at``: its words for the time."""

    rank: int
    host: str = ""
    code: int | None = None
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """The line at which one of Python's begins."""

    file: str
    number: int
    text: str
    rank: int | None


@dataclass(slots=True)
class Findings:
    """What was found in one or several logs; several can be merged."""

    findings: list[Finding] = field(default_factory=list)
    kernel: list[KernelFinding] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """How many lines fit each rule, those that are not kept included."""
    tracebacks: list[Traceback] = field(default_factory=list)
    """Where the first of Python's begin: all that there is where no line names an error that is known."""
    lines: int = 0
    octets: int = 0
    foreign_kernel_lines: int = 0
    """Lines of a kernel's log that look like a fault, and that the kernel did not write."""
    memory_shares: list[float] = field(default_factory=list)
    """Shares of the host's memory in use, as the job said them, in order (0 to 1)."""
    first_failed: list[FirstFailed] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    """Where ranks run, as the lines say."""

    def merge(self, other: Findings) -> None:
        """Take in what was found elsewhere."""
        self.findings += other.findings
        self.kernel += other.kernel
        self.collectives += other.collectives
        for rule, count in other.counts.items():
            self.counts[rule] = self.counts.get(rule, 0) + count
        self.tracebacks += other.tracebacks
        self.lines += other.lines
        self.octets += other.octets
        self.foreign_kernel_lines += other.foreign_kernel_lines
        self.memory_shares += other.memory_shares
        self.first_failed += other.first_failed
        self.places += other.places


_STUCK = re.compile(
    r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, TensorShape=[^)]*?)?(?:, NumelIn=(\d+))?|Work(?:Gloo)?\(SeqNum=(\d+)"
)
_WORKS = re.compile(
    r"at work: (\d+)|last enqueued (?:NCCL )?work: (\d+)|last completed (?:NCCL )?work: (\d+)", re.IGNORECASE
)
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
_OF_ROOT_CAUSE = re.compile(
    r"\s*(?:(host) +: (\S+)|(rank) +: (\d{1,6}) \(local_rank: \d+\)|(exitcode) *: (-?\d{1,4})\b"
    r"|(time) +: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d))"
)
_ROOT_CAUSE_LINES = 8
"""So long is what torch's launcher says of it."""
_GROUP = re.compile(r"\[PG (?:ID )?(\d+)")
_MEMORY = re.compile(
    r"(?:host|cpu|system|ram|virtual)\W{0,3}(?:memory|mem|ram)?\b\D{0,24}"
    r"(\d+(?:\.\d+)?) ?(?:GB|GiB|G)? ?(?:/|of) ?(\d+(?:\.\d+)?) ?(?:GB|GiB|G)\b"
    r"|(?:host|cpu|system|ram|virtual)\W{0,3}(?:memory|mem|ram)?\b\D{0,24}(\d+(?:\.\d+)?) ?%",
    re.IGNORECASE,
)


def _searched(line: bytes) -> int:
    """Return how much of a line is looked at: of a long one the start, unless it overwrites itself or begins empty."""
    if len(line) <= _LONGEST_LINE or line[:1] == b"\0" or b"\r" in line[:-1]:
        return len(line)
    return _LONGEST_LINE


def _text(line: bytes) -> str:
    if line[:1] in (b"\0", b"\xef"):  # a file that was emptied while it was written to; a mark of UTF-8
        line = line.lstrip(b"\0").removeprefix(b"\xef\xbb\xbf")
    return line[:_LONGEST_LINE].decode("utf-8", "replace")


class Reader:
    """Reads one log. Feed it blocks of any size in order, then ask for the findings."""

    def __init__(self, file: str, *, rank: int | None = None, kernel: bool = False, host: str = "") -> None:
        """``rank``: whose log it is, where that is known; else the lines say so. ``host``: where it was written."""
        self._file = file
        self._rank = rank
        self._host = host
        self._kernel = kernel
        self._words = kernel_lines.HINTS if kernel else _JOB_WORDS
        self._rest = b""
        self._number = 0
        self._found = Findings()
        self._kept: dict[tuple[str, int | None], int] = {}
        self._off_bus = OffBus()
        self._place_lines = PlaceLines(rank=rank, host=host)
        self._root_cause_at = -_ROOT_CAUSE_LINES
        self._host_told = self._time_told = ""
        self._harmless: set[bytes] = set()
        self._before: KernelLine | None = None
        """The last line of the blocks before that has a heading."""
        self._head: tuple[int, KernelLine | None] = (-1, None)
        """The last place of this block that was looked at, and the last line with a heading up to it."""

    def feed(self, block: bytes) -> None:
        """Take in the next block."""
        self._found.octets += len(block)
        block = self._rest + block if self._rest else block
        end = block.rfind(b"\n") + 1
        if end == 0:
            # A line longer than a block: only its start can matter.
            self._rest = block if len(block) <= _LONGEST_LINE else block[:_LONGEST_LINE]
            return
        self._rest = block[end:]
        self._search(block[:end])

    def findings(self) -> Findings:
        """Return what was found, the last line included that has no end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._search(rest + b"\n")
        return self._found

    def _search(self, block: bytes) -> None:
        """Look at each line of a block of whole lines that has one of the words.

        Most lines differ from an earlier one in their numbers only, and no word has a digit: a line whose shape
        was seen to have none needs no second look.
        """
        harmless, search = self._harmless, self._words.search
        lines = block.split(b"\n")
        lines.pop()
        for place, shape in enumerate(block.translate(None, _DIGITS).split(b"\n")):
            if shape in harmless or not shape:
                continue
            if search(shape, 0, _searched(lines[place])) is None:
                if len(harmless) >= _MOST_SHAPES:
                    harmless.clear()
                if len(shape) <= _LONGEST_SHAPE:
                    harmless.add(shape)
                continue
            if self._kernel:
                self._kernel_line(_text(lines[place]), self._number + place + 1, self._headed(lines, place))
                continue
            for part in lines[place].split(b"\r"):  # a progress bar overwrites itself
                if search(part) is not None:
                    self._job_line(_text(part), self._number + place + 1)
        if self._kernel and lines:
            self._before = self._headed(lines, len(lines) - 1)
        self._head = (-1, None)
        self._number += len(lines)
        self._found.lines += len(lines)

    def _headed(self, lines: list[bytes], place: int) -> KernelLine | None:
        """Return the last line with a heading up to a place: whose message a line without one may go on.

        Cost: each line of a block is looked at once at most.
        """
        at, (known, head) = place, self._head
        while at > known:
            line = kernel_lines.parse_line(_text(lines[at]))
            if line is not None and line.headed:
                head = line
                break
            at -= 1
        else:
            head = head if known >= 0 else self._before
        self._head = (place, head)
        return head

    def _kernel_line(self, text: str, number: int, head: KernelLine | None) -> None:
        line = kernel_lines.parse_line(text)
        if line is None:
            return
        ours = line.ours if line.headed or head is None else kernel_lines.continues(head, line)
        if not ours:
            if kernel_event(KernelLine(text=line.text)) is not None:
                self._found.foreign_kernel_lines += 1
            elif (signature := signature_of(line.text)) is not None and signature.rule == "fabric.not_ready":
                self._keep(signature, line.text, number, None, line.host, None, line.at_ms)  # of a service
            return
        event = self._off_bus.address(line, kernel_event(line))
        if event is None:
            return
        self._count(event.rule)
        if len(self._found.kernel) < KEPT_EVENTS or event.kind in (KernelKind.XID, KernelKind.OFF_BUS):
            self._found.kernel.append(KernelFinding(event=event, file=self._file, number=number))
            del self._found.kernel[2 * KEPT_EVENTS :]

    def _job_line(self, text: str, number: int) -> None:
        line = parse_line(text)
        rank = self._rank if self._rank is not None else line.rank
        if rank is None:
            rank = line.local_rank
        self._found.places += self._place_lines.take(line, number)
        if "busId" in line.text and "NCCL INFO" in line.text:
            return  # each communicator has one for each rank: too many to be compared with all signatures
        if line.text.startswith("Traceback (most recent call last)"):
            if len(self._found.tracebacks) < KEPT_LINES:
                began = Traceback(file=self._file, number=number, text=line.text[:_LONGEST_TEXT], rank=rank)
                self._found.tracebacks.append(began)
            return
        self._memory(line.text)
        self._root_cause(line.text, number)
        signature = spoken_of(in_english(line.text))
        if signature is None:
            return
        self._keep(signature, line.text, number, rank, self._host or line.host, line.device, line.at_ms)
        if signature.rule == "torch.watchdog":
            self._collective(line.text, number, rank)

    def _keep(
        self,
        signature: Signature,
        text: str,
        number: int,
        rank: int | None,
        host: str,
        device: int | None,
        at_ms: int | None,
    ) -> None:
        self._count(signature.rule)
        name = (signature.rule, rank)
        kept = self._kept.get(name, 0)
        if kept >= KEPT_LINES or len(self._found.findings) >= KEPT_FINDINGS:
            return
        self._kept[name] = kept + 1
        self._found.findings.append(
            Finding(
                signature=signature,
                file=self._file,
                number=number,
                text=text[:_LONGEST_TEXT],
                rank=rank,
                host=host,
                device=device,
                at_ms=at_ms,
                quoted=is_quoted(text, signature),
            )
        )

    def _count(self, rule: str) -> None:
        self._found.counts[rule] = self._found.counts.get(rule, 0) + 1

    def _memory(self, text: str) -> None:
        found = _MEMORY.search(text)
        if found is None or len(self._found.memory_shares) >= KEPT_FINDINGS:
            return
        if found[3]:
            share = float(found[3]) / 100
        else:
            whole = float(found[2])
            share = float(found[1]) / whole if whole else 0.0
        if 0 <= share <= 1:
            self._found.memory_shares.append(share)

    def _root_cause(self, text: str, number: int) -> None:
        """Take in what torch's launcher says of the first failure, a line each: time, host, rank, exit code."""
        if _ROOT_CAUSE.search(text) is not None:
            self._root_cause_at, self._host_told, self._time_told = number, "", ""
            return
        if not 0 < number - self._root_cause_at <= _ROOT_CAUSE_LINES:
            return
        found, told = _OF_ROOT_CAUSE.match(text), self._found.first_failed
        if found is None:
            return
        if found[1]:
            self._host_told = found[2]
        elif found[3] and len(told) < KEPT_LINES:
            told.append(FirstFailed(rank=int(found[4]), host=self._host_told, at=self._time_told))
        elif found[5] and told and told[-1].code is None:
            told[-1] = replace(told[-1], code=int(found[6]))
        elif found[7]:
            self._time_told = found[8]

    def _collective(self, text: str, number: int, rank: int | None) -> None:
        if len(self._found.collectives) >= KEPT_FINDINGS:
            return
        stuck, group = _STUCK.search(text), _GROUP.search(text)
        works = [tuple(int(each) if each else None for each in found) for found in _WORKS.findall(text)]
        at, enqueued, completed = (next((w[i] for w in works if w[i] is not None), None) for i in range(3))
        if stuck is None and at is None:
            return
        self._found.collectives.append(
            Collective(
                file=self._file,
                number=number,
                rank=rank,
                group=group[1] if group else "",
                stuck=int(stuck[1] or stuck[4]) if stuck else at,
                operation=(stuck[2] or "") if stuck else "",
                enqueued=enqueued,
                completed=completed,
            )
        )
