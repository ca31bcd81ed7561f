"""Follows the kernel's log: what is new in ``/dev/kmsg``, a bounded number of lines at a time, gaps told.

Owns: reading records and their numbers, which of them may be faults. Must not know: what a line means for a node.
Lines that others than the kernel wrote are counted and say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airyard.core.triage.kernel_lines import (
    HINTS,
    KernelFinding,
    KernelLine,
    OffBus,
    kernel_event,
    parse_line,
)

KMSG = "/dev/kmsg"
_RECORD = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What came since the last look. ``lost``: lines that nobody read, because they came too fast."""

    findings: tuple[KernelFinding, ...] = ()
    lines: int = 0
    lost: int = 0
    foreign: int = 0
    """Lines that look like a fault, and that the kernel did not write."""


class KernelFollower:
    """The log from some record on. Never blocks."""

    def __init__(self, path: Path, *, after: int | None = None) -> None:
        """``after``: the number of the last record that was read before; None: only what comes from now on.

        Raises: OSError where the log is not there, or may not be read.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._lines = LineFindings(str(path))
        self._rest = b""
        self.last = after
        """The number of the last record."""
        if after is None:
            for number, _ in self._records():
                self.last = number

    def read(self, most: int) -> News:
        """Return what is new. Of more than ``most`` lines the rest is left out and told of with the next look.

        Raises: OSError when the log cannot be read any more.
        """
        findings: list[KernelFinding] = []
        lines = lost = foreign = 0
        for number, line in self._records():
            if self.last is not None and number <= self.last:
                continue  # it was read before
            if self.last is not None:
                lost += number - self.last - 1
            self.last = number
            lines += 1
            found, others = self._lines.take(line, number)
            foreign += others
            if found is not None:
                findings.append(found)
            if lines == most:
                os.lseek(self._descriptor, 0, os.SEEK_END)
                self._rest = b""
                break
        return News(findings=tuple(findings), lines=lines, lost=lost, foreign=foreign)

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number and text of each record up to the present end; the rest of a record is left out."""
        while True:
            try:
                data = os.read(self._descriptor, _RECORD)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # overwritten while it was read: the next number tells how many are gone
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            for line in whole:
                number = _number(line)
                if number is not None:
                    yield number, line

    def close(self) -> None:
        """Let go of the log."""
        os.close(self._descriptor)


class LineFindings:
    """Finds faults in the lines of one log, in their order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._off_bus = OffBus()

    def take(self, line: bytes, number: int) -> tuple[KernelFinding | None, bool]:
        """Return the fault that a line tells of, and whether it only looks like one: the kernel did not write it.

        Cost: a microsecond for a line without one of the words that faults have.
        """
        if HINTS.search(line) is None:
            return None, False
        parsed = parse_line(line.decode("utf-8", "replace"))
        if parsed is None:
            return None, False
        if not parsed.ours:
            return None, kernel_event(KernelLine(text=parsed.text)) is not None
        event = self._off_bus.address(parsed, kernel_event(parsed))
        return (
            KernelFinding(event=event, file=self._name, number=number) if event is not None else None
        ), False


def _number(line: bytes) -> int | None:
    """Return the number of a record by its heading ``6,1234,56789,-;``; None for a line that begins none."""
    parts = line.split(b",", 3)
    if len(parts) < 4 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[1])
