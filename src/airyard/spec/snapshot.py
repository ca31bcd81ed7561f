"""A code snapshot: the files of a `CodeSource`, named by the hash of their tree, packed as tar.gz.

Owns: the two ways to read code (working tree, git archive), limits, links, the deterministic archive.
Must not know: the server, uploads, the workload.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from airyard.core.code_tree import EXECUTABLE_MODE, FILE_MODE, SYMLINK_MODE, TreeEntry, tree_hash
from airyard.core.errors import Conflict, UserError
from airyard.core.workload import CodeReference, GitState
from airyard.spec.code_source import CodeSource
from airyard.spec.git_command import LIST_LIMIT_S, GitFailed, git, git_stream
from airyard.spec.listing import in_repository, list_files
from airyard.spec.provenance import Provenance, is_dirty, pinned_provenance, working_tree_provenance
from airyard.spec.secret_files import HEAD_BYTES, why_secret

DEFAULT_LIMIT_BYTES = 1 << 30
_CHUNK = 1 << 20
_MTIME = 315532800
"""1980-01-01: one time for all files, and the first that zip archives (wheels) can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file or link as it is read; ``read`` is None for a link, whose target is ``target``."""

    path: str
    """Relative to the root of the source."""
    mode: int
    size_bytes: int
    target: str = ""


Reader = Callable[[], Iterator[tuple[SourceFile, IO[bytes] | None]]]
"""Goes through all files once, in an order that does not change; each stream is valid until the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A tree of code, hashed and ready to be packed as often as asked."""

    tree_hash: str
    directory_name: str
    size_bytes: int
    file_count: int
    git: GitState | None
    diff: bytes | None
    """Uncommitted changes of tracked files as a patch in UTF-8, at most 1 MiB; ``git.diff_hash`` is its hash."""
    _read: Reader = field(repr=False, compare=False)

    def reference(self) -> CodeReference:
        """Return what a workload says about its code."""
        return CodeReference(
            tree_hash=self.tree_hash,
            directory_name=self.directory_name,
            size_bytes=self.size_bytes,
            file_count=self.file_count,
            git=self.git,
        )

    def write_tar(self, out: IO[bytes]) -> None:
        """Write the tar.gz: one top folder, fixed times and owners; packing twice gives the same bytes.

        Raises: Conflict when the files changed since they were hashed.
        Cost: one pass over the files, 1 MiB of memory.
        """
        entries = []
        with (
            gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file, stream in self._read():
                path = f"{self.directory_name}/{file.path}"
                info = _tar_info(path, file)
                if stream is None:
                    archive.addfile(info)
                    entries.append(_link_entry(path, file))
                else:
                    hashed = _Hashed(stream)
                    try:
                        archive.addfile(info, hashed)
                    except OSError as error:
                        raise _changed(self.directory_name, f"{file.path}: {error}") from error
                    entries.append(TreeEntry(path=path, mode=file.mode, digest=hashed.hexdigest()))
        if tree_hash(entries) != self.tree_hash:
            raise _changed(self.directory_name, "its hash is another one now")


def pack(
    source: CodeSource, *, allow_secrets: bool = False, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Snapshot:
    """Hash the code of a source and return its snapshot.

    Raises: UserError for a dirty tree under a branch pin, an unknown commit, files that look like secrets,
    links that leave the folder, an empty or too large tree. Cost: reads every file once.
    """
    directory = source.root.resolve().name if source.root.name in ("", "..") else source.root.name
    if not directory:
        raise UserError("the code folder cannot be /", code="INVALID_CODE", fix="name a folder in root_path")
    read: Reader
    provenance: Provenance | None
    if source.pinned:
        read, provenance = _pinned_reader(source)
    else:
        repository = in_repository(source.root)
        paths = list_files(source.root, source.include_paths, repository=repository)
        read = _TreeReader(root=source.root, paths=tuple(paths))
        provenance = working_tree_provenance(source) if repository else None
    scan = _Scan(directory=directory, limit_bytes=limit_bytes)
    for file, stream in read():
        scan.add(file, stream)
    scan.judge(source, allow_secrets=allow_secrets)
    return Snapshot(
        tree_hash=tree_hash(scan.entries),
        directory_name=directory,
        size_bytes=scan.size_bytes,
        file_count=len(scan.entries),
        git=provenance.state if provenance else None,
        diff=provenance.diff if provenance else None,
        _read=read,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TreeReader:
    """Reads files where they lie."""

    root: Path
    paths: tuple[str, ...]

    def __call__(self) -> Iterator[tuple[SourceFile, IO[bytes] | None]]:
        for path in self.paths:
            full = self.root / path
            try:
                status = os.lstat(full)
                if stat.S_ISLNK(status.st_mode):
                    target = os.readlink(full)
                    yield SourceFile(path=path, mode=SYMLINK_MODE, size_bytes=0, target=target), None
                elif stat.S_ISREG(status.st_mode):
                    with open(full, "rb") as stream:
                        yield _source_file(path, status.st_mode, os.fstat(stream.fileno()).st_size), stream
            except PermissionError:
                raise UserError(
                    f"{full} cannot be read: permission denied",
                    code="UNREADABLE_CODE",
                    fix="make it readable, or name it in .gitignore",
                ) from None
            except FileNotFoundError:
                raise _changed(self.root.name, f"{path} is gone") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArchiveReader:
    """Reads files of a commit, through ``git archive``."""

    root: Path
    commit: str
    paths: tuple[str, ...]

    def __call__(self) -> Iterator[tuple[SourceFile, IO[bytes] | None]]:
        with self._archive() as archive:
            for info in archive:
                if info.issym():
                    target = info.linkname
                    yield SourceFile(path=info.name, mode=SYMLINK_MODE, size_bytes=0, target=target), None
                elif info.isfile():
                    yield _source_file(info.name, info.mode, info.size), archive.extractfile(info)

    @contextmanager
    def _archive(self) -> Iterator[tarfile.TarFile]:
        arguments = ("--literal-pathspecs", "archive", "--format=tar", self.commit, "--", *self.paths)
        try:
            with git_stream(self.root, *arguments) as stream:
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    yield archive
        except GitFailed as error:
            raise UserError(
                f"commit {self.commit[:12]} cannot be packed: {error}",
                code="INVALID_CODE",
                fix="check include_paths: each must exist at that commit",
            ) from None


def _pinned_reader(source: CodeSource) -> tuple[Reader, Provenance]:
    """Resolve the pin. Raises: UserError when it does not exist, or a branch is pinned under changes."""
    commit = _resolve_commit(source)
    paths = source.include_paths or (".",)
    if source.branch is not None:
        try:
            dirty = is_dirty(source.root, paths, limit_s=LIST_LIMIT_S)
        except GitFailed as error:
            raise UserError(f"{source.root}: {error}", code="INVALID_CODE") from None
        if dirty:
            raise UserError(
                f"git.branch pins {source.branch}, but {source.root} has changes that are not committed",
                code="DIRTY_TREE",
                fix="commit or stash them, pin a commit to leave them out, or drop the pin to send them",
            )
    reader = _ArchiveReader(root=source.root, commit=commit, paths=source.include_paths or (".",))
    return reader, pinned_provenance(source, commit)


def _resolve_commit(source: CodeSource) -> str:
    name = f"branch {source.branch}" if source.branch is not None else f"commit {source.commit}"
    revision = f"refs/heads/{source.branch}" if source.branch is not None else source.commit
    try:
        git(source.root, "rev-parse", "--is-inside-work-tree")
    except GitFailed as error:
        raise UserError(
            f"code_source pins {name}, but {source.root} is not in a git repository: {error}",
            code="NOT_A_REPOSITORY",
            fix="drop the git block to send the folder as it is",
        ) from None
    try:
        found = git(source.root, "rev-parse", "--verify", "-q", "--end-of-options", f"{revision}^{{commit}}")
    except GitFailed:
        raise UserError(
            f"{name} does not exist in the repository of {source.root}",
            code="NO_SUCH_COMMIT",
            fix="commits are never fetched for you: `git fetch` first, or name another",
        ) from None
    return found.decode().strip()


@dataclass(slots=True, kw_only=True)
class _Scan:
    """Hashes files as they come and collects everything wrong with them."""

    directory: str
    limit_bytes: int
    entries: list[TreeEntry] = field(default_factory=list)
    size_bytes: int = 0
    secrets: list[tuple[str, str]] = field(default_factory=list)
    escaping: list[tuple[str, str]] = field(default_factory=list)
    largest: list[tuple[int, str]] = field(default_factory=list)

    def add(self, file: SourceFile, stream: IO[bytes] | None) -> None:
        path = f"{self.directory}/{file.path}"
        if stream is None:
            if _escapes(file.path, file.target):
                self.escaping.append((file.path, file.target))
            self.entries.append(_link_entry(path, file))
            return
        self.size_bytes += file.size_bytes
        push = heapq.heappush if len(self.largest) < 10 else heapq.heappushpop
        push(self.largest, (file.size_bytes, file.path))
        if self.size_bytes > self.limit_bytes:
            return  # the answer is known; sizes are still summed for it
        digest = hashlib.sha256()
        head = stream.read(HEAD_BYTES)
        reason = why_secret(file.path, head)
        if reason is not None:
            self.secrets.append((file.path, reason))
        while head:
            digest.update(head)
            head = stream.read(_CHUNK)
        self.entries.append(TreeEntry(path=path, mode=file.mode, digest=digest.hexdigest()))

    def judge(self, source: CodeSource, *, allow_secrets: bool) -> None:
        """Raise the first of: too large, escaping links, secrets, nothing there."""
        if self.size_bytes > self.limit_bytes:
            raise self._too_large(source)
        if self.escaping:
            names = ", ".join(f"{path} → {target}" for path, target in self.escaping[:10])
            raise UserError(
                f"links of {source.root} lead out of it and would be broken on the node: {names}",
                code="LINK_LEAVES_CODE",
                fix="replace them by files or relative links inside the folder, or name them in .gitignore",
                details={"links": [{"path": path, "target": target} for path, target in self.escaping]},
            )
        if self.secrets and not allow_secrets:
            names = ", ".join(f"{path} ({reason})" for path, reason in self.secrets[:10])
            more = f" and {len(self.secrets) - 10} more" if len(self.secrets) > 10 else ""
            raise UserError(
                f"files of {source.root} look like secrets, so nothing was sent: {names}{more}",
                code="SECRET_IN_CODE",
                fix="name them in .gitignore and use `airyard secrets put`; --allow-secret-files sends them",
                details={"files": [{"path": path, "reason": reason} for path, reason in self.secrets]},
            )
        if not self.entries:
            raise UserError(
                f"nothing to send: {source.root} has no file that is not ignored",
                code="EMPTY_CODE",
                fix="check root_path, include_paths and .gitignore, or leave code_source out",
            )

    def _too_large(self, source: CodeSource) -> UserError:
        largest = sorted(self.largest, reverse=True)
        files = [{"path": path, "size_bytes": size} for size, path in largest]
        names = ", ".join(f"{path} ({_mib(size)})" for size, path in largest)
        return UserError(
            f"the code of {source.root} has {_mib(self.size_bytes)}; the limit is {_mib(self.limit_bytes)}. "
            f"Largest: {names}",
            code="CODE_TOO_LARGE",
            fix="name data and checkpoints in .gitignore, or send less with include_paths",
            details={"size_bytes": self.size_bytes, "limit_bytes": self.limit_bytes, "largest": files},
        )


class _Hashed:
    """A stream that hashes what is read through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        """Read as the stream does."""
        octets = self._stream.read(size)
        self._digest.update(octets)
        return octets

    def hexdigest(self) -> str:
        """Return the SHA-256 of everything read."""
        return self._digest.hexdigest()


