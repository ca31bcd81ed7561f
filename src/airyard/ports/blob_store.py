"""Content-addressed blobs: code snapshots. Any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO, Protocol


class BlobStore(Protocol):
    """Blobs under a name that says what is in them; a blob never changes."""

    def exists(self, name: str) -> bool:
        """Return whether the blob is whole and there."""
        ...

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        """Store a blob durably (all or nothing) and return its bytes; storing it again is harmless.

        Raises: UserError for a bad name; Unavailable when the disk refuses.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading. Raises: NotFound."""
        ...

    def delete(self, name: str) -> None:
        """Remove a blob, if it is there."""
        ...

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, bytes, last use in ms) of every blob."""
        ...
