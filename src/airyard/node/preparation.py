"""Makes a member ready to start: its folders, its code, its environment, its cage.

Owns: the order of these steps, their times, what each failure means.
Must not know: the machine's phases, the command's variables, how trees are built or cached.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from airyard.core.errors import AiryardError, NotFound
from airyard.node import pool_commands
from airyard.node.code_cache import CodeCache, SnapshotRefused
from airyard.node.containment import Cage
from airyard.node.environment import EnvironmentRequest, EnvironmentStore
from airyard.node.environment_view import View, link_view, overlay_view, prepare_view
from airyard.node.exit_record import AttemptFolder
from airyard.node.file_locks import Cancelled
from airyard.node.identity import Identity, IdentityRefused, become, closed_folder, find_identity
from airyard.node.job_files import PASSAGE, give_tree, make_folder, open_way, remove_tree
from airyard.node.launch import Places, login
from airyard.node.memory_guard import shown
from airyard.node.pool_commands import PROLOG, PoolCommandFailed, PoolCommandInterrupted
from airyard.node.private_mounts import can_mount_shm, mount_shm
from airyard.node.runner_http import AttemptIsOver, Channel, Patience, Refused, ServerAway
from airyard.node.user_environment import Asked, ChildFailed, ensure_as, user_store
from airyard.node.user_module import add_user_module
from airyard.node.uv import DiskFull, DownloadFailed, ResolveFailed

_CHATTER = ("+ ", "Using ", "Activate with", "Creating virtual environment")
"""How uv's lines begin that nobody needs in a run's log; the lock of an environment lies beside it."""
_DOWNLOAD_TIMEOUT_S = 60.0
_OOM_SCORE = "500"
"""Of 1000; any process may make itself a likelier victim."""


class PreparationError(Exception):
    """The member cannot be made ready; ``cause`` says whose matter that is, ``permanent`` that it stays so."""

    def __init__(self, cause: str, message: str, *, permanent: bool = False, fault: str = "") -> None:
        """``fault``: what found the node unfit: a command of the pool, or ``preflight``."""
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.permanent = permanent
        self.fault = fault


@dataclass(slots=True, kw_only=True)
class Workbench:
    """A member that is ready to start."""

    places: Places
    cage: Cage
    identity: Identity | None = None
    """Whom the command runs as; None: as this process does."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the environment sets beside the PATH."""
    bin_folder: Path | None = None
    enter_view: Callable[[], None] | None = None
    limit_shm: Callable[[], None] | None = None
    environment_ms: int = 0
    code_ms: int = 0
    environment_hit: bool = True
    passed: tuple[str, ...] = ()
    """What its node has passed just now (``machine_events.Prepared``)."""
    measured: dict[str, Any] = field(default_factory=dict)
    """What its node measured when it passed, for comparing the fleet (``core/health/fleet_values``)."""
    closers: list[Callable[[], None]] = field(default_factory=list)

    def before_exec(self) -> None:
        """For the forked child: into the cage, first in line when memory runs out, into view and /dev/shm, and down.

        The account is the last: what comes before takes rights that are gone then.
        """
        self.cage.enter_self()
        # The kernel should rather kill a command than its runner, the agent or the server.
        with (
            contextlib.suppress(OSError),
            shown(),
            open("/proc/self/oom_score_adj", "w", encoding="ascii") as score,
        ):
            score.write(_OOM_SCORE)
        if self.enter_view is not None:
            self.enter_view()
        if self.limit_shm is not None:
            self.limit_shm()
        if self.identity is not None:
            become(self.identity)

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
        node: str,
        node_folder: Path,
        channel: Channel,
        overlay_works: bool | None,
        note: Callable[[str], None],
        progress: Callable[[str, str], None],
    ) -> None:
        self._order = order
        self._folder = folder
        self._node = node
        self._node_folder = node_folder
        self._channel = channel
        self._overlay_works = overlay_works
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
        except Cancelled as error:
            raise PreparationError("CANCELLED", error.message) from error
        except ResolveFailed as error:
            raise PreparationError("ENVIRONMENT", error.message, permanent=True) from error
        except DownloadFailed as error:
            raise PreparationError("ENVIRONMENT", error.message) from error
        except DiskFull as error:
            raise PreparationError("STORAGE", error.message) from error
        except SnapshotRefused as error:
            raise PreparationError("USER_CODE", error.message, permanent=True) from error
        except IdentityRefused as error:
            # Another machine may have the account; one that must not be had is had nowhere.
            cause = "ENVIRONMENT" if error.permanent else "NODE"
            raise PreparationError(cause, error.message, permanent=error.permanent) from error
        except ChildFailed as error:
            raise PreparationError("NODE", error.message) from error
        except AiryardError as error:
            raise PreparationError("PLATFORM", error.message) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise PreparationError("STORAGE", f"the node's disk is full: {error}") from error
            raise

    def _steps(self, cage: Cage) -> Workbench:
        self.bench = bench = Workbench(places=self._places(), cage=cage)
        bench.closers.append(self._remove_folders)
        bench.identity = self._find_identity()
        self._make_folders(bench.places, bench.identity)
        if self._order.get("problem"):
            # The server could not put the order together: a secret or an environment that is not there.
            raise PreparationError("ENVIRONMENT", str(self._order["problem"]), permanent=True)
        self._run_prolog()
        self._run_preflight(bench)
        self._limit_shm(bench)
        begun = time.monotonic()
        if self._order.get("code"):
            self._check_out_code(self._order["code"], bench.identity)
        if bench.identity is not None:
            self._folder.path.chmod(PASSAGE)  # only now: while the code was copied, others could have read it
        with_code = time.monotonic()
        if self._order.get("environment"):
            self._make_environment(bench, self._order["environment"])
        bench.code_ms = round((with_code - begun) * 1000)
        bench.environment_ms = round((time.monotonic() - with_code) * 1000)
        return bench

    def _run_prolog(self) -> None:
        try:
            pool_commands.run(PROLOG, self._order, note=self._note, should_stop=self._interrupted.is_set)
        except PoolCommandInterrupted:
            raise PreparationError("CANCELLED", "the preparation was interrupted") from None
        except PoolCommandFailed as failure:
            raise PreparationError("NODE", failure.message, fault=PROLOG) from failure

    def _run_preflight(self, bench: Workbench) -> None:
        if not self._order.get("preflight"):
            return
        # It loads a room that a runner does without where its node is not checked.
        from airyard.node import preflight

        places, who = bench.places, bench.identity
        try:
            bench.passed = preflight.run(
                self._order,
                node=self._node,
                node_folder=self._node_folder,
                note=self._note,
                should_stop=self._interrupted.is_set,
                writes=(places.checkpoints, places.output),
                account=(who.uid, who.gid, *who.groups) if who is not None else (),
                servers=self._channel.servers.urls,
                tell=bench.measured.update,
            )
        except preflight.PreflightInterrupted:
            raise PreparationError("CANCELLED", "the preparation was interrupted") from None
        except preflight.Unfit as unfit:
            raise PreparationError(unfit.cause, unfit.message, fault=preflight.FAULT) from unfit

    def _find_identity(self) -> Identity | None:
        """Find the account that the command is to run as. Raises: IdentityRefused."""
        asked = self._order.get("run_as")
        if not asked:
            return None
        identity = find_identity(
            str(asked["user"]), node=self._node, allow_root=bool(asked.get("allow_root"))
        )
        if identity is None:
            return None
        open_way(self._node_folder.parent, self._node_folder, self._run_folder)
        python = (self._order.get("environment") or {}).get("python") or sys.executable
        for what, path in (
            ("the data folder", self._folder.path),
            ("Airyard's Python", Path(sys.executable)),
            ("the environment's Python", Path(python)),
        ):
            closed = closed_folder(path, identity)
            if closed is not None:
                raise IdentityRefused(
                    f"Unix user {identity.name!r} may not pass {closed} on node {self._node}, below which {what} lies: "
                    "keep it where all accounts may pass (docs/operate/people.md)"
                )
        return identity

    # --- code

    def _check_out_code(self, code: Mapping[str, Any], identity: Identity | None) -> None:
        """Give the member its own copy of the snapshot."""
        cache = CodeCache(self._node_folder / "code")
        tree_hash = str(code["tree_hash"])
        for last in (False, True):
            tree = cache.ensure(
                tree_hash,
                lambda stream: self._fetch(tree_hash, stream),
                should_stop=self._interrupted.is_set,
            )
            target = self._folder.path / "code"
            try:
                cache.checkout(tree, target)
            except NotFound:
                if last:  # evicted in between, twice: that is no accident
                    raise
            else:
                if identity is not None:
                    give_tree(target, identity)
                return

    def _fetch(self, tree_hash: str, stream: BinaryIO) -> None:
        """Download the archive, waiting for a server that is away."""

        def write(data: bytes) -> None:
            if self._interrupted.is_set():
                raise Cancelled("the download of the code was interrupted")
            stream.write(data)

        self._progress("code", "downloading")
        patience = Patience("code")
        while not self._interrupted.is_set():
            stream.seek(0)
            stream.truncate()
            try:
                self._channel.download(f"code/{tree_hash}", write, timeout_s=_DOWNLOAD_TIMEOUT_S)
            except ServerAway as problem:
                patience.wait(problem)
            except (Refused, AttemptIsOver) as error:
                raise PreparationError("PLATFORM", f"the code cannot be had: {error}") from error
            else:
                return
        raise PreparationError("CANCELLED", "the preparation was interrupted")

    # --- environment

    def _make_environment(self, bench: Workbench, asked: Mapping[str, Any]) -> None:
        """Build or find the environment and give the member its own view of it."""
        timeout_s = asked.get("timeout_s")
        deadline = time.monotonic() + float(timeout_s) if timeout_s else None

        def should_stop() -> bool:
            late = deadline is not None and time.monotonic() > deadline
            return late or self._interrupted.is_set()

        line = _Narrator(asked, self._note, self._progress).line
        try:
            if bench.identity is None:
                self._use_shared_store(bench, asked, line, should_stop)
            else:
                self._use_own_store(bench, bench.identity, asked, line, should_stop)
        except Cancelled as error:
            if self._interrupted.is_set():
                raise
            text = f"the environment was not ready within its limit of {timeout_s:g} s"
            raise PreparationError("ENVIRONMENT", text) from error

    def _use_shared_store(
        self,
        bench: Workbench,
        asked: Mapping[str, Any],
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        store = EnvironmentStore(self._node_folder / "envs", inherited=os.environ)
        environment = store.ensure(
            EnvironmentRequest.from_order(asked), progress=progress, should_stop=should_stop
        )
        bench.closers.insert(0, environment.release)
        view = prepare_view(environment.path, self._folder.path, overlay_works=self._overlay_works)
        add_user_module(environment.path, view.layer)
        _look_through(bench, view, was_built=environment.was_built)

    def _use_own_store(
        self,
        bench: Workbench,
        identity: Identity,
        asked: Mapping[str, Any],
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Have the account build it, for that runs code that its user chose."""
        store = user_store(self._node_folder, identity.uid)
        make_folder(store.parent, identity)
        base = self._folder.path
        for name in (".env-upper", "env"):
            make_folder(base / name, identity)
        overlay = bool(self._overlay_works)
        child = Asked(
            environment=asked,
            store=store,
            layer=base / ".env-upper" if overlay else None,
            view=base / "env",
            variables={
                **login(os.environ, identity, homeless=bench.places.temporary),
                "TMPDIR": str(bench.places.temporary),
                **bench.cage.environment(),
            },
        )
        built = ensure_as(
            identity, child, enter=bench.cage.enter_self, progress=progress, should_stop=should_stop
        )
        bench.closers.insert(0, built.release)
        # By its descriptor: where a path of the account's leads may be another place by then.
        view = overlay_view(built.tree, base) if overlay else link_view(base / "env")
        _look_through(bench, view, was_built=built.was_built)

    def _limit_shm(self, bench: Workbench) -> None:
        """Have the member get a /dev/shm of its own where a size is asked for and the machine allows mounts."""
        size_bytes = (self._order.get("limits") or {}).get("shm_bytes")
        if size_bytes is None:
            return
        if can_mount_shm(size_bytes):
            bench.limit_shm = functools.partial(mount_shm, size_bytes)
        else:
            self._note("the limit on shm cannot be enforced on this machine")

    # --- folders

    @property
    def _run_folder(self) -> Path:
        return self._node_folder / "runs" / str(self._order["run_id"])

    def _places(self) -> Places:
        base, run = self._folder.path, self._run_folder
        code = self._order.get("code")
        # The archive's entries lie below the name of the folder they came from.
        tree = base / "code" / str(code["directory_name"]) if code else None
        return Places(
            work=tree or base / "work",
            code=tree,
            control=self._folder.control,
            stop_file=self._folder.stop_file,
            acknowledgement_file=self._folder.acknowledgement_file,
            checkpoints=run / "checkpoints",
            output=run / "output",
            scratch=base / "scratch",
            temporary=base / "tmp",
        )

    def _make_folders(self, places: Places, owner: Identity | None) -> None:
        self._run_folder.parent.mkdir(exist_ok=True)
        self._run_folder.mkdir(mode=0o700, exist_ok=True)
        places.control.mkdir(exist_ok=True)
        work = () if places.code is not None else (places.work,)
        for path in (*work, places.checkpoints, places.output, places.scratch, places.temporary):
            make_folder(path, owner)

    def _remove_folders(self) -> None:
        for name in ("work", "code", "env", ".env-upper", ".env-work", "tmp", "scratch", "control"):
            remove_tree(self._folder.path / name)


class _Narrator:
    """Turns uv's lines into notes and progress, after a first one that says what is going on."""

    def __init__(
        self, asked: Mapping[str, Any], note: Callable[[str], None], progress: Callable[[str, str], None]
    ) -> None:
        self._note = note
        self._progress = progress
        self._title = f"building environment {asked['version']}"
        if count := len(asked.get("dependencies") or ()):
            self._title += f" with {count} {'dependency' if count == 1 else 'dependencies'}"
        self._begun = False

    def line(self, text: str) -> None:
        """Pass one line on."""
        if not self._begun:
            self._begun = True
            self._note(self._title)
        self._progress("environment", text)
        if not text.lstrip().startswith(_CHATTER):
            self._note(text)


def _look_through(bench: Workbench, view: View, *, was_built: bool) -> None:
    """Have the command find the environment by its view."""
    bench.variables = view.variables
    bench.bin_folder = view.bin
    bench.enter_view = view.before_exec
    bench.environment_hit = not was_built