def _source_file(path: str, mode: int, size: int) -> SourceFile:
    executable = bool(mode & stat.S_IXUSR)
    return SourceFile(path=path, mode=EXECUTABLE_MODE if executable else FILE_MODE, size_bytes=size)


def _link_entry(path: str, file: SourceFile) -> TreeEntry:
    digest = hashlib.sha256(os.fsencode(file.target)).hexdigest()
    return TreeEntry(path=path, mode=SYMLINK_MODE, digest=digest)


def _tar_info(path: str, file: SourceFile) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.mode, info.mtime, info.size = file.mode, _MTIME, file.size_bytes
    if file.mode == SYMLINK_MODE:
        info.type, info.linkname = tarfile.SYMTYPE, file.target
    return info


def _escapes(path: str, target: str) -> bool:
    """True when a link's target lies outside the tree; judged by names, as the node will see it."""
    if os.path.isabs(target):
        return True
    reached = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return reached == ".." or reached.startswith("../")


def _changed(directory: str, detail: str) -> Conflict:
    return Conflict(
        f"the code in {directory} changed while it was packed: {detail}",
        code="CODE_CHANGED",
        fix="run the command again",
    )


def _mib(size: int) -> str:
    return f"{size:,} bytes" if size < 1 << 20 else f"{size / (1 << 20):,.1f} MiB"
