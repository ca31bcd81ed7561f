"""The threads that carry tracking jobs to a ``Tracker``, so that nobody else waits for it.

Owns: the bounded queue, order per attempt, retries while the tracker is away, and what overflow costs. Must
not know: MLflow, the control loop, where samples come from.

Jobs of one key (attempt) run one after the other in the order given; different keys side by side. The queue
is in memory: after a crash the control loop derives again what is outstanding. Metric points over the bound
are dropped, counted, and told in ``state``; any other job over the bound is refused to the caller, who will
ask again.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airyard.core.errors import AiryardError, NotFound, Unavailable
from airyard.ports.tracker import (
    ArtifactStored,
    Metric,
    OpenRun,
    Pairs,
    TrackedRun,
    TrackedStatus,
    Tracker,
    TrackerState,
)

_log = logging.getLogger(__name__)

_KNOWN_RUNS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """Open the tracked run of an attempt; the later jobs of the key write to it."""

    key: str
    request: OpenRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsJob:
    """Store points; neighbouring jobs of a key are sent as one."""

    key: str
    metrics: tuple[Metric, ...]
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagsJob:
    """Set tags."""

    key: str
    tags: Pairs
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactJob:
    """Upload one file."""

    key: str
    artifact_path: str
    source: Path
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishJob:
    """Set the last tags, then end the run."""

    key: str
    status: TrackedStatus
    end_ms: int
    tags: Pairs = ()
    run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the run."""

    key: str
    run_id: str


Job = OpenJob | MetricsJob | TagsJob | ArtifactJob | FinishJob | DeleteJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended: ``value`` (a ``TrackedRun``, an ``ArtifactStored`` or None) or ``error``."""

    job: Job
    value: TrackedRun | ArtifactStored | None = None
    error: AiryardError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The tracker's condition and what waits for it; ``last_error`` is empty once something worked."""

    tracker: TrackerState
    queued_jobs: int
    queued_points: int
    dropped_points: int
    last_error: str


Done = Callable[[JobResult], None]


@dataclass(slots=True)
class _Lane:
    """The waiting jobs of one key, and whether a thread is at its first one."""

    jobs: deque[tuple[Job, Done | None]] = field(default_factory=deque)
    busy: bool = False
    failures: int = 0


