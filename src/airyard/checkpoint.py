"""Checkpoints, seen from user code: acknowledge one, find the newest, notice that the run should stop.

Owns: the acknowledgement file, the record of it in the checkpoint folder, reading the stop file.
Must not know: anything else of Airyard. Each attempt gets a copy of this one file in its environment, so it imports the
standard library only, as little of it as it can, and runs on Python 3.8 and newer.

Outside of Airyard every function does nothing: ``saved`` returns False, ``latest`` None, ``stop_requested`` False.

Of a gang's processes one writes: the first on member 0 (``NODE_RANK`` 0 and ``LOCAL_RANK`` 0, where there is one). The
others may call ``saved`` too, and it does nothing.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import allocate_lock

# Read by type checkers alone: the module typing takes longer to import than everything here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_RECORD = ".airyard-latest.json"
"""Lies in the checkpoint folder, which all attempts of a run share; its path is relative to that folder."""
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_CANNOT_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EACCES, errno.EPERM, errno.ENOENT)
"""What file systems without fsync answer, files that may not be opened, and passing files of a folder in use."""

_lock = allocate_lock()
_newest: int | None = None
"""The last step that this process acknowledged."""
_stopping = False
"""A stop is never taken back, so it is looked for no more once it was seen."""


def saved(step: int, path: str | os.PathLike[str], *, rewind: bool = False, sync: bool = True) -> bool:
    """Tell Airyard that the whole gang can go on from the checkpoint of ``step`` at ``path``.

    Call it when the checkpoint is complete: after the last rank has written its part (a barrier), on every rank or on
    the first one. A relative ``path`` is relative to ``AIRYARD_CHECKPOINT_DIR``; it names a file or a folder.

    Returns True when this process wrote the acknowledgement; False on other ranks and outside of Airyard.

    A step below the one that this process acknowledged before is left out with a warning: checkpoints written in the
    background may finish in another order. ``rewind=True`` says that training went back on purpose.
    ``sync=False`` trusts that the data are on the disk already; else its files are flushed first, so that what is
    acknowledged also survives a power cut.

    Raises: ValueError for a negative step or a path outside of the checkpoint folder, FileNotFoundError when nothing is
    there, OSError when the checkpoint could not be flushed or noted beside it. A node that takes no acknowledgement is
    a warning. Cost: the flush, plus three small fsyncs.
    """
    acknowledgement = os.environ.get("AIRYARD_CHECKPOINT_ACK")
    folder = os.environ.get("AIRYARD_CHECKPOINT_DIR")
    if not acknowledgement or not folder or not _writes_here():
        return False
    global _newest
    with _lock:
        number = _checked_step(step)
        full = _checked_path(path, folder)
        if not rewind and _newest is not None and number < _newest:
            message = (
                f"the checkpoint of step {number} is not acknowledged, because that of step {_newest} already is; "
                "where training went back on purpose, say saved(..., rewind=True)"
            )
            _warn(message, above=3)
            return False
        root = os.path.realpath(folder)
        for each in _within(full, root) if sync else ():
            _sync(each)
        inside, now = os.path.relpath(full, root), time.time()
        _replace(os.path.join(root, _RECORD), {"step": number, "path": inside, "time": now})
        # The name of what lies in this folder comes to the disk with it, before it is acknowledged.
        _sync(root)
        try:
            _replace(acknowledgement, {"step": number, "path": full, "time": now})
        except OSError as error:
            # The checkpoint is safe, and `latest` finds it: no reason to end the training.
            _warn(f"the checkpoint of step {number} is saved, but not acknowledged: {error}", above=3)
            return False
        _newest = number
    return True


def latest() -> tuple[int, str] | None:
    """Return step and absolute path of the newest checkpoint that any attempt of this run acknowledged by ``saved``.

    None when there is none, when what it named is gone, and outside of Airyard. Every rank that sees the checkpoint
    folder gets the same answer.
    """
    folder = os.environ.get("AIRYARD_CHECKPOINT_DIR")
    if not folder:
        return None
    record = _read(os.path.join(folder, _RECORD))
    try:
        step, path = int(record["step"]), os.path.join(os.path.realpath(folder), record["path"])
    except (KeyError, TypeError, ValueError):
        return None
    return (step, path) if os.path.exists(path) else None


def stop_requested() -> bool:
    """True once this run should save and leave: it is preempted, cancelled, or out of time.

    The ranks of a gang may see it at slightly different moments: let them agree on the step after which they leave, or
    some will wait for others that are gone. Cost: one system call, a few microseconds.
    """
    global _stopping
    if not _stopping:
        stop_file = os.environ.get("AIRYARD_STOP_FILE")
        _stopping = bool(stop_file) and os.path.exists(stop_file or "")
    return _stopping


def seconds_left() -> float | None:
    """Return how long this process may still run after a stop was requested, 0 at least; None without a stop."""
    stop_file = os.environ.get("AIRYARD_STOP_FILE")
    request = _read(stop_file) if stop_file else {}
    deadline = request.get("deadline_unix")
    return max(0.0, deadline - time.time()) if isinstance(deadline, (int, float)) else None


def _writes_here() -> bool:
    if os.environ.get("NODE_RANK", "0") != "0":
        if os.environ.get("RANK") == "0":
            # The usual "if rank == 0" would then never reach the one process that writes.
            message = (
                "rank 0 does not run on the run's first node, whose first process alone acknowledges checkpoints: "
                "call airyard.checkpoint.saved on every rank, or start torchrun with --node_rank $NODE_RANK"
            )
            _warn(message, above=4)
        return False
    return all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)


def _warn(message: str, *, above: int) -> None:
    """Warn at the place that called ``saved``, so many frames up."""
    import warnings

    warnings.warn(message, RuntimeWarning, stacklevel=above)


def _checked_step(step: int) -> int:
    try:
        number = step.__index__()
    except AttributeError:
        raise TypeError(f"the step of a checkpoint is a whole number, not {step!r}") from None
    if number < 0:
        raise ValueError(f"the step of a checkpoint is at least 0, not {number}")
    return number


def _checked_path(path: str | os.PathLike[str], folder: str) -> str:
    """Return the absolute path, links resolved. Raises: ValueError, FileNotFoundError."""
    root = os.path.realpath(folder)
    given = os.fsdecode(path)
    full = os.path.realpath(os.path.join(root, given))
    if full == root or not full.startswith(root + os.sep):
        raise ValueError(
            f"{given!r} is not inside the checkpoint folder {folder!r}: later attempts of the run find only what lies "
            "there. Write checkpoints below the folder that AIRYARD_CHECKPOINT_DIR names."
        )
    if not os.path.exists(full):
        raise FileNotFoundError(
            errno.ENOENT,
            "nothing is there to acknowledge as a checkpoint; call saved() after writing it",
            full,
        )
    return full


def _sync(path: str) -> None:
    """Bring one file or folder to the disk. Raises: OSError when the disk failed or is full."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _within(path: str, root: str) -> Iterator[str]:
    """Yield the regular files of a checkpoint, then the folders that name them, up to ``root``, which is left out."""
    if os.path.isdir(path):
        for where, _, names in os.walk(path, topdown=False):
            yield from (
                each for each in (os.path.join(where, name) for name in names) if os.path.isfile(each)
            )
            yield where
    else:
        yield path
    above = os.path.dirname(path)
    while above != root:
        yield above
        above = os.path.dirname(above)


def _replace(path: str, value: dict[str, Any]) -> None:
    """Replace a file so that readers see the old or the new one, whole also after a power cut. Raises: OSError."""
    import json

    partial = f"{path}.{os.getpid()}.new"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", closefd=False) as stream:
            json.dump(value, stream)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(partial, path)


def _read(path: str) -> dict[str, Any]:
    """Return the object in a file; an empty one when there is none."""
    import json

    try:
        with open(path, encoding="utf-8") as stream:
            value = json.load(stream)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
