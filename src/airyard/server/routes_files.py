"""What a run wrote to its output folder: listed and fetched.

Owns: the wire side and the guard that nothing outside the folder is reached. Must not know: who wrote it.
The run's own code made every name and link in there, so none is trusted: each part of a path is opened below the one
before it, and no symbolic link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse

from airyard.app.views import rfc3339
from airyard.core.errors import NotFound, UserError
from airyard.server.requests import PREFIX, Caller, Context, Ref, run_of

router = APIRouter(prefix=PREFIX, tags=["runs"])
MAX_LISTED = 10_000
_BLOCK_BYTES = 1 << 20


@router.get("/runs/{ref}/files")
async def run_files(context: Context, caller: Caller, ref: Ref, path: str = "") -> Response:
    """List a folder of the run's output (the top one without ``path``), or return the octets of a file."""
    run = await run_of(context, caller, ref)
    root = context.home / "node" / "runs" / str(run.run_id) / "output"
    return await run_in_threadpool(_answer, root, run.run_id, path)


def _answer(root: Path, run_id: int, path: str) -> Response:
    parts = _parts(path)
    if not parts and not root.is_dir():
        return JSONResponse({"run_id": run_id, "path": "", "files": []})
    handle = _open_below(root, run_id, parts)
    found = os.fstat(handle)
    if stat.S_ISDIR(found.st_mode):
        try:
            return JSONResponse({"run_id": run_id, "path": "/".join(parts), "files": _list(handle, parts)})
        finally:
            os.close(handle)
    return StreamingResponse(
        _octets(handle, found.st_size),
        media_type="application/octet-stream",
        headers={"content-length": str(found.st_size), "x-content-type-options": "nosniff"},
    )


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise UserError(f"{path!r} is not a path below the run's output folder", code="BAD_PATH")
    return parts


def _open_below(root: Path, run_id: int, parts: list[str]) -> int:
    """Open a file or folder below ``root`` without following a link. Raises: NotFound, UserError."""
    where = "/".join(parts)
    try:
        handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for part in parts:
            # Non-blocking: a pipe that the run left there must not hold a thread of the server.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            try:
                below = os.open(part, flags, dir_fd=handle)
            finally:
                os.close(handle)
            handle = below
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"run {run_id} has no output {where!r}", code="NO_SUCH_FILE") from None
    except OSError as error:
        raise UserError(f"{where!r} cannot be read: {error.strerror}", code="NOT_A_FILE") from error
    mode = os.fstat(handle).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(handle)
        raise UserError(f"{where!r} is neither a file nor a folder", code="NOT_A_FILE")
    return handle


def _list(handle: int, parts: list[str]) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    with os.scandir(handle) as entries:
        for entry in entries:
            if len(files) >= MAX_LISTED:
                break
            found = entry.stat(follow_symlinks=False)
            folder = stat.S_ISDIR(found.st_mode)
            if not folder and not stat.S_ISREG(found.st_mode):
                continue
            name = os.fsencode(entry.name).decode("utf-8", "replace")
            files.append(
                {
                    "path": "/".join([*parts, name]),
                    "kind": "folder" if folder else "file",
                    "bytes": None if folder else found.st_size,
                    "changed_at": rfc3339(int(found.st_mtime * 1000)),
                }
            )
    return sorted(files, key=lambda file: str(file["path"]))


def _octets(handle: int, size: int) -> Iterator[bytes]:
    """Yield exactly ``size`` octets, as announced, even of a file that grows meanwhile."""
    with os.fdopen(handle, "rb") as file:
        while size > 0 and (block := file.read(min(_BLOCK_BYTES, size))):
            size -= len(block)
            yield block
