"""What the agent knows of the attempts on this machine, from their folders alone.

Owns: telling alive, exited and died apart; killing what a dead runner left; removing folders.
Must not know: sockets, the server, how runners are forked.

The lock in the folder is the proof: held means alive. A process id only says whom to watch and to kill.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import airyard
from airyard.core.versions import ATTEMPT_FOLDER
from airyard.node.containment import Containment
from airyard.node.exit_record import AttemptFolder, boot_id, start_ticks
from airyard.node.job_files import remove_tree

_LOCK_WAIT_S = 10.0
_LOCK_PAUSE_S = 0.005
_BOOT_SLACK_S = 1.0


class Seen(Enum):
    """What can be said of a runner."""

    ALIVE = "alive"
    EXITED = "exited"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt folder as last looked at."""

    key: str
    state: Seen
    node: str = ""
    devices: tuple[int, ...] = ()
    pid: int | None = None
    exit: dict[str, Any] | None = None
    cause: str | None = None
    detail: str = ""
    version: str = ""
    """The release that its runner is of; empty for one from before this was written down."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the ``hello`` answer."""
        return {
            "key": self.key,
            "state": self.state.value,
            "exit": self.exit,
            "cause": self.cause,
            "detail": self.detail,
            "version": self.version,
        }


class Attempts:
    """The attempt folders of one node folder."""

    def __init__(self, node_folder: Path, containment: Containment) -> None:
        self._root = node_folder / "attempts"
        self._containment = containment
        self._boot_id = boot_id()
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def folder(self, key: str) -> AttemptFolder:
        """Return the folder of a member. Raises: ValueError for a key that is none."""
        if not all(part.isascii() and part.isdigit() for part in key.split(".")) or key.count(".") != 2:
            raise ValueError(f"{key!r} is no member key")
        return AttemptFolder(self._root / key)

    def folder_keys(self) -> list[str]:
        """Return the keys of all folders."""
        return sorted(path.name for path in self._root.iterdir() if path.is_dir() and "." in path.name)

    def look(self, key: str) -> Attempt:
        """Say how the attempt is; kills what a dead runner left. Cost: up to seconds when there is much to kill."""
        folder = self.folder(key)
        runner = folder.runner() or {}
        seen = Attempt(
            key=key,
            state=Seen.ALIVE,
            node=str(runner.get("node") or ""),
            devices=tuple(runner.get("devices") or ()),
            pid=runner.get("pid"),
            version=str(runner.get("version") or ""),
        )
        if folder.is_locked():
            return seen
        # Without a runner.json (it is not written durably) the folder's age tells.
        same_boot = runner["boot_id"] == self._boot_id if "boot_id" in runner else not self._is_older(folder)
        if same_boot:
            self._kill_rest(runner)
        found = runner.get("format", ATTEMPT_FOLDER.oldest)
        if ATTEMPT_FOLDER.common(found, found) is None:
            detail = (
                f"its folder has form {found!r} (Airyard {seen.version or 'of another version'}); this agent (Airyard "
                f"{airyard.__version__}) reads {ATTEMPT_FOLDER}: how it ended cannot be said"
            )
            return replace(seen, state=Seen.DIED, cause="PLATFORM", detail=detail)
        record = folder.exit()
        if record is not None:
            return replace(seen, state=Seen.EXITED, exit=record)
        if not same_boot:
            detail = "the machine was restarted while the member ran"
            return replace(seen, state=Seen.DIED, cause="NODE", detail=detail)
        detail = "the runner died without an exit record; its processes were killed"
        return replace(seen, state=Seen.DIED, cause="PLATFORM", detail=detail)

    def watch(self, attempt: Attempt) -> int | None:
        """Return a descriptor that becomes readable when the runner ends; None when it has ended already."""
        if attempt.pid is None:
            return None
        try:
            fd = os.pidfd_open(attempt.pid)
        except OSError:
            return None
        runner = self.folder(attempt.key).runner() or {}
        # Between the look and now the id may have gone to another process; the descriptor cannot.
        if start_ticks(attempt.pid) != runner.get("start_ticks"):
            os.close(fd)
            return None
        return fd

    def kill(self, key: str) -> None:
        """Kill the runner, then its tree. The order matters: a runner would report the kill as a crash."""
        folder = self.folder(key)
        runner = folder.runner() or {}
        pid = runner.get("pid")
        if pid is not None and folder.is_locked() and start_ticks(pid) == runner.get("start_ticks"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _LOCK_WAIT_S
        while folder.is_locked() and time.monotonic() < deadline:
            time.sleep(_LOCK_PAUSE_S)
        self._kill_rest(runner)

    def forget(self, key: str) -> bool:
        """Remove the folder of a dead runner; False while it lives."""
        folder = self.folder(key)
        if folder.is_locked():
            return False
        if folder.path.exists():
            self._kill_rest(folder.runner() or {})
            remove_tree(folder.path)
        return True

    def members(self, key: str) -> set[int]:
        """Return the process ids of a live attempt, for telling ours from strangers on a device."""
        runner = self.folder(key).runner() or {}
        cage, cookie = runner.get("cage"), runner.get("cookie")
        if not cage or not cookie:
            return set()
        return self._containment.open(str(cage), cookie=str(cookie)).members()

    def _is_older(self, folder: AttemptFolder) -> bool:
        """True when the folder was made before this boot."""
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return folder.path.exists() and folder.path.stat().st_mtime < time.time() - up_s - _BOOT_SLACK_S

    def _kill_rest(self, runner: dict[str, Any]) -> None:
        cage, cookie = runner.get("cage"), runner.get("cookie")
        if cage and cookie:
            self._containment.open(str(cage), cookie=str(cookie)).remove()
