"""The runner: one process per member and node, the shell around the machine.

Owns: the queue of events, the execution of instructions, timers, the order of cleaning up.
Must not know: rules (``machine``), wire details (``runner_http``), how an environment is made (``preparation``).

Standard library only. It outlives the server and the agent: whatever is away, it waits, keeps its limits and its
log, and reports later.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airyard
from airyard.core.log_frames import LogStream
from airyard.core.versions import ATTEMPT_FOLDER
from airyard.node import launch, pool_commands
from airyard.node.beats import EVERY_MS, BeatWatch
from airyard.node.containment import Containment, set_subreaper
from airyard.node.exit_record import (
    AttemptFolder,
    boot_id,
    start_ticks,
    write_json_by_rename,
    write_json_durably,
)
from airyard.node.gang_gate import GangGate
from airyard.node.identity import Identity
from airyard.node.job_files import give_file, read_small, remove_tree
from airyard.node.lease import note_lease
from airyard.node.machine import Phase, RunnerState, step
from airyard.node.machine_events import (
    CheckpointSeen,
    CheckPort,
    CloseLogs,
    Event,
    Instruction,
    InterruptPreparation,
    KillTree,
    Launch,
    LaunchFailed,
    Leave,
    PortChecked,
    Prepare,
    Prepared,
    PrepareFailed,
    ProcessExited,
    ProcessStarted,
    ProgressMade,
    ReapTree,
    Report,
    SetTimer,
    Signal,
    StepsSeen,
    Timer,
    TimerFired,
    TreeGone,
    WriteExitRecord,
    WriteStopFile,
)
from airyard.node.meeting import MeetingPlace
from airyard.node.member_look import MemberLook, situation
from airyard.node.network import LOOPBACK, Wish, port_is_free
from airyard.node.output import OutputPump, reap_orphans
from airyard.node.pool_commands import EPILOG, PoolCommandFailed
from airyard.node.preparation import Preparation, PreparationError, Workbench
from airyard.node.runner_http import Channel, Servers
from airyard.node.runner_threads import LogShipper, OrderPoller, Reporter, closed_output
from airyard.node.spool import LogSpool
from airyard.node.steady_clock import SteadyClock
from airyard.node.trust import kept_ca
from airyard.node.verdict import Evidence

_CHECKPOINT_EVERY_MS = 1000
_ACKNOWLEDGEMENT_BYTES = 64 * 1024
_KILL_PAUSE_S = 1.0
_LOCK_TRIES = 50
_LOCK_PAUSE_S = 0.02
_BROKEN = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """What the agent hands to a runner; the token is never written to disk."""

    key: str
    node: str
    devices: tuple[int, ...]
    token: str
    server_url: str
    epoch: int
    cookie: str
    address: str
    network: Wish
    node_folder: Path

    @property
    def folder(self) -> AttemptFolder:
        """The attempt folder."""
        return AttemptFolder(self.node_folder / "attempts" / self.key)

    @property
    def cage_name(self) -> str:
        """Unique on the machine, also among several homes that count runs alike."""
        return f"{self.key}-{''.join(ch for ch in self.cookie if ch.isalnum())[:16]}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any], node_folder: Path) -> RunnerSpec:
        """Build from the agent's ``start`` request. Raises: KeyError, ValueError."""
        return cls(
            key=str(data["key"]),
            node=str(data["node"]),
            devices=tuple(int(index) for index in data.get("devices") or ()),
            token=str(data["token"]),
            server_url=str(data["server_url"]),
            epoch=int(data["epoch"]),
            cookie=str(data["cookie"]),
            address=str(data.get("address") or LOOPBACK),
            network=Wish.from_json(data.get("network")),
            node_folder=node_folder,
        )


