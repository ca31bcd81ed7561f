"""Unpacks code snapshots once per machine and gives each attempt its own writable copy.

Owns: what a snapshot archive may contain, the cache's folders, copying, eviction.
Must not know: how trees are hashed, where archives come from.

Folders: ``trees/<tree hash>/`` (``tree``, ``.complete``, ``.last_used``) and ``flocks/``. The mark holds the id of the
machine's boot and counts for that boot only, so no fsync is needed for a tree that one fetch replaces. A copy is
a clone of blocks where the file system can (xfs, btrfs), else plain; never a hard link, for code is edited in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import lzma
import os
import re
import shutil
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from airyard.core.errors import InvariantBroken, NotFound, UserError
from airyard.node.file_locks import Cancelled, FileLock, obtain

UNPACKED_LIMIT_BYTES = 16 * 1024**3
ENTRY_LIMIT = 1_000_000
_HASH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{7,127}")
_FICLONE = 0x40049409
_COPY_BYTES = 1024 * 1024


class SnapshotRefused(UserError):
    """The code archive is damaged, too large, or holds an entry that could leave its folder."""

    default_code = "CODE_SNAPSHOT_REFUSED"
    exit_code = 2


class CodeCache:
    """The code trees of one machine. Any number of processes may use one root at a time."""

    def __init__(self, root: Path, *, limit_bytes: int = UNPACKED_LIMIT_BYTES) -> None:
        """``limit_bytes`` bounds one unpacked tree."""
        self._root = root
        self._limit_bytes = limit_bytes

    def ensure(
        self,
        tree_hash: str,
        fetch: Callable[[BinaryIO], None],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Path:
        """Return the shared tree, calling ``fetch`` to write the archive (tar, compressed or not) if it is missing.

        However many ask at once, one fetches. Never write into the tree. Raises: SnapshotRefused, Cancelled,
        OSError, and what ``fetch`` raises.
        """
        folder = self._folder(tree_hash)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)  # everybody's code: whatever the umask
        lock = self._lock(tree_hash)
        try:
            obtain(
                lock,
                is_ready=lambda: _is_complete(folder),
                make=lambda: self._make(folder, fetch, should_stop),
                should_stop=should_stop,
            )
            (folder / ".last_used").touch()
        finally:
            lock.close()
        return folder / "tree"

    def checkout(self, path: Path, target: Path) -> None:
        """Copy a tree that ``ensure`` returned to ``target``, which must not exist.

        Raises: NotFound when it was evicted in between (ensure it again); OSError. Cost: one copy of all bytes,
        or one clone a file.
        """
        lock = self._lock(path.parent.name)
        try:
            if not lock.try_shared() or not _is_complete(path.parent):
                raise NotFound(f"The code tree {path.parent.name} is not in this machine's cache any more.")
            shutil.copytree(path, target, symlinks=True, copy_function=_clone)
        finally:
            lock.close()

    def evictable(self, *, older_than_seconds: float) -> list[Path]:
        """Return the folders of the trees that nobody used for so long."""
        found = []
        for mark in (self._root / "trees").glob("*/.complete"):
            used = mark.with_name(".last_used")
            if time.time() - (used if used.exists() else mark).stat().st_mtime > older_than_seconds:
                found.append(mark.parent)
        return found

    def evict(self, *, older_than_seconds: float) -> list[str]:
        """Remove the trees that nobody used for so long; return their hashes."""
        removed = []
        for folder in self.evictable(older_than_seconds=older_than_seconds):
            mark = folder / ".complete"
            lock = self._lock(mark.parent.name)
            if lock.try_exclusive():
                mark.unlink()
                shutil.rmtree(mark.parent, ignore_errors=True)
                removed.append(mark.parent.name)
            lock.close()
        return removed

    def _folder(self, tree_hash: str) -> Path:
        if not _HASH.fullmatch(tree_hash):
            raise InvariantBroken(f"{tree_hash!r} is no hash of a code tree.")
        return self._root / "trees" / tree_hash

    def _lock(self, tree_hash: str) -> FileLock:
        return FileLock(self._root / "flocks" / tree_hash)

    def _make(self, folder: Path, fetch: Callable[[BinaryIO], None], should_stop: Callable[[], bool]) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        (folder / "tree").mkdir(parents=True)
        try:
            with tempfile.TemporaryFile(dir=folder) as archive:
                fetch(archive)
                archive.seek(0)
                unpack(archive, folder / "tree", limit_bytes=self._limit_bytes, should_stop=should_stop)
            (folder / ".complete").write_text(_boot_id())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _is_complete(folder: Path) -> bool:
    try:
        return (folder / ".complete").read_text() == _boot_id()
    except FileNotFoundError:
        return False


def unpack(
    archive: BinaryIO,
    target: Path,
    *,
    limit_bytes: int = UNPACKED_LIMIT_BYTES,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Unpack a tar, compressed or not, into an empty folder.

    Only plain names below the folder, and only folders, files, hard links to earlier files (copied) and symbolic
    links. Symbolic links are made last, so nothing is ever written through one; where they point is the user's
    business. Of the modes, only "executable" is kept. Raises: SnapshotRefused, Cancelled, OSError.
    """
    links: list[tuple[Path, str]] = []
    left = limit_bytes
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as tar:
            for count, member in enumerate(tar):
                if should_stop():
                    raise Cancelled("Unpacking the code snapshot was cancelled.")
                left -= max(0, member.size)
                if left < 0 or count >= ENTRY_LIMIT:
                    raise SnapshotRefused(
                        f"The code snapshot unpacks to more than {limit_bytes} bytes or {ENTRY_LIMIT} entries.",
                        fix="Leave data and results out of code_source; keep them in a volume.",
                    )
                _unpack_member(tar, member, target, links)
        for path, points_to in links:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(points_to, path)
    except (tarfile.TarError, EOFError, UnicodeError, zlib.error, lzma.LZMAError) as error:
        raise SnapshotRefused(f"The code snapshot is no sound archive: {error}.") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise SnapshotRefused(f"Two entries of the code snapshot exclude each other: {error}.") from error


def _unpack_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, links: list[tuple[Path, str]]
) -> None:
    path = target.joinpath(*_parts(member.name, member))
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
    elif member.issym():
        links.append((path, member.linkname))
    elif member.isreg() or member.islnk():
        content: BinaryIO | None
        if member.islnk():
            source = target.joinpath(*_parts(member.linkname, member))
            if not source.is_file():
                raise SnapshotRefused(f"{member.name!r} in the code snapshot is a link to nothing.")
            content, mode = source.open("rb"), source.stat().st_mode
        else:
            content, mode = tar.extractfile(member), member.mode  # type: ignore[assignment]  # typeshed: IO[bytes]
        path.parent.mkdir(parents=True, exist_ok=True)
        assert content is not None
        with content, path.open("wb") as file:
            os.fchmod(file.fileno(), 0o755 if mode & stat.S_IXUSR else 0o644)
            shutil.copyfileobj(content, file, _COPY_BYTES)
    else:
        raise SnapshotRefused(
            f"{member.name!r} in the code snapshot is neither file, folder nor link.",
            fix="Leave devices, sockets and pipes out of code_source.",
        )


def _parts(name: str, member: tarfile.TarInfo) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SnapshotRefused(f"{member.name!r} in the code snapshot leads outside of its folder.")
    return parts


def _clone(source: str, target: str) -> str:
    """Copy one file with its mode and times, by reference where the file system can."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            shutil.copyfileobj(reading, writing, _COPY_BYTES)
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
    return target
