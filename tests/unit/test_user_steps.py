"""What user code tells by ``airyard.step``, as a node's runner reads it; each test has a copy as a new process has."""

from __future__ import annotations

import importlib.util
import os
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import airyard
from airyard.app.gang_steps import MOST_GANGS, GangSteps
from airyard.core.errors import UserError
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Member, MemberPhase
from airyard.node.beats import ANEW_MS, Beat, BeatWatch, decode, last_stack
from core_samples import ATTEMPT

SOURCE = Path(airyard.__file__).with_name("steps.py")


def fresh_copy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fresh_steps", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRYARD_PROGRESS_DIR", str(tmp_path))
    monkeypatch.setenv("NODE_RANK", "3")
    return fresh_copy()


def beat(folder: Path, now_s: float | None = None) -> Beat:
    (path,) = folder.glob("beats-*[0-9]")
    found = decode(path.read_bytes(), time.monotonic() if now_s is None else now_s)
    assert found is not None
    return found


def test_outside_of_airyard_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("", str(tmp_path / "missing")):
        monkeypatch.setenv("AIRYARD_PROGRESS_DIR", folder)
        alone = fresh_copy()
        alone.step(1)
        with alone.compute(), alone.section("evaluation"):
            alone.step(2, compute_s=1.0)
    assert list(tmp_path.iterdir()) == []


def test_steps_and_their_times_are_read(steps: ModuleType, tmp_path: Path) -> None:
    for number in range(70):
        steps.step(number, compute_s=0.2, wait_s=0.1)
    found = beat(tmp_path)
    assert (found.rank, found.pid, found.step, found.count) == (3, os.getpid(), 69, 70)
    assert (found.compute_ms, found.wait_ms) == (pytest.approx(200), pytest.approx(100))
    assert found.limit_ms == 60_000
    assert not found.is_late
    assert beat(tmp_path, time.monotonic() + 61).is_late


def test_who_computes_and_who_is_in_a_section_is_told(steps: ModuleType, tmp_path: Path) -> None:
    steps.step(1)
    with steps.compute():
        assert beat(tmp_path).computing
    assert not beat(tmp_path).computing
    with steps.section("evaluation", timeout_s=900):
        assert (beat(tmp_path).section, beat(tmp_path).limit_ms) == ("evaluation", 900_000)
    assert (beat(tmp_path).section, beat(tmp_path).limit_ms, beat(tmp_path).step) == ("", 300_000, 1)
    steps.step(2, timeout_s=7)
    assert beat(tmp_path).limit_ms == 7000


def test_the_rank_is_the_launchers(
    steps: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "17")
    steps.step(1)
    assert beat(tmp_path).rank == 17


def test_a_forked_child_has_a_file_of_its_own(steps: ModuleType, tmp_path: Path) -> None:
    steps.step(5)
    child = os.fork()
    if child == 0:
        steps.step(9)
        os._exit(0)
    os.waitpid(child, 0)
    found = {decode(path.read_bytes(), 0.0) for path in tmp_path.glob("beats-*[0-9]")}
    assert {(one.pid, one.step) for one in found if one} == {(os.getpid(), 5), (child, 9)}


@pytest.mark.parametrize("data", [b"", b"x" * 16, bytes(4096), os.urandom(712)])
def test_what_is_no_beat_is_none(data: bytes, tmp_path: Path) -> None:
    assert decode(data, 0.0) is None
    (tmp_path / "beats-1-1").write_bytes(data)
    assert BeatWatch(tmp_path, None, set).look(0, 0.0) == ([], [])


def test_a_beat_that_is_being_written_is_none(steps: ModuleType, tmp_path: Path) -> None:
    steps.step(1)
    (path,) = tmp_path.glob("beats-*[0-9]")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    assert decode(bytes(data), 0.0) is None


def test_the_watch_sends_now_and_then_and_once_a_stall(steps: ModuleType, tmp_path: Path) -> None:
    watch, now_s = BeatWatch(tmp_path, None, set), time.monotonic()
    steps.step(1, timeout_s=10)
    assert [rank["step"] for rank in watch.look(10_000, now_s)[0]] == [1]
    steps.step(2)
    assert watch.look(12_000, now_s)[0] == []
    assert [rank["step"] for rank in watch.look(15_000, now_s)[0]] == [2]
    _, notes = watch.look(30_000, now_s + 20)
    assert len(notes) == 1
    assert "rank 3 has made no step" in notes[0]
    ranks, notes = watch.look(32_000, now_s + 22)
    assert notes == []
    assert ranks[0]["state"] in "RSD"
    assert watch.look(34_000, now_s + 24) == ([], [])


