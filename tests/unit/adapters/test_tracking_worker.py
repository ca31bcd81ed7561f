"""The worker's queue with a tracker that records, fails and blocks on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airyard.adapters.tracking_off import NullTracker
from airyard.adapters.tracking_worker import (
    ArtifactJob,
    FinishJob,
    JobResult,
    MetricsJob,
    OpenJob,
    TagsJob,
    TrackingWorker,
)
from airyard.core.errors import NotFound, Unavailable
from airyard.ports.tracker import (
    ArtifactStored,
    Metric,
    OpenRun,
    TrackedRun,
    TrackedStatus,
    TrackerKind,
    TrackerState,
)


@dataclass(slots=True)
class Recorder:
    """Keeps what it is told; fails ``failures`` times first; holds uploads until ``gate`` is set."""

    failures: int = 0
    calls: list[tuple[object, ...]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def _call(self, *call: object) -> None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("away")
        self.calls.append(call)

    def state(self) -> TrackerState:
        return TrackerState(kind=TrackerKind.UP)

    def open_run(self, request: OpenRun) -> TrackedRun:
        self._call("open", request.key)
        return TrackedRun(experiment_id="1", run_id=f"run-{request.key}")

    def log_metrics(self, run_id: str, metrics: tuple[Metric, ...]) -> None:
        self._call("metrics", run_id, tuple(metric.step for metric in metrics))

    def set_tags(self, run_id: str, tags: object) -> None:
        self._call("tags", run_id, tags)

    def put_artifact(self, run_id: str, artifact_path: str, source: Path) -> ArtifactStored:
        self.gate.wait()
        source.stat()
        return ArtifactStored(stored=True)

    def finish_run(self, run_id: str, status: TrackedStatus, end_ms: int) -> None:
        self._call("finish", run_id, status)

    def metrics(self, run_id: str) -> dict[str, Metric]:
        return {}

    def metric_history(self, run_id: str, key: str) -> tuple[Metric, ...]:
        return ()

    def delete_run(self, run_id: str) -> None:
        self._call("delete", run_id)


def opening(key: str) -> OpenJob:
    return OpenJob(key=key, request=OpenRun(key=key, experiment="e", run_name="r", start_ms=0, user="u"))


def points(key: str, *steps: int) -> MetricsJob:
    return MetricsJob(key=key, metrics=tuple(Metric(key="m", value=0.0, time_ms=0, step=s) for s in steps))


def test_jobs_of_a_key_keep_their_order_through_an_outage_and_metrics_merge() -> None:
    tracker = Recorder(failures=3)
    worker = TrackingWorker(tracker, pauses_s=(0.0,))
    results: list[JobResult] = []
    worker.submit(opening("1.0"), results.append)
    for step in range(4):
        worker.submit(points("1.0", step), results.append)
    worker.submit(TagsJob(key="1.0", tags=(("a", "b"),)), results.append)
    worker.submit(points("1.0", 9))
    worker.submit(FinishJob(key="1.0", status=TrackedStatus.FAILED, end_ms=1), results.append)
    worker.start()
    assert worker.stop() == 0
    assert tracker.calls == [
        ("open", "1.0"),
        ("metrics", "run-1.0", (0, 1, 2, 3)),
        ("tags", "run-1.0", (("a", "b"),)),
        ("metrics", "run-1.0", (9,)),
        ("finish", "run-1.0", TrackedStatus.FAILED),
    ]
    assert [result.error for result in results] == [None] * 7
    assert worker.state().last_error == ""


def test_overflow_drops_points_and_counts_them_but_refuses_other_jobs() -> None:
    worker = TrackingWorker(Recorder(), jobs_limit=3, points_limit=4)
    assert worker.submit(points("1.0", 1, 2, 3))
    assert not worker.submit(points("1.0", 4, 5))
    assert worker.submit(points("1.0", 6))
    worker.submit(opening("2.0"))
    with pytest.raises(Unavailable, match="3 tracking jobs"):
        worker.submit(opening("3.0"))
    assert not worker.submit(points("1.0", 7))
    state = worker.state()
    assert (state.queued_jobs, state.queued_points, state.dropped_points) == (3, 4, 3)


def test_a_refused_job_tells_its_caller_and_the_next_one_runs() -> None:
    tracker = Recorder()
    worker = TrackingWorker(tracker)
    results: list[JobResult] = []
    worker.submit(TagsJob(key="5.0", tags=()), results.append)
    worker.submit(opening("5.0"), results.append)
    worker.start()
    assert worker.stop() == 0
    assert isinstance(results[0].error, NotFound)
    assert results[1].value == TrackedRun(experiment_id="1", run_id="run-5.0")


def test_slow_uploads_never_hold_up_a_new_run(tmp_path: Path) -> None:
    tracker = Recorder()
    worker = TrackingWorker(tracker, threads=2)
    worker.start()
    stored: list[JobResult] = []
    opened = threading.Event()
    for number in range(5):
        job = ArtifactJob(key=f"{number}", artifact_path="a", source=tmp_path / f"{number}", run_id="r")
        worker.submit(job, stored.append)
    worker.submit(opening("9.0"), lambda _: opened.set())
    assert opened.wait(10)
    assert stored == []
    tracker.gate.set()
    assert worker.stop() == 0
    assert [result.value.stored for result in stored if result.value] == [False] * 5


def test_a_callback_that_fails_ends_nothing() -> None:
    worker = TrackingWorker(Recorder())
    done: list[JobResult] = []

    def fail(_: JobResult) -> None:
        raise RuntimeError("the caller's defect")

    worker.submit(opening("1.0"), fail)
    worker.submit(TagsJob(key="1.0", tags=()), done.append)
    worker.start()
    assert worker.stop() == 0
    assert done[0].error is None


def test_tracking_off_says_so() -> None:
    tracker = NullTracker()
    assert tracker.state().kind is TrackerKind.OFF
    with pytest.raises(NotFound, match="tracking is off"):
        tracker.open_run(opening("1.0").request)
    assert not tracker.put_artifact("r", "a", Path("x")).stored
