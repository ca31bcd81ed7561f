"""Finds the logs that ``airyard triage`` is given, and reads them, several at a time where there is much to read.

Owns: names of files, kinds (a job's or a kernel's), compression. Must not know: what lines mean, printing.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Literal, cast

from airyard.core.errors import UserError
from airyard.core.triage import kernel_lines
from airyard.core.triage.job_lines import rank_of_file
from airyard.core.triage.reading import Findings, Reader

_KERNEL_LOG = re.compile(r"^(dmesg|kern|kmsg|journal|messages|syslog)", re.IGNORECASE)
_SURELY_KERNEL = re.compile(r"^(?:dmesg|(?:kern|kernel|kmsg)(?:\.(?:log|txt|gz|\d+))*$)", re.IGNORECASE)
"""Nobody calls a job's log so. Others of the names above are kernels' logs if a line of theirs begins as such lines do:
jobs write ``messages_rank0.log``, too."""
_PACKED: dict[bytes, Callable[[Path, Literal["rb"]], object]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\0": lzma.open,
    b"BZh": bz2.open,
}
"""By the first octets of a file: what opens it."""
_OF_CONTAINER = re.compile(r"\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] ")
_BLOCK = 4 << 20
_MUCH = 64 << 20
"""From so many octets on several processes read; below, starting them costs more than it saves."""
_LOOKED_AT = 8192
_NO_TEXT = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""Octets that logs hardly have: control characters but for white space, the bell, backspace and escape.
Of compressed data they are a tenth."""
_MOST_FILES = 10_000
_LEFT_OUT = ("EMPTY_LOG", "NOT_A_LOG")
_STDIN = Path("/dev/stdin")
"""What ``-`` names. It is read in this process only: others have none of it."""
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What PowerShell's ``>`` begins a file with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A log to be read. ``name`` is what a person called it."""

    path: Path
    name: str
    kernel: bool
    octets: int
    of_container: bool = False
    """It is called as a kernel's log, and begins as Kubernetes writes what a container printed."""


def logs_of(paths: Sequence[str], kernel: Sequence[str]) -> tuple[list[Log], list[str]]:
    """Return the logs below ``paths`` and the kernels' logs ``kernel``, and notes on what was left out.

    Of several files those that are empty or no text are left out.
    Raises: UserError for what is missing, unreadable, no log, or where nothing is left.
    """
    found: list[Log] = []
    notes: list[str] = []
    several = len(paths) + len(kernel) > 1
    for given, of_kernel in [*((given, None) for given in paths), *((given, True) for given in kernel)]:
        if not given:
            raise UserError(
                "one of the names is empty",
                code="LOG_NOT_FOUND",
                fix="Name a file or a folder; a variable of the shell that is not set gives such a name.",
            )
        path = _STDIN if given == "-" else Path(given)
        if path == _STDIN:
            found.append(_piped(given, kernel=bool(of_kernel)))
            continue
        if of_kernel is None and path.is_dir():
            _walk(path, found, notes)
            continue
        try:
            found.append(_log(path, given, kernel=of_kernel or _is_kernel(path.name), sure=bool(of_kernel)))
            notes += _read_otherwise(found[-1])
        except UserError as error:
            if not several or error.code not in _LEFT_OUT:
                raise
            notes.append(f"left out: {error.message}")
    unique = {os.path.realpath(log.path): log for log in found}
    if not unique:
        raise UserError(
            f"{', '.join(paths)} has no log: no file with text",
            code="NO_LOGS",
            fix="Name the files, a rank each or all in one, or the folder that has them.",
        )
    return list(unique.values()), notes


def _piped(name: str, *, kernel: bool) -> Log:
    """Return what others pipe in. Raises: UserError where nobody does."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise UserError(
            f"{name} is what others pipe in, and nobody does",
            code="LOG_NOT_FOUND",
            fix="As in `kubectl logs POD | airyard triage -`; or name a file or a folder.",
        )
    return Log(path=_STDIN, name=name, kernel=kernel, octets=0)


def _is_kernel(name: str) -> bool:
    return _KERNEL_LOG.match(name) is not None


def _has_headings(head: bytes) -> bool:
    text = head.decode("utf-16" if head.startswith(_UTF_16) else "utf-8", "replace")
    lines = (kernel_lines.parse_line(line) for line in text.splitlines())
    return any(line is not None and line.headed for line in lines)


def _read_otherwise(log: Log) -> list[str]:
    if log.of_container:
        return [
            f"{log.name} is a kernel's log by its name, and its lines begin as a container's output does: nothing in "
            "it was taken for the kernel's; take its heading off (cut -d' ' -f4-) if it is one"
        ]
    if log.kernel or not _is_kernel(log.path.name):
        return []
    return [
        f"{log.name} was read as a job's log: no line of it begins as a kernel's do; if it is one, say so by --kernel"
    ]


def _walk(folder: Path, found: list[Log], notes: list[str]) -> None:
    """Take all files with text below a folder; what is hidden, empty or no text is left out, with a note."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            path = Path(place, name)
            if path.is_fifo():  # nobody may ever write to it
                notes.append(f"left out: {path} is a pipe; name it to have it read")
                continue
            try:
                log = _log(path, str(path), kernel=_is_kernel(name))
            except UserError as error:
                notes.append(f"left out: {error.message}")
                continue
            found.append(log)
            notes += _read_otherwise(log)
            if len(found) > _MOST_FILES:
                raise UserError(
                    f"{folder} has more than {_MOST_FILES:,} files",
                    code="TOO_MANY_LOGS",
                    fix="Name the folder of one failed run.",
                )


