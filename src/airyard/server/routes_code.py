"""Code snapshots: is one there, and taking one in.

Owns: the checks on an upload. Must not know: how snapshots are packed or used. An archive is stored only after
its tree has been hashed and equals the name it was sent under.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Annotated

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from airyard.app.code_archive import tree_hash_of
from airyard.core.errors import NotFound, UserError
from airyard.server.context import ServerContext
from airyard.server.errors import TooLarge
from airyard.server.requests import PREFIX, Context
from airyard.wire.native import TreeHash

router = APIRouter(prefix=PREFIX, tags=["code"])
MAX_ARCHIVE_BYTES = 2 << 30
_IN_MEMORY_BYTES = 8 << 20
_BLOCK_BYTES = 1 << 20
Hash = Annotated[TreeHash, Path(description="SHA-256 of the tree, in hex.")]


@router.head("/code/{tree_hash}", status_code=204)
async def has_code(context: Context, tree_hash: Hash) -> Response:
    """Say whether the snapshot is there (204) or not (404)."""
    if not await run_in_threadpool(context.blobs.exists, tree_hash):
        raise NotFound(f"the server does not hold the code snapshot {tree_hash[:12]}", code="CODE_NOT_FOUND")
    return Response(status_code=204)


@router.put("/code/{tree_hash}", status_code=201)
async def put_code(context: Context, request: Request, tree_hash: Hash) -> Response:
    """Take in a ``tar.gz``; it must hash to the name it is sent under."""
    if await run_in_threadpool(context.blobs.exists, tree_hash):
        return Response(status_code=201)
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as archive:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_ARCHIVE_BYTES:
                raise TooLarge(f"a code archive may have {MAX_ARCHIVE_BYTES >> 20} MiB; this one has more")
            if size > _IN_MEMORY_BYTES:
                await run_in_threadpool(archive.write, chunk)
            else:
                archive.write(chunk)
        await run_in_threadpool(_store, context, tree_hash, archive)
    return Response(status_code=201)


def _store(context: ServerContext, tree_hash: str, archive: IO[bytes]) -> None:
    archive.seek(0)
    found = tree_hash_of(archive)
    if found != tree_hash:
        raise UserError(
            f"the archive sent as {tree_hash[:12]} holds the tree {found[:12]}",
            code="CODE_HASH_MISMATCH",
            details={"stated": tree_hash, "found": found},
            fix="pack the folder again; it may have changed while it was being read",
        )
    archive.seek(0)
    context.blobs.put(tree_hash, _blocks(archive))


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK_BYTES):
        yield block
