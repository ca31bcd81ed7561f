"""The lines of a trace file, plain or packed with xz or gzip.

Owns: opening, unpacking and decoding; refusing what is no text. Must not know: what the lines say.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from airyard.sim.trace.refusal import Place, refused

LONGEST_LINE = 1 << 20
_XZ = b"\xfd7zXZ\x00"
_GZIP = b"\x1f\x8b"
_DAMAGED = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their ends; bytes that are no UTF-8 come as ``\\xNN``.

    Packed files are known by their first bytes. Memory: one line.
    Raises: UserError for a file that cannot be read, is damaged, or is no text.
    """
    try:
        with path.open("rb") as file:
            yield from _decoded(path, file)
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"cannot be read ({reason})"
        raise refused(Place(source=str(path)), problem, fix="Name a file that can be read.") from error


def _decoded(path: Path, file: IO[bytes]) -> Iterator[str]:
    place = Place(source=str(path))
    with closing(_unpacked(path, file)) as stream:
        number = 0
        while True:
            number += 1
            try:
                line = stream.readline(LONGEST_LINE)
            except _DAMAGED as error:
                problem = f"is damaged: unpacking stopped after line {number - 1} ({str(error) or 'it ends too early'})"
                raise refused(place, problem, fix="Copy or pack the file anew.") from error
            if not line:
                return
            yield _text(Place(source=str(path), line=number), line)


def _unpacked(path: Path, file: IO[bytes]) -> IO[bytes]:
    head = file.read(len(_XZ))
    file.seek(0)
    if head == _XZ:
        return lzma.open(file)
    if head.startswith(_GZIP):
        return cast(IO[bytes], gzip.open(file))
    if path.suffix in (".xz", ".gz"):
        problem = f"is no {path.suffix[1:]} file: its first bytes are {head!r}"
        raise refused(
            Place(source=str(path)), problem, fix="Pack the file anew, or name it without the suffix."
        )
    return file


def _text(place: Place, line: bytes) -> str:
    if b"\0" in line or (len(line) >= LONGEST_LINE and not line.endswith(b"\n")):
        what = "a NUL byte" if b"\0" in line else f"a line over {LONGEST_LINE >> 20} MiB"
        fix = "Give a text file in UTF-8, plain or packed with xz or gzip."
        raise refused(place, f"is no text: it has {what}", fix=fix)
    return line.decode("utf-8-sig" if place.line == 1 else "utf-8", "backslashreplace").rstrip("\r\n")
