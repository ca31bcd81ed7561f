"""Environments of members that run as somebody else: built by that account, in a store of its own.

Owns: the child process that builds, what it is told and what it hands back. Must not know: how environments are made.

A dependency's build runs code that the user chose, and reading a requirement can show a file: neither may happen as
root. What the child hands back is only believed as far as the kernel vouches for it: a folder by its descriptor, which
must be the account's own. ``python -m airyard.node.user_environment FD`` is the child. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError
from airyard.node.environment import EnvironmentRequest, EnvironmentStore, disk_usage
from airyard.node.environment_view import prepare_view
from airyard.node.file_locks import Cancelled
from airyard.node.identity import Identity, become
from airyard.node.job_files import USERS
from airyard.node.user_module import add_user_module
from airyard.node.uv import DiskFull, DownloadFailed, ResolveFailed, disk_failure

_POLL_S = 0.1
_END_S = 5.0
_MAX_LINE = 1 << 20
_HANDLES = 2
_PROBLEMS: Mapping[str, type[AiryardError]] = {
    kind.__name__: kind for kind in (ResolveFailed, DownloadFailed, DiskFull, Cancelled)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an account's child is to build: an environment, and its view for one attempt."""

    environment: Mapping[str, Any]
    """As in a PREPARE order."""
    store: Path
    layer: Path | None
    """A folder of the account for what is added to an overlay; None: no overlay, ``view`` gets a tree of links."""
    view: Path
    """A folder of the account in which the tree of links is made."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The child's environment: index, proxy and CA settings among others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEnvironment:
    """An environment that is ready. Its two descriptors are this process's until ``release``."""

    tree: int
    """The shared tree, of the account: the lower layer of an overlay."""
    lock: int
    """Keeps the environment from eviction."""
    was_built: bool

    def release(self) -> None:
        """Allow eviction again."""
        for handle in (self.tree, self.lock):
            with contextlib.suppress(OSError):
                os.close(handle)


class ChildFailed(Exception):
    """The child did not do what it is there for; ``message`` says how."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def user_store(node_folder: Path, uid: int) -> Path:
    """Return the store of one account; the folder above it is that account's, and the one above that is ours."""
    return node_folder / USERS / str(uid) / "envs"


