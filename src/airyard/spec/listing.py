"""Which files of a folder are the code: git's own answer where there is git.

Owns: ignore rules at every level, nested repositories, what is never sent.
Must not know: contents, hashes, archives.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from airyard.spec.git_command import GitFailed, git, has_git

NEVER_SENT = frozenset({".git", "__pycache__", ".DS_Store"})
"""Left out everywhere; so are AppleDouble files (``._name``)."""


def list_files(root: Path, include_paths: tuple[str, ...] = (), *, repository: bool) -> list[str]:
    """Return the files and links below ``root``, relative, with ``/``, sorted; folders are implied.

    ``repository`` is the answer of `in_repository`.
    A git repository gives tracked and untracked files less what it ignores; a plain folder gives its files less
    what ``.gitignore`` files in it name (without git: all of them).
    """
    wanted = tuple(os.path.normpath(path) for path in include_paths)
    paths = {
        path
        for path in _files(root, repository=repository)
        if _sendable(path) and (not wanted or _included(path, wanted)) and os.path.lexists(root / path)
    }
    return sorted(paths)


def in_repository(folder: Path) -> bool:
    """True when the folder lies in a git work tree that git is willing to read, and is not ignored by it."""
    if not has_git():
        return False
    try:
        answer = git(folder, "rev-parse", "--is-inside-work-tree", "--show-prefix")
    except GitFailed:
        return False
    inside, _, prefix = answer.partition(b"\n")
    at_the_top = not prefix.strip()
    return inside == b"true" and (at_the_top or not _ignored(folder))


def _ignored(folder: Path) -> bool:
    """True for a folder that an outer repository ignores: its files are code all the same."""
    try:
        git(folder, "check-ignore", "-q", ".")
    except GitFailed:
        return False
    return True


def _files(root: Path, *, repository: bool) -> Iterator[str]:
    if repository:
        yield from _listed(root, ("-co", "--exclude-standard"), None)
    elif has_git():
        with tempfile.TemporaryDirectory(prefix="airyard-list-") as scratch:
            empty = Path(scratch) / "git"
            git(Path(scratch), "init", "-q", "--bare", str(empty))
            yield from _listed(root, ("-o", "--exclude-per-directory=.gitignore"), empty)
    else:
        yield from _walked(root)


def _listed(root: Path, options: tuple[str, ...], git_dir: Path | None) -> Iterator[str]:
    output = git(root, "ls-files", "-z", *options, git_dir=git_dir)
    for item in output.split(b"\0"):
        path = os.fsdecode(item)
        if not path:
            continue
        below = root / path
        if below.is_dir() and not below.is_symlink():  # a submodule, or a repository that is not one
            yield from (
                f"{path.rstrip('/')}/{inner}" for inner in _files(below, repository=in_repository(below))
            )
        else:
            yield path


def _walked(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in NEVER_SENT and name not in links]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(folder, name), root)


def _sendable(path: str) -> bool:
    parts = path.split("/")
    return not any(part in NEVER_SENT for part in parts) and not parts[-1].startswith("._")


def _included(path: str, wanted: tuple[str, ...]) -> bool:
    return any(item == "." or path == item or path.startswith(item + "/") for item in wanted)
