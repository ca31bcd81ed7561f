"""Carries out the control plane's actions and brings their outcomes back as commands.

Owns: the dispatch to engine and tracker, metric samples, artifacts of logs and diff. Must not know: decisions, HTTP.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from airyard.adapters.tracking_worker import (
    ArtifactJob,
    FinishJob,
    JobResult,
    MetricsJob,
    OpenJob,
    TrackingWorker,
)
from airyard.app.control import Control
from airyard.app.gang_signs import GangSigns
from airyard.app.gang_slowness import Throttles
from airyard.app.loop import ControlLoop
from airyard.app.pair_partners import partners
from airyard.app.phases import attempt_end_ms
from airyard.app.tracking_jobs import end_status, end_tags, open_request
from airyard.core.actions import (
    Action,
    CloseTracking,
    ForgetMember,
    JudgeAttempt,
    KillMember,
    OpenTracking,
    RunRemedy,
    RunRetest,
    ShipLogs,
    StartMember,
)
from airyard.core.commands import (
    Command,
    HealthReported,
    MachineAway,
    MachineSeen,
    MemberGone,
    TrackingAnswered,
)
from airyard.core.decide import Reply
from airyard.core.errors import AiryardError, Unavailable
from airyard.core.health.blame import COUNTS_MS
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, Run, Tracking, TrackingState
from airyard.ports.engine import ContainmentSeen, Engine, Fact, HealthSeen, Samples
from airyard.ports.log_store import LogStore
from airyard.ports.tracker import Metric, TrackedRun
from airyard.server.fleet_values import FleetValues
from airyard.server.gauges import Gauges
from airyard.server.idle_rounds import IdleRounds, IdleSettings
from airyard.server.judges import Judges
from airyard.server.node_rounds import NodeRounds, Retests, boot_of, find_node, is_away, told_by_pool
from airyard.server.pair_due import due_of
from airyard.server.pair_retests import PairRetests
from airyard.server.pair_rounds import PairRounds
from airyard.server.remedies import Remedies

ARTIFACT_BYTES = 64 << 20
DIFF_ARTIFACT = "git/diff.patch"
RENEW_S = 1.0
REPORT_S = 30.0

_log = structlog.get_logger("airyard.effects")


class Effects:
    """Does what the loop asks. ``do`` is called on the loop thread and never waits."""

    def __init__(
        self,
        *,
        engine: Engine,
        worker: TrackingWorker,
        logs: LogStore,
        token_for: Callable[[MemberKey], str],
        yard: str,
        temporary: Path,
        find_diff: Callable[[str], Path | None],
        remedies: Remedies | None = None,
        judges: Judges | None = None,
        test_python: str = "",
    ) -> None:
        """``test_python``: the interpreter that makes GPUs work in tests of nodes, if it has torch there."""
        self._engine = engine
        self._worker = worker
        self._logs = logs
        self._token_for = token_for
        self._yard = yard
        self._temporary = temporary
        self._find_diff = find_diff
        self._remedies = remedies or Remedies({})
        self._judges = judges
        self._test_python = test_python
        self._loop: ControlLoop | None = None
        self._pairs: PairRounds | None = None
        self._idle: IdleRounds | None = None
        self.gauges = Gauges()
        self.throttles = Throttles()
        self.signs = GangSigns()
        self.fleet = FleetValues()
        self._slow: queue.Queue[OpenTracking | CloseTracking | None] = queue.Queue()
        self._in_flight: set[Action] = set()
        self._lock = threading.Lock()
        self._renewing = False
        self._thread = threading.Thread(target=self._run, name="effects", daemon=True)
        self.containment: dict[str, str | bool] = {}
        self.greeted = threading.Event()
        """Set once a machine has said what it has: what the journal remembers of it may be out of date."""

    def start(self, loop: ControlLoop) -> None:
        """Begin: tracking actions are worked off, and the engine's facts go to the loop."""
        self._loop = loop
        self._thread.start()
        self._pairs = PairRounds(
            pair_nodes=self._pair_nodes,
            find_node=partial(find_node, loop),
            python=self._test_python,
            due=partial(due_of, loop),
        )
        in_pairs = PairRetests(
            self._pairs, find_node=partial(find_node, loop), partners=partial(_partners, loop)
        )
        retests = Retests(
            check_node=self._check_node,
            find_node=partial(find_node, loop),
            python=self._test_python,
            in_pairs=in_pairs,
        )
        self._remedies.start(self._submit, retests.test, partial(boot_of, loop))
        if self._judges is not None:
            self._judges.start(loop)
        self._engine.connect(self._on_fact)

    def stop(self) -> None:
        """Stop taking facts and actions; members live on."""
        self._engine.close()
        self._remedies.stop()
        if self._judges is not None:
            self._judges.stop()
        self._slow.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def do(self, actions: Sequence[Action]) -> None:
        """Carry actions out, or queue them where that may take time."""
        for action in actions:
            match action:
                case StartMember():
                    told = told_by_pool(self._loop, action.node) if self._loop is not None else {}
                    start = replace(action, limits=told.get("limits", {}))
                    self._engine.start(start, self._token_for(action.key))
                case KillMember():
                    self._engine.kill(action)
                case ShipLogs():
                    self._engine.ship(action, self._token_for(action.key))
                case ForgetMember():
                    self._engine.forget(action)
                case OpenTracking() | CloseTracking():
                    self._begin(action)
                case RunRemedy() | RunRetest():
                    self._remedies.do(action)
                case JudgeAttempt():
                    if self._judges is not None:
                        self._judges.do(action)

    def rounds(self, loop: ControlLoop, now_ms: Callable[[], int]) -> NodeRounds:
        """Return the rounds of checks that persons ask for."""
        return NodeRounds(
            check_node=self._check_node,
            find_node=partial(find_node, loop),
            report=lambda command: loop.submit(command).result(timeout=REPORT_S),
            now_ms=now_ms,
            python=self._test_python,
            is_away=partial(is_away, loop),
        )

    def idle_rounds(
        self, loop: ControlLoop, now_ms: Callable[[], int], settings: IdleSettings, leads: Callable[[], bool]
    ) -> IdleRounds:
        """Return what tests nodes while nobody needs them."""
        self._idle = IdleRounds(
            read=loop.peek,
            tell=lambda command: loop.submit(command).result(timeout=REPORT_S),
            check_node=self._check_idle,
            measure=self.pairs.measure,
            now_ms=now_ms,
            python=self._test_python,
            settings=settings,
            leads=leads,
        )
        return self._idle

    def _check_node(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Have a node checked for somebody who waits: tests that nobody waits for make room."""
        if self._idle is not None:
            self._idle.make_room(machine)
        return self._check_idle(machine, asked, should_stop=should_stop)

    def _check_idle(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Have a node checked as its pool says, and against what is usual among the others; learn what it measured."""
        if (loop := self._loop) is None:
            return self._engine.check_node(machine, asked, should_stop=should_stop)
        usual = self.fleet.told_to(loop, asked, time.time_ns() // 1_000_000)
        told = {**told_by_pool(loop, str(asked["node"])), **usual}
        answer = self._engine.check_node(machine, {**asked, **told}, should_stop=should_stop)
        self.fleet.learn(loop, asked, answer, time.time_ns() // 1_000_000)
        return answer

    def _pair_nodes(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Have two nodes tested against each other: tests of one node alone make room, and are done again."""
        for machine in machines:
            if self._idle is not None:
                self._idle.make_room(machine, for_pair=True)
        return self._engine.pair_nodes(machines, asked, should_stop=should_stop)

    @property
    def pairs(self) -> PairRounds:
        """What measures pairs of nodes: all who do, share it, because no node is in two tests at a time."""
        assert self._pairs is not None
        return self._pairs

    def has_environment(self, environment: Mapping[str, Any]) -> bool | None:
        """Ask whether the nodes have an environment built; None when nobody answers. Blocks for the answer."""
        return self._engine.has_environment(environment)

    def tidy(self, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> Mapping[str, Any]:
        """Have the nodes remove environments that were not used for long or are too many. Blocks for the answer."""
        return self._engine.tidy(age_ms=age_ms, cap_bytes=cap_bytes, dry_run=dry_run)

    def _begin(self, action: OpenTracking | CloseTracking) -> None:
        """Queue a tracking action unless the same one is under way: the loop repeats what is owed."""
        with self._lock:
            if action in self._in_flight:
                return
            self._in_flight.add(action)
        self._slow.put(action)

    def _done(self, action: Action) -> None:
        with self._lock:
            self._in_flight.discard(action)

    def _submit(self, command: Command) -> None:
        assert self._loop is not None
        try:
            self._loop.submit(command)
        except Unavailable as error:
            _log.warning("fact_dropped", command=type(command).__name__, error=error.message)

    def _submit_fact(self, fact: MachineSeen | MachineAway | MemberGone) -> None:
        """Hand a fact to the loop; when it cannot be journalled, the engine is asked for everything again.

        Not the same fact again: by then it may be older than what the loop knows.
        """
        assert self._loop is not None
        try:
            self._loop.submit(fact).add_done_callback(self._fact_settled)
        except Unavailable:
            self._renew_soon()

    def _fact_settled(self, future: Future[Reply]) -> None:
        if future.exception() is not None:
            self._renew_soon()

    def _renew_soon(self) -> None:
        with self._lock:
            if self._renewing:
                return
            self._renewing = True
        timer = threading.Timer(RENEW_S, self._renew)
        timer.daemon = True
        timer.start()

    def _renew(self) -> None:
        with self._lock:
            self._renewing = False
        self._engine.renew()

    def _on_fact(self, fact: Fact) -> None:
        if isinstance(fact, Samples):
            self._store_samples(fact)
        elif isinstance(fact, HealthSeen):
            self._report_health(fact)
        elif isinstance(fact, ContainmentSeen):
            self.containment = dict(fact.containment)
        else:
            self._submit_fact(fact)
            if isinstance(fact, MachineSeen):
                self.greeted.set()

    def _report_health(self, fact: HealthSeen) -> None:
        """Hand on what monitors saw. What cannot be journalled is not taken: its agent says it again."""
        assert self._loop is not None
        if not fact.events:
            fact.taken()
            return

        def settled(future: Future[Reply]) -> None:
            if future.exception() is None:
                self.gauges.reported(fact.events)
                _tell_too_old(fact.events, time.time_ns() // 1_000_000)
                self.throttles.put(fact.events, time.monotonic_ns() // 1_000_000)
                fact.taken()

        try:
            self._loop.submit(HealthReported(events=fact.events)).add_done_callback(settled)
        except Unavailable as error:
            _log.warning("health_not_taken", machine=fact.machine, error=error.message)

    def _store_samples(self, fact: Samples) -> None:
        self.gauges.sampled(fact, time.time_ns() // 1_000_000)
        for sample in fact.samples:
            self.signs.sampled(sample.key, sample.values, time.monotonic_ns() // 1_000_000)
            prefix = f"system/node_{sample.key.member}/"
            points = tuple(
                Metric(key=prefix + name, value=value, time_ms=sample.time_ms)
                for name, value in sample.values.items()
            )
            self._worker.submit(MetricsJob(key=str(sample.key.attempt_key), metrics=points))

    def _run(self) -> None:
        while (action := self._slow.get()) is not None:
            try:
                self._track(action)
            except AiryardError as error:
                self._done(action)
                _log.warning("tracking_action_failed", action=str(action), error=error.message)
            except Exception:
                self._done(action)
                _log.exception("tracking_action_broke", action=str(action))

    def _track(self, action: OpenTracking | CloseTracking) -> None:
        assert self._loop is not None
        key = AttemptKey(action.run_id, action.attempt)

        def read(control: Control) -> Run | None:
            return control.state.runs.get(action.run_id)

        run = self._loop.query(read).result(timeout=30)
        if run is None or action.attempt >= len(run.attempts):
            self._done(action)
            return
        attempt = run.attempts[action.attempt]
        job = OpenJob(key=str(key), request=open_request(run, attempt, yard=self._yard))
        if isinstance(action, OpenTracking):
            self._worker.submit(job, lambda result: self._opened(action, result))
            return
        # Opened again first: idempotent, and after a restart or a deferred start the worker has to know the run.
        found: list[TrackedRun] = []
        self._worker.submit(job, lambda result: self._found_at_close(action, result, found))
        self._send_diff(run, attempt)
        self._send_logs(attempt)
        self._worker.submit(
            FinishJob(
                key=str(key),
                status=end_status(attempt),
                end_ms=attempt_end_ms(attempt) or 0,
                tags=end_tags(attempt),
            ),
            lambda result: self._closed(action, attempt, result, found),
        )

    def _opened(self, action: OpenTracking, result: JobResult) -> None:
        self._done(action)
        if isinstance(result.value, TrackedRun):
            tracking = Tracking(
                state=TrackingState.OPEN,
                experiment_id=result.value.experiment_id,
                run_id=result.value.run_id,
            )
        else:
            # Refused, not away: the run goes on, and its tracking says why there is none.
            detail = result.error.message if result.error else "refused"
            tracking = Tracking(state=TrackingState.CLOSED, detail=detail)
        self._submit(TrackingAnswered(run_id=action.run_id, attempt=action.attempt, tracking=tracking))

    def _found_at_close(self, action: CloseTracking, result: JobResult, found: list[TrackedRun]) -> None:
        if isinstance(result.value, TrackedRun):
            found.append(result.value)
        elif result.error is not None:
            _log.warning("tracking_refused", run=action.run_id, error=result.error.message)

    def _closed(
        self, action: CloseTracking, attempt: Attempt, result: JobResult, found: Sequence[TrackedRun]
    ) -> None:
        """Note the end, and the run's ids: an attempt that did not wait for them has none until now."""
        self._done(action)
        tracked = attempt.tracking
        detail = result.error.message if result.error else tracked.detail
        ids = found[0] if found else tracked
        closed = Tracking(
            state=TrackingState.CLOSED, experiment_id=ids.experiment_id, run_id=ids.run_id, detail=detail
        )
        self._submit(TrackingAnswered(run_id=action.run_id, attempt=action.attempt, tracking=closed))

    def _send_diff(self, run: Run, attempt: Attempt) -> None:
        """Queue the upload of the code's git diff from where it is stored; a kept run keeps it."""
        digest = run.workload.diff_hash
        source = self._find_diff(digest) if digest else None
        if source is not None:
            self._worker.submit(ArtifactJob(key=str(attempt.key), artifact_path=DIFF_ARTIFACT, source=source))

    def _send_logs(self, attempt: Attempt) -> None:
        """Write each member's output as text files and queue their upload; the files go when that is done."""
        self._temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        for member in attempt.members:
            folder = Path(tempfile.mkdtemp(prefix=f"{attempt.key}.", dir=self._temporary))
            files = write_log_files(self._logs, attempt.member_key(member.index), folder)
            upload = _Upload(folder, len(files))
            for file in files:
                path = f"logs/node_{member.index}/{file.name}"
                self._worker.submit(
                    ArtifactJob(key=str(attempt.key), artifact_path=path, source=file), upload.one_done
                )


def _partners(loop: ControlLoop, name: str) -> tuple[str, ...]:
    now_ms = time.time_ns() // 1_000_000
    return loop.peek(lambda control: partners(control.state, name, now_ms))


class _Upload:
    """Removes the temporary files of one member's log when the last of them has been dealt with."""

    def __init__(self, folder: Path, files: int) -> None:
        self._folder = folder
        self._left = files
        if files == 0:
            shutil.rmtree(folder, ignore_errors=True)

    def one_done(self, result: JobResult) -> None:
        """Count one file. Jobs of one attempt run one after the other, so no lock is needed."""
        self._left -= 1
        if self._left == 0:
            shutil.rmtree(self._folder, ignore_errors=True)


def write_log_files(logs: LogStore, key: MemberKey, folder: Path) -> list[Path]:
    """Write a member's stdout and stderr, in order, as ``output-000.log`` and so on, 64 MiB each at most."""
    files: list[Path] = []
    seq = 0
    out = None
    try:
        while records := logs.read(key, seq):
            for record in records:
                if record.stream in (LogStream.STDOUT, LogStream.STDERR):
                    if out is None or out.tell() >= ARTIFACT_BYTES:
                        if out is not None:
                            out.close()
                        files.append(folder / f"output-{len(files):03d}.log")
                        out = files[-1].open("wb")
                    out.write(record.payload)
            seq = records[-1].seq + 1
    finally:
        if out is not None:
            out.close()
    return files


def _tell_too_old(events: Sequence[HealthEvent], now_ms: int) -> None:
    """Say which events count no more because they are of another day: a clock may be wrong, or the server was away."""
    for event in events:
        if event.at_ms <= now_ms - COUNTS_MS:
            _log.warning(
                "health_too_old",
                machine=event.machine,
                rule=event.rule,
                event=event.event_id,
                hours=round((now_ms - event.at_ms) / 3_600_000, 1),
                fix="look at the machine's clock (`timedatectl`); report it by hand if it still holds",
            )