class Runner:
    """Runs one member to its end."""

    def __init__(
        self, spec: RunnerSpec, containment: Containment, *, overlay_works: bool | None = None
    ) -> None:
        """``overlay_works``: see ``environment_view.prepare_view``."""
        self._overlay_works = overlay_works
        self._spec = spec
        self._containment = containment
        self._folder = spec.folder
        self._clock = SteadyClock()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._tell = self._events.put
        self._state = RunnerState()
        self._timers: dict[Timer, int] = {}
        self._order: Mapping[str, Any] = {}
        self._preparation: Preparation | None = None
        self._started: launch.Started | None = None
        self._command_token = ""
        self._meeting = MeetingPlace(spec.address, spec.network)
        self._pump: OutputPump | None = None
        self._sweeper: threading.Thread | None = None
        self._has_grace = False
        """A stop was signalled and its time is not up. Read by the output's thread."""
        self._checkpoint_mark: tuple[int, int] | None = None
        self._checkpoint_at_ms = 0
        self._beats: BeatWatch | None = None
        self._beats_at_ms = 0
        self._oom_kills_before = machine_oom_kills()
        self._handlers = self._handlers_by_type()
        self._spool = LogSpool(self._folder.spool)
        self._servers = Servers(spec.server_url, kept_ca(spec.node_folder))
        self._reporter = Reporter(self._channel(), self._tell, spec.epoch, self._clock.now_ns)
        self._shipper = LogShipper(self._channel(), self._tell, self._spool)
        self._poller = OrderPoller(
            self._channel(),
            self._tell,
            self._clock.now_ms,
            lambda: not self._folder.path.exists(),
            learn=self._servers.learn,
            look=MemberLook(self._channel, self._situation, self._secrets, self._note).asked,
        )

    def run(self) -> None:
        """Serve the member until it has left. The caller holds the folder's lock."""
        self._poller.start()
        self._reporter.start()
        self._shipper.start()
        while self._state.phase is not Phase.LEFT:
            try:
                event = self._events.get(timeout=self._seconds_to_next())
            except queue.Empty:
                self._fire_timers()
            else:
                self._feed(event)
            if self._state.phase is Phase.RUNNING:
                self._look_for_checkpoint()
                self._look_at_steps()

    @property
    def _bench(self) -> Workbench | None:
        return self._preparation.bench if self._preparation is not None else None

    @property
    def _identity(self) -> Identity | None:
        return self._bench.identity if self._bench is not None else None

    def _channel(self) -> Channel:
        return Channel(self._servers, self._spec.token)

    def _feed(self, event: Event) -> None:
        before = self._state.outbox
        self._state, instructions = step(self._state, event, self._clock.now_ms())
        if self._state.outbox is not before:
            self._reporter.offer(self._state.outbox)
        for instruction in instructions:
            self._handlers[type(instruction)](instruction)
        if self._state.over is not None and self._state.phase is Phase.CLOSING:
            # Nobody will take the rest of the log.
            self._tell(closed_output(self._spool))

    def _handlers_by_type(self) -> dict[type, Callable[[Any], None]]:
        return {
            Prepare: self._prepare,
            InterruptPreparation: self._interrupt,
            CheckPort: self._check_port,
            Report: self._note_end,
            Launch: self._launch,
            WriteStopFile: self._write_stop_file,
            Signal: self._signal,
            KillTree: self._kill_tree,
            ReapTree: self._reap_tree,
            CloseLogs: self._close_logs,
            SetTimer: self._set_timer,
            WriteExitRecord: self._write_exit_record,
            Leave: self._leave,
        }

    # --- timers

    def _set_timer(self, timer: SetTimer) -> None:
        self._timers[timer.timer] = timer.at_ms
        if timer.timer is Timer.LEASE:
            note_lease(self._folder, self._clock.boot_ms(timer.at_ms))

    def _seconds_to_next(self) -> float | None:
        due = list(self._timers.values())
        if self._state.phase is Phase.RUNNING:
            due.append(self._beats_at_ms)
            if self._state.member == 0:
                due.append(self._checkpoint_at_ms)
        if not due:
            return None
        return max(0.0, (min(due) - self._clock.now_ms()) / 1000)

    def _fire_timers(self) -> None:
        now_ms = self._clock.now_ms()
        for timer in [timer for timer, at_ms in self._timers.items() if at_ms <= now_ms]:
            del self._timers[timer]
            self._feed(TimerFired(timer=timer))

    # --- preparing

    def _prepare(self, instruction: Prepare) -> None:
        self._order = instruction.order
        self._preparation = Preparation(
            order=instruction.order,
            folder=self._folder,
            node=self._spec.node,
            node_folder=self._spec.node_folder,
            channel=self._channel(),
            overlay_works=self._overlay_works,
            note=self._note,
            progress=lambda phase, detail: self._tell(ProgressMade(phase=phase, detail=detail)),
        )
        threading.Thread(target=self._run_preparation, name="prepare", daemon=True).start()

    def _run_preparation(self) -> None:
        assert self._preparation is not None
        try:
            limits = self._order.get("limits") or {}
            cage = self._containment.create(
                self._spec.cage_name,
                cookie=self._spec.cookie,
                memory_bytes=limits.get("memory_bytes"),
                cpus=limits.get("cpus"),
            )
            for limit in cage.unenforced:
                self._note(f"the limit on {limit} cannot be enforced on this machine")
            bench = self._preparation.run(cage)
        except PreparationError as error:
            failed = PrepareFailed(
                cause=error.cause, message=error.message, permanent=error.permanent, fault=error.fault
            )
            self._tell(failed)
        except Exception as error:
            # Whatever goes wrong here is no fault of the workload: the message must still reach a person.
            message = f"preparing failed: {type(error).__name__}: {error}"
            self._tell(PrepareFailed(cause="PLATFORM", message=message))
        else:
            self._tell(
                Prepared(
                    address=self._spec.address,
                    meeting=self._gate().announced(self._meeting),
                    environment_ms=bench.environment_ms,
                    code_ms=bench.code_ms,
                    environment_hit=bench.environment_hit,
                    passed=bench.passed,
                    measured=bench.measured,
                )
            )

    def _interrupt(self, _: Instruction) -> None:
        if self._preparation is not None:
            self._preparation.interrupt()

    def _check_port(self, instruction: CheckPort) -> None:
        self._tell(PortChecked(port=instruction.port, ok=port_is_free(instruction.port)))

    def _note(self, text: str) -> None:
        """Put a line of our own into the member's log."""
        self._spool.append(LogStream.AIRYARD, f"airyard: {text}\n".encode(), self._clock.now_ns())

    # --- running

    def _gate(self) -> GangGate:
        node, folder = self._spec.node, self._spec.node_folder
        return GangGate(self._order, node, folder, self._note, lambda: self._state.ending, self._channel)

    def _launch(self, instruction: Launch) -> None:
        self._gate().open(instruction.go, lambda: self._start(instruction), self._tell)

    def _start(self, instruction: Launch) -> None:
        bench = self._bench
        assert bench is not None
        spec, order = self._spec, self._order
        met = self._meeting.meet(int(order["member"]), instruction.go, own=self._names())
        for line in met.notes:
            self._note(line)
        if met.problem:
            self._tell(LaunchFailed(cause="NETWORK", message=met.problem))
            return
        self._command_token = launch.command_token(instruction.go, spec.token)
        try:
            own = launch.airyard_variables(
                order,
                instruction.go,
                bench.places,
                address=met.address,
                token=self._command_token,
                network=met.variables,
                ca_file=launch.hand_ca(self._servers.ca_file, bench.places),
                bin_folder=bench.bin_folder,
            )
            environment = launch.full_environment(
                order,
                own,
                machine=launch.login(os.environ, bench.identity, homeless=bench.places.temporary),
                view=bench.variables,
                cage=bench.cage.environment(),
                bin_folder=bench.bin_folder,
            )
            if (refusal := self._gate().refusal(instruction.go, bench, environment)) is not None:
                self._tell(refusal)
                return
            command = launch.write_control_files(order, bench.places, bench.identity)
            started = launch.start_command(
                command,
                environment=environment,
                work=bench.places.work,
                before_exec=bench.before_exec,
                owner=bench.identity,
            )
        except (OSError, KeyError) as error:
            self._tell(LaunchFailed(cause="PLATFORM", message=f"the command could not be started: {error}"))
            return
        self._started = started
        self._tell(ProcessStarted(pid=started.pid))
        self._pump = OutputPump(
            pid=started.pid,
            stdout=started.stdout,
            stderr=started.stderr,
            secrets=self._secrets(),
            spool=self._spool,
            now_ns=self._clock.now_ns,
            on_exit=lambda code, number: self._tell(ProcessExited(code=code, signal=number)),
            has_grace=lambda: self._has_grace,
        )
        self._pump.start()

    def _secrets(self) -> list[bytes]:
        ours = self._spec.token, self._command_token
        return [str(value).encode() for value in (*(self._order.get("mask") or ()), *ours)]

    def _situation(self) -> dict[str, Any] | None:
        """What a look at the member needs to know; None while it does not run. Called from another thread."""
        if self._bench is None or self._state.phase is not Phase.RUNNING:
            return None
        told = self._beats.pids if self._beats is not None else {}
        return situation(self._order, self._bench.cage.members(), told)

    def _names(self) -> set[str]:
        """Return the names of the variables that the user set."""
        return {*(self._order.get("variables") or {}), *(self._order.get("secrets") or {})}

    def _write_stop_file(self, instruction: WriteStopFile) -> None:
        left_s = (instruction.deadline_ms - self._clock.now_ms()) / 1000
        value = {
            "reason": instruction.reason,
            "deadline_unix": round(time.time() + left_s, 3),
            "grace_seconds": instruction.grace_s,
        }
        try:
            write_json_by_rename(
                self._folder.stop_file, value, give=lambda path: give_file(path, self._identity)
            )
        except OSError as error:
            self._note(f"the stop file could not be written: {error}")
        self._note(f"stopping: {instruction.reason}; {instruction.grace_s:g} s of grace")

    def _signal(self, instruction: Signal) -> None:
        if self._started is not None:
            self._has_grace = True
            launch.signal_group(self._started.pid, instruction.signal)

    def _kill_tree(self, _: Instruction) -> None:
        self._has_grace = False
        if self._started is not None:
            launch.signal_group(self._started.pid, "SIGKILL")
        if self._bench is not None:
            self._bench.cage.kill()

    def _look_for_checkpoint(self) -> None:
        if self._state.member != 0 or self._clock.now_ms() < self._checkpoint_at_ms:
            return
        self._checkpoint_at_ms = self._clock.now_ms() + _CHECKPOINT_EVERY_MS
        self._read_checkpoint()

    def _look_at_steps(self) -> None:
        if self._bench is None or self._clock.now_ms() < self._beats_at_ms:
            return
        if self._beats is None:
            self._beats = BeatWatch(
                self._folder.replies, self._identity, self._bench.cage.members, self._order.get("hang") or {}
            )
        now_ms = self._clock.now_ms()
        self._beats_at_ms = now_ms + EVERY_MS
        ranks, lines = self._beats.look(now_ms, time.monotonic())
        for line in lines:
            self._note(line)
        if ranks:
            self._tell(StepsSeen(ranks=tuple(ranks)))

    def _read_checkpoint(self) -> None:
        seen = read_acknowledgement(self._folder, self._checkpoint_mark, self._identity)
        if seen is not None:
            self._checkpoint_mark, event = seen
            self._tell(event)

    # --- the end

    def _reap_tree(self, _: Instruction) -> None:
        if self._bench is not None:
            while left := self._bench.cage.kill():
                # The devices stay booked: a process that cannot die may still hold them.
                self._note(f"waiting for processes that cannot be killed: {sorted(left)}")
                time.sleep(_KILL_PAUSE_S)
        tail = self._pump.finish() if self._pump is not None else ""
        reap_orphans()
        if self._state.member == 0 and self._started is not None:
            self._read_checkpoint()
        evidence = self._evidence(tail)
        fault = self._run_epilog()
        self._tell(TreeGone(evidence=evidence, fault=EPILOG if fault else "", fault_message=fault))

    def _run_epilog(self) -> str:
        """Run the pool's epilog where a member was prepared or begun to be; return how it failed, or nothing."""
        if self._preparation is None:
            return ""
        try:
            pool_commands.run(EPILOG, self._order, note=self._note)
        except PoolCommandFailed as failure:
            self._note(failure.message)
            return failure.message
        return ""

    def _evidence(self, tail: str) -> Evidence:
        limits = self._order.get("limits") or {}
        port = self._state.port
        return Evidence(
            stderr_tail=tail,
            oom_kills=self._bench.cage.oom_kills() if self._bench is not None else 0,
            machine_oom_kills=max(0, machine_oom_kills() - self._oom_kills_before),
            memory_limit_bytes=limits.get("memory_bytes"),
            port_taken=port is not None and self._state.member == 0 and not port_is_free(port),
        )

    def _note_end(self, report: Report) -> None:
        if report.kind == "EXITED" and report.body["cause"] is not None:
            # Further lines are the installer's words, which the log has from when they came.
            self._note(str(report.body["message"]).partition("\n")[0].rstrip(" :"))

    def _close_logs(self, _: Instruction) -> None:
        self._spool.seal()
        self._sweeper = threading.Thread(target=self._sweep, name="sweep", daemon=True)
        self._sweeper.start()

    def _sweep(self) -> None:
        """Free what the attempt took as soon as it is over, also when the server stays away."""
        if self._bench is not None:
            self._bench.close()

    def _write_exit_record(self, record: WriteExitRecord) -> None:
        value = {
            "exited": record.exited,
            "logs": record.logs,
            "delivered": record.delivered,
            "boot_id": boot_id(),
        }
        self._folder.lease_file.unlink(missing_ok=True)
        # Only the first one must survive a power cut: what follows it the server can ask the spool for.
        write = write_json_durably if record.logs is None else write_json_by_rename
        try:
            write(self._folder.exit_file, value)
        except OSError:
            # A full disk: what the attempt itself filled goes first, then once more.
            self._sweep()
            try:
                write(self._folder.exit_file, value)
            except OSError as error:
                self._note(f"the exit record could not be written: {error}")

    def _leave(self, _: Instruction) -> None:
        if self._sweeper is not None:
            self._sweeper.join()
        self._spool.close()
        if self._spool.is_drained:
            remove_tree(self._folder.spool)


