"""A run's feed under a clock of the test: how long a log is waited for, offsets measured late, alerts, cursors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.log_files import FileLogStore
from airyard.adapters.memory import MemoryDisk, MemoryReadStore
from airyard.app.projection import run_row
from airyard.app.run_feed import ALERTS_OF_A_KIND, LOGS_WAIT_MS, FeedPosition, RunFeed
from airyard.app.views import Lights, rfc3339
from airyard.core.errors import NotFound, UserError
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    LogClose,
    Member,
    MemberPhase,
    Outcome,
    Run,
    RunState,
    Tracking,
    TrackingState,
)
from airyard.core.scheduling.eta import Eta
from airyard.core.triage.alerts import alert_kind
from airyard.core.workload import Compute, Workload

KEY = MemberKey(1, 0, 0)
SECOND_NS = 1_000_000_000


class Stage:
    """One run in the read tables, its log store, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.disk = MemoryDisk()
        self.reads = MemoryReadStore(self.disk)
        self.logs = FileLogStore(folder)
        self.offsets_ns: dict[MemberKey, int] = {}
        self.now_ms = 100_000
        self.run = Run(
            run_id=1,
            name="a",
            owner="ada",
            project="default",
            workload=Workload(experiment="e", command="true", compute=Compute.of("CPU")),
            spec_hash="",
            idempotency_key="k",
            task_key="main",
            state=RunState.ACTIVE,
            submitted_ms=1000,
            queued_ms=1000,
            attempts=(self.attempt(0),),
            version=1,
        )
        self.put()

    def attempt(self, number: int) -> Attempt:
        member = Member(index=0, node="n", machine="m", devices=(0,), phase=MemberPhase.RUNNING)
        return Attempt(
            run_id=1,
            number=number,
            epoch=1,
            cookie="c",
            state=AttemptState.RUNNING,
            members=(member,),
            port=20000,
            orders=(),
            tracking=Tracking(state=TrackingState.OFF),
            placed_ms=2000,
            preparing_ms=2000,
            ready_ms=2000,
            running_ms=2000,
        )

    def put(self, **changes: Any) -> None:
        self.run = replace(self.run, version=self.run.version + 1, **changes)
        self.disk.runs[1] = run_row(self.run)

    def end_attempt(
        self, number: int, *, closed: bool, phase: MemberPhase = MemberPhase.EXITED, given_up: bool = False
    ) -> None:
        attempt = self.run.attempts[number]
        end = self.logs.end(attempt.member_key(0))
        logs = LogClose(last_seq=end.next_seq - 1, sha256=end.sha256) if closed else None
        member = replace(attempt.members[0], phase=phase, logs=logs, logs_given_up=given_up)
        ended = replace(
            attempt,
            state=AttemptState.ENDED,
            members=(member,),
            ended_ms=self.now_ms,
            outcome=Outcome.FAILED,
            cause=Cause.USER_CODE,
        )
        attempts = [ended if each.number == number else each for each in self.run.attempts]
        self.put(attempts=tuple(attempts))

    def end_run(self) -> None:
        self.put(state=RunState.ENDED, outcome=Outcome.FAILED, cause=Cause.USER_CODE, ended_ms=self.now_ms)

    def feed(self, **options: Any) -> RunFeed:
        parts: dict[str, Any] = {"reads": self.reads, "logs": self.logs, "offsets_ns": self.offsets_ns}
        return RunFeed(**parts, run=self.run, alert_of=alert_kind, **options)

    def write(self, text: str, key: MemberKey = KEY, stream: LogStream = LogStream.STDOUT) -> None:
        seq = self.logs.end(key).next_seq
        record = LogRecord(stream=stream, seq=seq, time_ns=seq * SECOND_NS, payload=text.encode())
        self.logs.append(key, encode(record))

    def step(self, feed: RunFeed) -> list[tuple[str, Any]]:
        found = feed.step(self.now_ms, Lights()).objects
        return [(each["type"], each.get("line", each.get("attempt"))) for each in found]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_end_of_a_log_is_waited_for_but_not_for_ever(stage: Stage) -> None:
    feed = stage.feed()
    stage.write("one\n")
    assert stage.step(feed) == [("STATUS", None), ("LOG", "one")]
    stage.end_attempt(0, closed=False)
    stage.end_run()
    assert stage.step(feed) == [("STATUS", None)]
    stage.now_ms += LOGS_WAIT_MS - 1
    stage.write("late\nopen")
    assert stage.step(feed) == [("LOG", "late"), ("LOG", "open")]
    stage.now_ms += 1
    assert stage.step(feed) == [("TERMINAL", None)]


