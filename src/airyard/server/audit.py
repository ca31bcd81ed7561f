"""The audit: a JSON line for every change and for every look at logs, outputs and secrets, refused ones too.

Owns: the lines, the files they lie in, their size and number. Must not know: what is allowed.
No line holds a body, a query or a header: secrets travel in these.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Thing, Verb

FILE_BYTES = 16 << 20
FILES = 8
"""So many files are kept: with the longest lines over 100,000 entries, usually half a million."""
NAME = "audit.jsonl"


@dataclass(slots=True)
class Note:
    """What a request turned out to be; filled in where that is found out."""

    principal: Principal | None = None
    verb: Verb | None = None
    thing: Thing | None = None
    object: str = ""
    wanted: bool = False


def note_of(scope: MutableMapping[str, Any]) -> Note | None:
    """Return the note that goes with a request."""
    found = scope.get("audit_note")
    return found if isinstance(found, Note) else None


class AuditLog:
    """Lines appended to ``<folder>/audit.jsonl``; a full file becomes ``.1`` and so on, the oldest goes. Any thread."""

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES, files: int = FILES) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / NAME
        self._file_bytes, self._files = file_bytes, files
        self._lock = threading.Lock()
        self._handle = self._open()

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line. Cost: one write, which waits for no disk."""
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
        data = text.encode("utf-8", "replace") + b"\n"
        with self._lock:
            if os.fstat(self._handle).st_size + len(data) > self._file_bytes:
                self._rotate()
            os.write(self._handle, data)

    def read(self, since_ms: int = 0) -> Iterator[bytes]:
        """Yield the lines of entries from ``since_ms`` on, oldest first; a line that a crash cut is left out."""
        with contextlib.ExitStack() as opened:
            with self._lock:  # so that no file is renamed between two
                paths = [path for path in (*reversed(self._older()), self._path) if path.exists()]
                files = [opened.enter_context(path.open("rb")) for path in paths]
            for file in files:
                yield from (found for found in file if _counts(found, since_ms))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            os.close(self._handle)

    def _open(self) -> int:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if _cut_short(self._path):
            os.write(handle, b"\n")
        return handle

    def _older(self) -> list[Path]:
        return [self._path.with_name(f"{NAME}.{number}") for number in range(1, self._files)]

    def _rotate(self) -> None:
        os.close(self._handle)
        names = [self._path, *self._older()]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                newer.replace(older)
        self._handle = self._open()


def _cut_short(path: Path) -> bool:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - 1, 0))
        return size > 0 and file.read(1) != b"\n"


def _counts(found: bytes, since_ms: int) -> bool:
    try:
        entry = json.loads(found)
    except ValueError:
        return False
    return isinstance(entry, dict) and int(entry.get("time_ms", 0)) >= since_ms


class AuditTrail:
    """Writes one line for each request that is to be audited, when its answer begins."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        note = scope["audit_note"] = Note()

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._settle(scope, note, int(message["status"]))
            await send(message)

        await self._app(scope, receive, send_noted)

    def _settle(self, scope: Scope, note: Note, status: int) -> None:
        refused = status in (401, 403) or (
            status == 404 and note.thing is not None and note.principal is not None
        )
        if note.wanted or refused:
            self._log.write(_entry(scope, note, status))


def line(**fields: object) -> dict[str, Any]:
    """Return an entry of now with these fields."""
    now_ms = time.time_ns() // 1_000_000
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ms // 1000))
    return {"time": f"{seconds}.{now_ms % 1000:03d}Z", "time_ms": now_ms, **fields}


def _entry(scope: Scope, note: Note, status: int) -> dict[str, Any]:
    who = note.principal
    client = scope.get("client")
    return line(
        principal=who.name if who is not None else None,
        kind=who.kind.value if who is not None else None,
        token_id=(who.token_id or None) if who is not None else None,
        attempt=str(who.member) if who is not None and who.member is not None else None,
        verb=note.verb.value if note.verb is not None else None,
        object=note.thing.value if note.thing is not None else None,
        name=note.object or None,
        outcome=_outcome(status),
        status=status,
        method=scope["method"],
        path=scope["path"][:500],
        request_id=scope.get("request_id"),
        address=client[0] if client else None,
    )


def _outcome(status: int) -> str:
    if status < 400:
        return "done"
    return "refused" if status in (401, 403, 404) else "failed"
