"""Checks a packed code snapshot: what its tree hashes to.

Owns: the reading of an archive without unpacking it. Must not know: blobs, HTTP, how archives are packed.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zlib
from typing import IO

from airyard.core.code_tree import EXECUTABLE_MODE, FILE_MODE, SYMLINK_MODE, TreeEntry, tree_hash
from airyard.core.errors import UserError

MAX_TREE_BYTES = 16 << 30
MAX_ENTRIES = 1_000_000
_BLOCK_BYTES = 1 << 20


def tree_hash_of(archive: IO[bytes]) -> str:
    """Return the hash of the tree in a ``tar.gz``, read from where the file stands.

    Raises: UserError (``BAD_ARCHIVE``) for anything but files and symbolic links below one folder, for the modes of
    which only two exist, and for a tree over 16 GiB. Cost: one pass; memory for the list of paths.
    """
    entries: list[TreeEntry] = []
    size = 0
    try:
        with tarfile.open(fileobj=archive, mode="r|gz") as tar:
            for info in tar:
                size += info.size
                if size > MAX_TREE_BYTES or len(entries) >= MAX_ENTRIES:
                    raise _bad(f"it holds more than {MAX_TREE_BYTES >> 30} GiB or {MAX_ENTRIES} files")
                entries.append(_entry(tar, info))
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise _bad(f"it cannot be read as tar.gz ({error})") from error
    if len({entry.path.split("/", 1)[0] for entry in entries}) != 1:
        raise _bad("its files do not lie below one top folder")
    return tree_hash(entries)


def _entry(tar: tarfile.TarFile, info: tarfile.TarInfo) -> TreeEntry:
    parts = info.name.split("/")
    if info.name.startswith("/") or len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        raise _bad(f"{info.name!r} is no path below its top folder")
    if info.issym():
        target = os.fsencode(info.linkname)
        return TreeEntry(path=info.name, mode=SYMLINK_MODE, digest=hashlib.sha256(target).hexdigest())
    if not info.isreg():
        raise _bad(f"{info.name!r} is neither a file nor a symbolic link")
    if info.mode not in (FILE_MODE, EXECUTABLE_MODE):
        raise _bad(f"{info.name!r} has mode {info.mode:o}; only 644 and 755 exist here")
    content = tar.extractfile(info)
    assert content is not None
    digest = hashlib.sha256()
    while block := content.read(_BLOCK_BYTES):
        digest.update(block)
    return TreeEntry(path=info.name, mode=info.mode, digest=digest.hexdigest())


def _bad(reason: str) -> UserError:
    return UserError(f"the code archive is refused: {reason}", code="BAD_ARCHIVE")