def test_what_a_lost_machine_had_not_sent_is_a_hole_without_an_end(stage: Stage) -> None:
    feed = stage.feed()
    stage.write("one\n")
    stage.end_attempt(0, closed=False, phase=MemberPhase.LOST, given_up=True)
    stage.put(attempts=(*stage.run.attempts, stage.attempt(1)))
    found = feed.step(stage.now_ms, Lights()).objects
    assert [each["type"] for each in found] == ["LOG", "GAP", "RETRY", "STATUS"]
    hole = {name: found[1][name] for name in ("node", "first_seq", "last_seq", "bytes", "reason")}
    assert hole == {
        "node": 0,
        "first_seq": 1,
        "last_seq": None,
        "bytes": None,
        "reason": "machine m was lost with what it had not sent",
    }
    # Going on after the line it is still to come; going on after it, it is not.
    assert [kind for kind, _ in stage.step(stage.feed(cursor=found[0]["cursor"]))] == [
        "GAP",
        "RETRY",
        "STATUS",
    ]
    assert [kind for kind, _ in stage.step(stage.feed(cursor=found[1]["cursor"]))] == ["RETRY", "STATUS"]


def test_a_closed_log_ends_the_stream_at_once(stage: Stage) -> None:
    feed = stage.feed()
    stage.write("one\nopen")
    stage.end_attempt(0, closed=True)
    stage.end_run()
    found = feed.step(stage.now_ms, Lights())
    assert [each["type"] for each in found.objects] == ["STATUS", "LOG", "LOG", "TERMINAL"]
    assert found.done
    assert found.objects[-1]["exit_code"] == 1
    assert found.objects[-1]["run"]["logs_complete"] is True


def test_the_next_attempt_follows_the_earlier_ones_log(stage: Stage) -> None:
    feed = stage.feed()
    stage.step(feed)
    stage.end_attempt(0, closed=False)
    second = MemberKey(1, 1, 0)
    stage.put(attempts=(*stage.run.attempts, stage.attempt(1)))
    stage.write("of the second\n", second)
    assert stage.step(feed) == []
    stage.write("of the first\n")
    assert stage.step(feed) == [("LOG", "of the first")]
    stage.end_attempt(0, closed=True)
    assert stage.step(feed) == [("RETRY", 0), ("STATUS", None), ("LOG", "of the second")]


def test_a_wait_for_the_next_attempt_is_told_after_the_retry(stage: Stage) -> None:
    feed = stage.feed()
    stage.step(feed)
    stage.write("of the first\n")
    stage.end_attempt(0, closed=True)
    stage.put(state=RunState.QUEUED)
    found = feed.step(stage.now_ms, Lights()).objects
    assert [each["type"] for each in found] == ["LOG", "RETRY", "STATUS"]
    # Going on after the RETRY, the STATUS is still to come; going on after that one, nothing is.
    assert stage.step(stage.feed(cursor=found[1]["cursor"])) == [("STATUS", None)]
    assert stage.step(stage.feed(cursor=found[2]["cursor"])) == []


def test_the_same_version_is_told_once(stage: Stage) -> None:
    feed = stage.feed()
    assert stage.step(feed) == [("STATUS", None)]
    assert stage.step(feed) == []
    cursor = FeedPosition(version=stage.run.version).text()
    assert stage.step(stage.feed(cursor=cursor)) == []


def test_an_offset_measured_late_loses_and_doubles_nothing(stage: Stage) -> None:
    feed = stage.feed()
    stage.write("one\ntw")
    assert stage.step(feed)[1:] == [("LOG", "one"), ("LOG", "tw")]
    stage.offsets_ns[KEY] = 5 * SECOND_NS
    stage.write("o\n")
    found = feed.step(stage.now_ms, Lights()).objects
    assert [(each["line"], each["time_ns"]) for each in found] == [("o", 6 * SECOND_NS)]


def test_alerts_are_few_and_only_of_the_users_own_lines(stage: Stage) -> None:
    feed = stage.feed()
    stage.write("ValueError: x\n" * 50)
    stage.write("ValueError: ours\n", stream=LogStream.AIRYARD)
    kinds = [kind for kind, _ in stage.step(feed)]
    assert kinds.count("ALERT") == ALERTS_OF_A_KIND
    assert kinds.count("LOG") == 51


def test_a_removed_run_and_a_bad_cursor_are_errors(stage: Stage) -> None:
    feed = stage.feed()
    for text in ("x", "1:2", "1:x:", "1:0:odd"):
        with pytest.raises(UserError):
            stage.feed(cursor=text)
    del stage.disk.runs[1]
    with pytest.raises(NotFound):
        stage.step(feed)


def test_a_waiting_run_tells_its_expected_start_and_when_that_moves(stage: Stage) -> None:
    stage.put(state=RunState.QUEUED, attempts=())
    feed = stage.feed()

    def told(start_ms: int | None) -> list[str | None]:
        etas = {1: Eta(p50_ms=start_ms, p90_ms=start_ms)} if start_ms is not None else {}
        objects = feed.step(stage.now_ms, Lights(etas=etas)).objects
        return [each["run"]["pending"]["eta"] and each["run"]["pending"]["eta"]["p50"] for each in objects]

    hour_ms = stage.now_ms + 3_600_000
    assert told(None) == [None]
    assert told(hour_ms) == [rfc3339(hour_ms)]
    assert told(hour_ms + 300_000) == []  # a little later, for so long a wait
    assert told(None) == []
    assert told(hour_ms - 1_800_000) == [rfc3339(hour_ms - 1_800_000)]
    assert told(hour_ms - 1_800_000) == []