def ensure_as(
    identity: Identity,
    asked: Asked,
    *,
    enter: Callable[[], None],
    progress: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> UserEnvironment:
    """Have the account's child find or build the environment. ``enter`` is called in the child before it switches.

    Raises: as ``EnvironmentStore.ensure``; ChildFailed; OSError. Cost: that of an interpreter more.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = _start(identity, theirs, asked.variables, enter)
        theirs.close()
        try:
            ours.sendall(_line(_request(asked)))
            return _listen(ours, process, identity, asked, progress, should_stop)
        except (BrokenPipeError, ConnectionResetError):
            raise ChildFailed(f"the builder of {identity.name}'s environment ended at once") from None
        finally:
            ours.close()  # which tells it to give up
            _await_end(process)


def tidy_as(identity: Identity, store: Path, request: Mapping[str, Any]) -> dict[str, int]:
    """Have the account's child remove old environments of its store; return {count, bytes}. Raises: ChildFailed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            process = _start(identity, theirs, {"PATH": os.environ.get("PATH", "")}, lambda: None)
        except (OSError, subprocess.SubprocessError) as error:
            raise ChildFailed(f"{store} was not tidied: no process of {identity.name}: {error}") from error
        theirs.close()
        try:
            ours.sendall(_line({**request, "op": "tidy", "store": str(store)}))
            ours.settimeout(600)
            answer = json.loads(ours.makefile("rb").readline(_MAX_LINE) or b"{}")
            return {"count": int(answer["count"]), "bytes": int(answer["bytes"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ChildFailed(f"{store} was not tidied: {error!r}") from error
        finally:
            ours.close()
            _await_end(process)


def _request(asked: Asked) -> dict[str, Any]:
    return {
        "op": "ensure",
        "environment": dict(asked.environment),
        "store": str(asked.store),
        "layer": str(asked.layer) if asked.layer is not None else None,
        "view": str(asked.view),
    }


def _start(
    identity: Identity, channel: socket.socket, variables: Mapping[str, str], enter: Callable[[], None]
) -> subprocess.Popen[bytes]:
    def switch() -> None:
        enter()
        become(identity)

    return subprocess.Popen(
        [sys.executable, "-I", "-m", __name__, str(channel.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(channel.fileno(),),
        env=dict(variables),
        cwd="/",
        start_new_session=True,
        preexec_fn=switch,  # noqa: PLW1509  # the child only makes system calls before exec
    )


def _listen(
    channel: socket.socket,
    process: subprocess.Popen[bytes],
    identity: Identity,
    asked: Asked,
    progress: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> UserEnvironment:
    """Read the child's lines until its answer; what it sent along is closed unless it is good."""
    buffer, handles = b"", []
    try:
        while True:
            if should_stop():
                raise Cancelled("the environment was given up")
            if not select.select([channel], [], [], _POLL_S)[0]:
                continue
            data, sent, _, _ = socket.recv_fds(channel, 65536, _HANDLES)
            handles += sent
            if not data:
                raise ChildFailed(
                    f"the builder of {identity.name}'s environment ended with code {_await_end(process)}"
                )
            *lines, buffer = (buffer + data).split(b"\n")
            if len(buffer) > _MAX_LINE or len(handles) > _HANDLES:
                raise ChildFailed(f"the builder of {identity.name}'s environment said too much")
            for line in lines:
                answer = _answer(line)
                if "line" in answer:
                    progress(str(answer["line"])[:2000])
                elif "ready" in answer:
                    return _believed(identity, asked, handles, answer)
                else:
                    raise _problem(answer)
    except BaseException:
        for handle in handles:
            os.close(handle)
        raise


def _answer(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ChildFailed("the builder of the environment said what nobody understands")
    return found


def _believed(
    identity: Identity, asked: Asked, handles: list[int], answer: Mapping[str, Any]
) -> UserEnvironment:
    if len(handles) != _HANDLES:
        raise ChildFailed("the builder of the environment handed nothing over")
    tree, lock = handles
    found, ours = os.fstat(tree), os.stat(asked.store.parent.parent)
    # On another file system, one of the account's making perhaps, a mount could wait for ever.
    if not stat.S_ISDIR(found.st_mode) or (found.st_uid, found.st_dev) != (identity.uid, ours.st_dev):
        raise ChildFailed(f"the builder handed over what is no folder of {identity.name}")
    return UserEnvironment(tree=tree, lock=lock, was_built=bool(answer.get("was_built")))


def _problem(answer: Mapping[str, Any]) -> Exception:
    kind = _PROBLEMS.get(str(answer.get("problem")))
    message = str(answer.get("message"))[:_MAX_LINE]
    return kind(message) if kind is not None else ChildFailed(message)


def _await_end(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


# --- the child


def main() -> None:
    """Do what the one line on the channel asks, and say how it went."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    request = json.loads(channel.makefile("rb").readline(_MAX_LINE))
    with contextlib.suppress(BrokenPipeError):
        try:
            if request["op"] == "tidy":
                channel.sendall(_line(_tidy(request)))
            else:
                _ensure(channel, request)
        except AiryardError as error:
            channel.sendall(_line({"problem": type(error).__name__, "message": error.message}))
        except Exception as error:
            channel.sendall(_line({"problem": "", "message": f"{type(error).__name__}: {error}"}))


def _ensure(channel: socket.socket, request: Mapping[str, Any]) -> None:
    def is_given_up() -> bool:
        return bool(select.select([channel], [], [], 0)[0])  # nothing more is ever sent: it was closed

    def progress(line: str) -> None:
        channel.sendall(_line({"line": line}))

    store = EnvironmentStore(Path(request["store"]), inherited=os.environ)
    environment = store.ensure(
        EnvironmentRequest.from_order(request["environment"]), progress=progress, should_stop=is_given_up
    )
    try:
        if request["layer"] is not None:
            add_user_module(environment.path, Path(request["layer"]))
        else:
            view = prepare_view(environment.path, Path(request["view"]), overlay_works=False)
            add_user_module(environment.path, view.layer)
    except OSError as error:
        raise disk_failure(error) from error
    tree = os.open(environment.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    answer = _line({"ready": True, "was_built": environment.was_built})
    socket.send_fds(channel, [answer], [tree, environment.held.fd])


def _tidy(request: Mapping[str, Any]) -> dict[str, int]:
    root = Path(request["store"])
    store = EnvironmentStore(root, inherited=os.environ)
    limits = {
        "keep_bytes": int(request["keep_bytes"]),
        "older_than_seconds": float(request["older_than_s"]),
    }
    if request["dry_run"]:
        going = store.evictable(**limits)  # type: ignore[arg-type]  # the two have different types
        return {"count": len(going), "bytes": sum(disk_usage(folder) for folder in going)}
    before = disk_usage(root)
    removed = store.evict(**limits)  # type: ignore[arg-type]  # the two have different types
    return {"count": len(removed), "bytes": max(0, before - disk_usage(root))}


if __name__ == "__main__":
    main()