def take_folder(spec: RunnerSpec) -> int | None:
    """Lock the attempt folder and say who runs in it; None when another runner has it. Raises: OSError.

    The lock is tried for a second, because an agent that looks at it holds it for a moment.
    """
    folder = spec.folder
    for _ in range(_LOCK_TRIES):
        lock = folder.lock()
        if lock is not None:
            break
        time.sleep(_LOCK_PAUSE_S)
    else:
        return None
    pid = os.getpid()
    value = {
        "pid": pid,
        "start_ticks": start_ticks(pid),
        "boot_id": boot_id(),
        "cookie": spec.cookie,
        "key": spec.key,
        "node": spec.node,
        "devices": list(spec.devices),
        "cage": spec.cage_name,
        "format": ATTEMPT_FOLDER.newest,
        "version": airyard.__version__,
    }
    write_json_by_rename(folder.runner_file, value)
    return lock


def serve(spec: RunnerSpec, containment: Containment, *, overlay_works: bool | None = None) -> None:
    """Be the runner of ``spec`` to its end; for a process that is nothing else and holds the folder's lock."""
    threading.excepthook = _die
    set_subreaper()
    Runner(spec, containment, overlay_works=overlay_works).run()


def _die(problem: threading.ExceptHookArgs) -> None:
    """End the runner when one of its threads broke: a dead runner is noticed, half a runner is not."""
    traceback.print_exception(problem.exc_type, problem.exc_value, problem.exc_traceback)
    sys.stderr.flush()
    os._exit(_BROKEN)


def machine_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since the boot."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def read_acknowledgement(
    folder: AttemptFolder, mark: tuple[int, int] | None, owner: Identity | None = None
) -> tuple[tuple[int, int], CheckpointSeen] | None:
    """Return what the acknowledgement file says when it is another one than ``mark``; None else."""
    try:
        found = read_small(folder.acknowledgement_file, owner, limit_bytes=_ACKNOWLEDGEMENT_BYTES)
        if found is None or (fresh := (found[0].st_ino, found[0].st_mtime_ns)) == mark:
            return None
        value = json.loads(found[1])
        return fresh, CheckpointSeen(step=int(value["step"]), path=str(value["path"]), time=value.get("time"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
