"""The identity of a code snapshot: what its hash is made of.

Owns: the entries of a tree, their order, the hash that client, server and node compute alike.
Must not know: where the files lie, archives, git.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

FILE_MODE = 0o644
EXECUTABLE_MODE = 0o755
SYMLINK_MODE = 0o777


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """One file or symbolic link of the archive; folders exist through what is in them."""

    path: str
    """As in the archive: the top folder first, ``/`` between parts, undecodable bytes as surrogates."""
    mode: int
    """FILE_MODE, EXECUTABLE_MODE or SYMLINK_MODE; nothing else of a file's mode counts."""
    digest: str
    """SHA-256 (hex) of the content; of a link, of its target."""


def tree_hash(entries: Iterable[TreeEntry]) -> str:
    """Return the SHA-256 (hex) over the entries sorted by path: each as ``mode NUL path NUL digest NUL``."""
    total = hashlib.sha256(b"airyard code tree 1\0")
    for path, entry in sorted(((_octets(entry.path), entry) for entry in entries), key=lambda pair: pair[0]):
        total.update(b"%o\0%s\0%s\0" % (entry.mode, path, entry.digest.encode()))
    return total.hexdigest()


def _octets(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