def _log(path: Path, name: str, *, kernel: bool, sure: bool = False) -> Log:
    """Look at one file. ``sure``: a person says that it is a kernel's. Raises: UserError when it is no text."""
    try:
        if not path.is_file() and path.exists() and not path.is_fifo():
            raise UserError(f"{name} is no file", code="NOT_A_LOG", fix="Name a file or a folder of files.")
        octets = path.stat().st_size
        if path.is_fifo():
            return Log(path=path, name=name, kernel=kernel, octets=0)
        with _open(path) as stream:
            head = stream.read(_LOOKED_AT)
    except FileNotFoundError:
        raise UserError(
            f"there is no file {name}",
            code="LOG_NOT_FOUND",
            fix="Check the path; a run of the server goes by its number, its name, @last or tag:KEY=VALUE.",
        ) from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(
            f"{name} cannot be read: {getattr(error, 'strerror', None) or error}",
            code="LOG_NOT_READABLE",
            fix="Check its rights, and that it is whole.",
        ) from None
    if not head:
        raise UserError(
            f"{name} is empty", code="EMPTY_LOG", fix="Name the log of a process that wrote something."
        )
    if not head.startswith(_UTF_16) and len(_NO_TEXT.findall(head)) > max(1, len(head) // 25):
        raise UserError(
            f"{name} is no text",
            code="NOT_A_LOG",
            fix="Name logs; .gz, .xz and .bz2 are read too, other archives are not.",
        )
    of_container = kernel and _OF_CONTAINER.match(head.decode("utf-8", "replace")) is not None
    kernel = kernel and (sure or _SURELY_KERNEL.match(path.name) is not None or _has_headings(head))
    return Log(
        path=path, name=name, kernel=kernel and not of_container, octets=octets, of_container=of_container
    )


def _is_packed(path: Path) -> Callable[[Path, Literal["rb"]], object] | None:
    """Return what opens a packed file, by its first octets: rotated logs lose their ending. A pipe is read as it is."""
    if path == _STDIN or path.is_fifo():
        return None
    with open(path, "rb") as stream:
        head = stream.read(max(map(len, _PACKED)))
    return next((opens for mark, opens in _PACKED.items() if head.startswith(mark)), None)


def _open(path: Path) -> IO[bytes]:
    if path == _STDIN:
        return open(0, "rb", closefd=False)
    opens = _is_packed(path)
    return (
        cast(IO[bytes], opens(path, "rb")) if opens is not None else open(path, "rb")
    )  # the caller closes it


def read(logs: Sequence[Log]) -> tuple[Findings, list[str]]:
    """Read all logs; also returns notes on those that are damaged, of which the lines before are read.

    Raises: UserError where damaged ones have no whole line and there is nothing else, or nothing was piped in.

    Cost: one pass over each; memory does not grow with them. Much is read by as many processes as there are cores.
    """
    found, damaged = _read_all(logs)
    if not found.lines and not damaged:  # only what is piped in can be so
        names = ", ".join(log.name for log in logs)
        raise UserError(
            f"{names} had nothing to read", code="EMPTY_LOG", fix="Look at what the command before it says."
        )
    return found, damaged


def _read_all(logs: Sequence[Log]) -> tuple[Findings, list[str]]:
    cores = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(logs)
    )
    alone = cores < 2 or any(log.path == _STDIN for log in logs)
    if alone or sum(log.octets for log in logs) < _MUCH:
        return _merged(_read_one(log) for log in logs)
    # The largest first, so that no process is left alone with one at the end; findings keep the order of the logs.
    order = sorted(range(len(logs)), key=lambda place: -logs[place].octets)
    with ProcessPoolExecutor(cores) as pool:
        read_in_order = dict(zip(order, pool.map(_read_one, [logs[place] for place in order]), strict=True))
    return _merged(read_in_order[place] for place in range(len(logs)))


def _merged(parts: Iterable[tuple[Findings, str]]) -> tuple[Findings, list[str]]:
    found = Findings()
    notes = []
    for part, note in parts:
        found.merge(part)
        if note:
            notes.append(note)
    if notes and found.lines <= len(notes):  # of each the torn start of a line at most
        raise UserError(notes[0], code="LOG_NOT_READABLE", fix="Copy it again: it is damaged or was cut.")
    return found, notes


def _blocks(stream: IO[bytes], packed: bool) -> Iterator[bytes]:
    """Return a log's octets, as UTF-8 where it begins as UTF-16 does. Of what is packed each piece by itself:
    a damaged place takes none with it that could be read before.
    """
    take = cast(BufferedReader, stream).read1 if packed else stream.read
    block = take(_BLOCK)
    if block.startswith(_UTF_16):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        while block:
            yield decoder.decode(block).encode()
            block = take(_BLOCK)
    while block:
        yield block
        block = take(_BLOCK)


def _read_one(log: Log) -> tuple[Findings, str]:
    """Read one log; also returns a note where it is damaged."""
    reader = Reader(log.name, rank=None if log.kernel else rank_of_file(log.path.name), kernel=log.kernel)
    try:
        with _open(log.path) as stream:
            for block in _blocks(stream, _is_packed(log.path) is not None):
                reader.feed(block)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        found = reader.findings()
        why = getattr(error, "strerror", None) or error
        return found, f"{log.name} cannot be read to its end: {why}; of it was read: {found.lines:,} lines"
    return reader.findings(), ""
