"""Makes a member ready to start: its folders, its code, its environment, its cage.

Owns: the order of these steps, their times, what each failure means.
Must not know: the machine's phases, the command's variables, how trees are built or cached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.node.containment import Cage
from airyard.node.exit_record import AttemptFolder
from airyard.node.launch import Places
from airyard.node.runner_http import Channel


class PreparationError(Exception):
    """The member cannot be made ready; ``cause`` says whose matter that is."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message


@dataclass(slots=True, kw_only=True)
class Workbench:
    """A member that is ready to start."""

    places: Places
    cage: Cage
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the environment sets; ``PATH`` is its folders only, to be put first."""
    enter_view: Callable[[], None] | None = None
    environment_ms: int = 0
    code_ms: int = 0
    environment_hit: bool = True
    closers: list[Callable[[], None]] = field(default_factory=list)

    def before_exec(self) -> None:
        """For the forked child: into the cage, then into the environment's view."""
        self.cage.enter_self()
        if self.enter_view is not None:
            self.enter_view()

    def close(self) -> None:
        """Remove everything that the attempt had for itself. May be called twice."""
        self.cage.remove()
        while self.closers:
            with contextlib.suppress(OSError):
                self.closers.pop()()


class Preparation:
    """The steps of one member, run once on a thread of its own; may be interrupted from another."""

    def __init__(
        self,
        *,
        order: Mapping[str, Any],
        folder: AttemptFolder,
        node_folder: Path,
        channel: Channel,
        note: Callable[[str], None],
        progress: Callable[[str, str], None],
    ) -> None:
        self._order = order
        self._folder = folder
        self._node_folder = node_folder
        self._channel = channel
        self._note = note
        self._progress = progress
        self._interrupted = threading.Event()
        self.bench: Workbench | None = None
        """What there is so far; after a failure it is still to be closed."""

    def interrupt(self) -> None:
        """Give up soon; ``run`` then raises."""
        self._interrupted.set()

    def run(self, cage: Cage) -> Workbench:
        """Do all steps. Raises: PreparationError."""
        try:
            return self._steps(cage)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise PreparationError("STORAGE", f"the node's disk is full: {error}") from error
            raise

    def _steps(self, cage: Cage) -> Workbench:
        self.bench = bench = Workbench(places=self._places(), cage=cage)
        bench.closers.append(self._remove_folders)
        self._make_folders(bench.places)
        return bench

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise PreparationError("CANCELLED", "the preparation was interrupted")

    def _places(self) -> Places:
        base = self._folder.path
        run = self._node_folder / "runs" / str(self._order["run_id"])
        return Places(
            work=base / "work",
            code=None,
            control=self._folder.control,
            stop_file=self._folder.stop_file,
            acknowledgement_file=self._folder.acknowledgement_file,
            checkpoints=run / "checkpoints",
            output=run / "output",
            scratch=base / "scratch",
            temporary=base / "tmp",
        )

    def _make_folders(self, places: Places) -> None:
        for path in (
            places.work, places.control, places.checkpoints, places.output, places.scratch, places.temporary,
        ):  # fmt: skip
            path.mkdir(parents=True, exist_ok=True)

    def _remove_folders(self) -> None:
        for name in ("work", "code", "env", "tmp", "scratch", "control"):
            remove_tree(self._folder.path / name)


def remove_tree(path: Path) -> None:
    """Remove a folder, also one whose owner took its own rights away. Missing is fine."""

    def make_writable(function: Callable[[str], object], name: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            os.chmod(name, 0o700)
            function(name)

    if path.is_dir():
        shutil.rmtree(path, onerror=make_writable)
