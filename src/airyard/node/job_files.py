"""Files that belong to a member's own account, handled by a process that may do anything.

Owns: making, giving away, reading and removing them without being led astray. Must not know: what they are for.
Standard library only.

A job may put into its folders what it likes, at any moment: links to other people's files, pipes that block a reader,
trees deeper than any stack. So no link is followed here, nothing is opened by a path through a job's folder, and what
is read is a regular file of bounded size.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from airyard.node.identity import Identity

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PASSAGE = 0o711
"""The mode of our folders that others pass on the way to their own: names in there must be known."""
USERS = "users"
"""The folder of a node's folder in which each account has one of its own, for its environments."""
_OURS = ("code", "envs")
"""Folders of a node's folder that are made when first needed, maybe after the way is open."""


def open_way(home: Path, node_folder: Path, run: Path) -> None:
    """Let other accounts pass to their own folders below attempts and ``run``, and to nothing else. Raises: OSError.

    A folder that becomes passable for the first time has its other entries closed before: they relied on it. Those of
    the node's folder are closed each time, and the caches are made here, for they may come later. ``run`` is made when
    it is not there. The folder of an attempt stays closed: who made it opens it, when all in it is ready.
    """
    users = node_folder / USERS
    for each in (node_folder / "attempts", run.parent, users):
        each.mkdir(mode=0o700, exist_ok=True)
    for name in _OURS:
        (node_folder / name).mkdir(mode=0o700, exist_ok=True)
    lock = os.open(node_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # From below, so that nothing is passable before what lies in it is closed.
        for each in (users, run.parent, node_folder / "attempts"):
            _open_passage(each, but=())
        # Closed though it is passable already: something may have been made in it since.
        _close_entries(node_folder, but=("attempts", run.parent.name, USERS))
        node_folder.chmod(PASSAGE)
        _open_passage(home, but=(node_folder.name,))
        run.mkdir(mode=0o700, exist_ok=True)
        run.chmod(PASSAGE)
    finally:
        os.close(lock)


def _open_passage(folder: Path, *, but: tuple[str, ...]) -> None:
    if stat.S_IMODE(folder.stat().st_mode) == PASSAGE:
        return
    _close_entries(folder, but=but)
    folder.chmod(PASSAGE)


def _close_entries(folder: Path, *, but: tuple[str, ...]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in but or entry.is_symlink():
                continue
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                if mode & 0o077:
                    os.chmod(entry.path, mode & 0o700)


def make_folder(path: Path, owner: Identity | None) -> None:
    """Make a folder, or take the one that is there; with an owner it is that account's alone. Raises: OSError.

    The folder above must be ours. A link that stands in its place is refused.
    """
    if owner is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    handle = os.open(path, _FOLDER)
    try:
        os.fchmod(handle, 0o700)
        os.fchown(handle, owner.uid, owner.gid)
    finally:
        os.close(handle)


def give_file(path: Path, owner: Identity | None) -> None:
    """Give a file in a folder of ours to an account, for it alone. Raises: OSError."""
    if owner is None:
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) & 0o700)
        os.fchown(handle, owner.uid, owner.gid)
    finally:
        os.close(handle)


def write_file(path: Path, text: str, owner: Identity | None) -> None:
    """Write a file into a folder of ours, with an owner for that account alone. Raises: OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        if owner is not None:
            os.fchown(handle, owner.uid, owner.gid)
        stream.write(text)


def give_tree(top: Path, owner: Identity) -> None:
    """Give a tree that we have just made to an account; its top last, so that nobody is in it meanwhile.

    No file of it may have another name elsewhere. Raises: OSError. Cost: one call a file.
    """
    os.chmod(top, 0o700)
    for _, folders, files, handle in os.fwalk(top, topdown=False, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, owner.uid, owner.gid, dir_fd=handle, follow_symlinks=False)
    make_folder(top, owner)


def read_small(
    path: Path, owner: Identity | None, *, limit_bytes: int
) -> tuple[os.stat_result, bytes] | None:
    """Return a file of ``owner`` (None: of anybody) that it may have written in this moment; None for anything else.

    Only its folder may be the job's, not those above. Never blocks. Raises: OSError when it is not there.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit_bytes:
            return None
        if owner is not None and found.st_uid != owner.uid:
            return None  # a second name of somebody else's file
        return found, os.read(handle, limit_bytes)
    finally:
        os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a folder, whatever lies in it and however deep. Missing is fine, and what cannot go stays."""
    if os.geteuid() != 0:
        if path.is_dir():
            shutil.rmtree(path, onerror=_make_writable)
        return
    # By handles, so that no link leads elsewhere; but it recurses, and a job may have made a tree to exhaust that.
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            _flatten_away(path)


def _make_writable(function: Callable[[str], object], name: str, _: object) -> None:
    """Give a folder back the rights that its owner, whom we run as, took away."""
    with contextlib.suppress(OSError):
        for each in (os.path.dirname(name), name):
            if not os.path.islink(each):
                os.chmod(each, 0o700)
        function(name)


def _flatten_away(path: Path) -> None:
    """Move a tree's folders, one after another, into one of ours, and empty each there.

    Few descriptors and no recursion. Who still has a handle in there can make files, but lead us nowhere: what is
    opened is no link, and each step is relative to an open folder. Raises: OSError.
    """
    above = os.open(path.parent, _FOLDER)
    try:
        trash = f"trash-{os.getpid()}-{os.stat(path.name, dir_fd=above, follow_symlinks=False).st_ino}"
        os.mkdir(trash, mode=0o700, dir_fd=above)
        pile = os.open(trash, _FOLDER, dir_fd=above)
        try:
            os.rename(path.name, "0", src_dir_fd=above, dst_dir_fd=pile)
            _empty(pile)
        finally:
            os.close(pile)
            with contextlib.suppress(OSError):
                os.rmdir(trash, dir_fd=above)
    finally:
        os.close(above)


def _empty(pile: int) -> None:
    waiting, made = ["0"], 0
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            folder = os.open(name, _FOLDER, dir_fd=pile)
            try:
                for entry in _names(folder):
                    try:
                        os.unlink(entry, dir_fd=folder)
                    except IsADirectoryError:
                        made += 1
                        os.rename(entry, str(made), src_dir_fd=folder, dst_dir_fd=pile)
                        waiting.append(str(made))
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=pile)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