def test_the_watch_tells_of_ranks_that_may_stand_still_now_and_then(
    steps: ModuleType, tmp_path: Path
) -> None:
    watch, now_s = BeatWatch(tmp_path, None, set), time.monotonic()
    steps.step(1, timeout_s=1800)
    assert len(watch.look(10_000, now_s)[0]) == 1
    assert watch.look(10_000 + ANEW_MS - 1, now_s + 29)[0] == []
    assert len(watch.look(10_000 + ANEW_MS, now_s + 30)[0]) == 1, "a server may have been started anew"
    assert watch.look(12_000 + ANEW_MS, now_s + 32)[0] == []


def test_a_stack_is_the_last_one_without_what_differs() -> None:
    text = (
        'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in a\n\n'
        'Current thread 0x2 (most recent call first):\n  File "b.py", line 2 in b\n'
    )
    assert last_stack(text) == 'File "b.py", line 2 in b'


@pytest.mark.parametrize("ranks", [None, [1], [{"rank": 0}], [{"rank": 0, "step": "x", "age_ms": 1}]])
def test_the_server_refuses_what_no_runner_sends(ranks: object) -> None:
    with pytest.raises(UserError) as refused:
        GangSteps().put(MemberKey(1, 0, 0), ranks, 0)
    assert refused.value.code == "BAD_REPORT"


def told(rank: int, **more: object) -> dict[str, object]:
    return {"rank": rank, "step": 9, "count": 9, "age_ms": 0, "limit_ms": 5000, **more}


def gang() -> Attempt:
    members = tuple(
        Member(index=index, node=f"n{index}", machine="m", devices=(), phase=MemberPhase.RUNNING)
        for index in (0, 1)
    )
    return replace(ATTEMPT, run_id=1, number=0, members=members)


def test_a_verdict_counts_once_it_has_stayed_the_same() -> None:
    steps, attempt = GangSteps(), gang()
    steps.put(MemberKey(1, 0, 0), [told(0), told(1)], 0)
    steps.put(MemberKey(1, 0, 1), [told(2), told(3, step=8)], 0)
    assert steps.confirmed(attempt.key, attempt, 4000) == (True, None)
    sure, stall = steps.confirmed(attempt.key, attempt, 6000)
    assert not sure
    assert stall is not None
    assert (stall.ranks, stall.nodes, stall.silent_ms) == ((3,), ("n1",), 6000)
    assert steps.confirmed(attempt.key, attempt, 8000)[0]
    steps.put(MemberKey(1, 0, 1), [told(2, step=10), told(3, step=10)], 8000)
    steps.put(MemberKey(1, 0, 0), [told(0, step=10), told(1, step=10)], 8000)
    assert steps.confirmed(attempt.key, attempt, 8000) == (True, None)
    steps.drop(attempt.key)
    assert steps.stall(attempt.key, attempt, 99_000) is None
    assert steps.newest_step(attempt.key) is None


def test_before_the_first_step_a_gang_is_none_that_tells_of_steps() -> None:
    steps, attempt = GangSteps(), gang()
    steps.put(MemberKey(1, 0, 0), [told(0, step=0, count=0, limit_ms=None, computing=True)], 0)
    assert steps.newest_step(attempt.key) is None
    steps.put(MemberKey(1, 0, 1), [told(2, step=0, count=1)], 0)
    assert steps.newest_step(attempt.key) == 0


def test_windows_of_compute_times_name_a_slow_rank() -> None:
    steps, attempt = GangSteps(), gang()
    for count in range(0, 200, 7):
        for member in (0, 1):
            ranks = [
                told(2 * member + local, count=count, compute_ms=130.0 if member and local else 100.0)
                for local in (0, 1)
            ]
            steps.put(MemberKey(1, 0, member), ranks, count)
    assert [(one.rank, one.node) for one in steps.stragglers(attempt.key, attempt)] == [(3, "n1")]


def test_the_gangs_that_are_remembered_are_bounded() -> None:
    steps = GangSteps()
    for run_id in range(MOST_GANGS + 5):
        steps.put(MemberKey(run_id, 0, 0), [told(0)], 0)
    assert steps.newest_step(MemberKey(4, 0, 0).attempt_key) is None
    assert steps.newest_step(MemberKey(5, 0, 0).attempt_key) == 9