class TrackingWorker:
    """Carries out jobs on ``threads`` threads, at least two.

    ``done`` callbacks come from those threads and must not block. ``pauses_s`` are the waits between tries
    while the tracker is away, the last one repeated.
    """

    def __init__(
        self,
        tracker: Tracker,
        *,
        threads: int = 3,
        jobs_limit: int = 10_000,
        points_limit: int = 500_000,
        pauses_s: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    ) -> None:
        self._tracker = tracker
        self._jobs_limit = jobs_limit
        self._points_limit = points_limit
        self._pauses_s = pauses_s
        self._lock = threading.Condition()
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[str] = deque()
        self._paused: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._runs: OrderedDict[str, str] = OrderedDict()
        self._jobs = self._points = self._dropped = 0
        self._last_error = ""
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, args=(number > 0,), name=f"tracking-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> int:
        """Finish what can be finished within ``timeout_s``; returns the number of jobs given up."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._lock.wait_for(lambda: self._jobs == 0, timeout_s)
            self._stopping = True
            self._lock.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.1, deadline_s - time.monotonic()))
        return self._jobs

    def submit(self, job: Job, done: Done | None = None) -> bool:
        """Take a job; False when its metric points were dropped for want of room.

        Raises: ``Unavailable`` when another kind of job finds the queue full.
        """
        points = len(job.metrics) if isinstance(job, MetricsJob) else 0
        with self._lock:
            full = self._jobs >= self._jobs_limit
            if points and (full or self._points + points > self._points_limit):
                self._dropped += points
                return False
            if full:
                raise Unavailable(
                    f"{self._jobs} tracking jobs wait already",
                    code="TRACKING_QUEUE_FULL",
                )
            self._jobs += 1
            self._points += points
            lane = self._lanes.setdefault(job.key, _Lane())
            lane.jobs.append((job, done))
            if len(lane.jobs) == 1 and not lane.busy:
                self._ready.append(job.key)
                self._lock.notify_all()
        return True

    def retry_now(self) -> None:
        """End all pauses: the tracker is said to be back."""
        with self._lock:
            while self._paused:
                self._ready.append(heapq.heappop(self._paused)[2])
            self._lock.notify_all()

    def state(self) -> WorkerState:
        """Return the tracker's condition and the queue's."""
        tracker = self._tracker.state()
        with self._lock:
            return WorkerState(
                tracker=tracker,
                queued_jobs=self._jobs,
                queued_points=self._points,
                dropped_points=self._dropped,
                last_error=self._last_error,
            )

    def _work(self, takes_artifacts: bool) -> None:
        """Run jobs; the one thread that takes no artifacts keeps large uploads from holding up a new run."""
        while (key := self._next_key(takes_artifacts)) is not None:
            taken = self._take(key)
            error: AiryardError | None = None
            value: TrackedRun | ArtifactStored | None = None
            try:
                value = self._carry_out(taken[0][0], [job for job, _ in taken])
            except AiryardError as caught:
                error = caught
            except Exception as caught:  # a defect in one job must not end the thread that serves all others
                _log.exception("tracking job %s of %s failed", type(taken[0][0]).__name__, key)
                error = AiryardError(f"{type(caught).__name__}: {caught}", code="TRACKING_DEFECT")
            if isinstance(error, Unavailable):
                self._put_back(key, taken, error)
            else:
                self._settle(key, taken, value, error)

    def _next_key(self, takes_artifacts: bool) -> str | None:
        """Wait for a key with work to do; None when stopping."""
        with self._lock:
            while not self._stopping:
                now_s = time.monotonic()
                while self._paused and self._paused[0][0] <= now_s:
                    self._ready.append(heapq.heappop(self._paused)[2])
                for key in self._ready:
                    if takes_artifacts or not isinstance(self._lanes[key].jobs[0][0], ArtifactJob):
                        self._ready.remove(key)
                        self._lanes[key].busy = True
                        return key
                self._lock.wait(self._paused[0][0] - now_s if self._paused else None)
            return None

    def _take(self, key: str) -> list[tuple[Job, Done | None]]:
        """Take the first job of the key, with the metric jobs behind it when it is one."""
        with self._lock:
            jobs = self._lanes[key].jobs
            taken = [jobs.popleft()]
            first = taken[0][0]
            while isinstance(first, MetricsJob) and jobs:
                following = jobs[0][0]
                if not isinstance(following, MetricsJob) or following.run_id != first.run_id:
                    break
                taken.append(jobs.popleft())
            return taken

    def _carry_out(self, job: Job, jobs: list[Job]) -> TrackedRun | ArtifactStored | None:
        tracker = self._tracker
        match job:
            case OpenJob():
                opened = tracker.open_run(job.request)
                self._remember(job.key, opened.run_id)
                return opened
            case MetricsJob():
                points = tuple(point for one in jobs if isinstance(one, MetricsJob) for point in one.metrics)
                tracker.log_metrics(self._run_id(job), points)
            case TagsJob():
                tracker.set_tags(self._run_id(job), job.tags)
            case ArtifactJob():
                return self._store(job)
            case FinishJob():
                run_id = self._run_id(job)
                if job.tags:
                    tracker.set_tags(run_id, job.tags)
                tracker.finish_run(run_id, job.status, job.end_ms)
            case DeleteJob():
                tracker.delete_run(job.run_id)
        return None

    def _store(self, job: ArtifactJob) -> ArtifactStored:
        try:
            return self._tracker.put_artifact(self._run_id(job), job.artifact_path, job.source)
        except OSError as error:
            return ArtifactStored(stored=False, reason=f"{job.source} cannot be read: {error.strerror}")

    def _run_id(self, job: MetricsJob | TagsJob | ArtifactJob | FinishJob) -> str:
        run_id = job.run_id or self._runs.get(job.key)
        if run_id is None:
            raise NotFound(f"attempt {job.key} has no tracked run", code="TRACKING_NOT_OPEN")
        return run_id

    def _remember(self, key: str, run_id: str) -> None:
        with self._lock:
            self._runs[key] = run_id
            if len(self._runs) > _KNOWN_RUNS:
                self._runs.popitem(last=False)

    def _put_back(self, key: str, taken: list[tuple[Job, Done | None]], error: Unavailable) -> None:
        with self._lock:
            lane = self._lanes[key]
            lane.jobs.extendleft(reversed(taken))
            lane.busy = False
            pause_s = self._pauses_s[min(lane.failures, len(self._pauses_s) - 1)]
            lane.failures += 1
            self._last_error = error.message
            heapq.heappush(self._paused, (time.monotonic() + pause_s, next(self._order), key))
            self._lock.notify_all()

    def _settle(
        self,
        key: str,
        taken: list[tuple[Job, Done | None]],
        value: TrackedRun | ArtifactStored | None,
        error: AiryardError | None,
    ) -> None:
        """Tell the callers, then let the key's next job run."""
        for job, done in taken:
            if done is not None:
                try:
                    done(JobResult(job=job, value=value, error=error))
                except Exception:  # the caller's defect; the other jobs go on
                    _log.exception("the callback of a tracking job of %s failed", key)
        with self._lock:
            self._jobs -= len(taken)
            self._points -= sum(len(job.metrics) for job, _ in taken if isinstance(job, MetricsJob))
            self._last_error = "" if error is None else error.message
            lane = self._lanes[key]
            lane.busy, lane.failures = False, 0
            if lane.jobs:
                self._ready.append(key)
            else:
                del self._lanes[key]
            self._lock.notify_all()
