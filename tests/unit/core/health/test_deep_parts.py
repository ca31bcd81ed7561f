"""Deep tests in parts: one that made room goes on where it was, and only what is fresh counts."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.deep_parts import FRESH_MS, next_part, whole
from airyard.core.health.facts import CheckStatus
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import NodeTests, TestNote, with_test

PARTS = ("reading", "memory", "burn", "adapters")
NOW = 10 * FRESH_MS


def note(part: str, at_ms: int = NOW, status: CheckStatus = CheckStatus.PASS, boot: str = "b1") -> TestNote:
    return TestNote(
        kind=IdleTest.DEEP,
        at_ms=at_ms,
        status=status,
        message=f"said of {part}",
        version=boot,
        took_ms=60_000,
        values={f"compute.{part}": 1.0},
        part=part,
        parts=PARTS,
    )


def after(*notes: TestNote) -> NodeTests:
    found = NodeTests()
    for one in notes:
        found = with_test(found, one)
    return found


def following(known: NodeTests, boot: str = "b1", now_ms: int = NOW, since_ms: int = 0) -> str:
    return next_part(PARTS, known.parts, boot, now_ms, since_ms=since_ms)


def test_the_next_part_is_the_first_that_is_not_known() -> None:
    assert following(NodeTests()) == "reading"
    half = after(note("reading"), note("memory"))
    assert following(half) == "burn"
    assert half.deep is None
    assert half.deep_ms is None


def test_another_boot_makes_older_parts_void() -> None:
    half = after(note("reading"), note("memory"))
    assert following(half, boot="b2") == "reading"
    again = with_test(half, note("reading", boot="b2"))
    assert [one.part for one in again.parts] == ["reading"]
    assert following(again, boot="b2") == "memory"
    all_but_one = after(*(note(part) for part in PARTS[:3]))
    assert (
        whole(with_test(all_but_one, note("adapters", boot="b2")).parts, note("adapters", boot="b2")) is None
    )


def test_what_is_a_day_old_or_older_than_a_suspicion_is_done_again() -> None:
    known = after(note("reading", NOW - FRESH_MS), note("memory", NOW - FRESH_MS + 1))
    assert following(known) == "reading"
    assert following(after(note("reading", NOW - 5), note("memory")), since_ms=NOW - 60_001) == "reading"
    last = note("adapters")
    done = after(*(note(part, NOW - 90_000) for part in PARTS[:3]), last).parts
    assert whole(done, last, since_ms=NOW - 100_000) is None
    assert whole(done, last) is not None


def test_all_parts_that_passed_are_a_pass_as_old_as_the_oldest() -> None:
    last = note("adapters")
    known = after(note("reading", NOW - 500_000), note("memory"), note("burn"), last)
    found = whole(known.parts, last)
    assert found is not None
    assert (found.status, found.part, found.at_ms) == (CheckStatus.PASS, "", NOW)
    assert found.at_ms - found.took_ms == NOW - 560_000, "it began with its oldest part"
    assert set(found.values) == {f"compute.{part}" for part in PARTS}
    ended = with_test(known, found)
    assert (ended.deep_ms, ended.passed_ms, ended.parts) == (NOW, NOW, ())


def test_a_part_that_fails_decides_at_once_and_one_that_says_nothing_at_the_end() -> None:
    failed = note("memory", status=CheckStatus.FAIL)
    known = after(note("reading"), failed)
    found = whole(known.parts, failed)
    assert found is not None
    assert (found.status, found.message) == (CheckStatus.FAIL, "said of memory")
    ended = with_test(known, found)
    assert (ended.deep_ms, ended.parts) == (None, ()), "all is tested again once it is mended"
    odd = note("memory", status=CheckStatus.UNKNOWN)
    assert whole(after(note("reading"), odd).parts, odd) is None
    last = note("adapters")
    found = whole(after(note("reading"), odd, note("burn"), last).parts, last)
    assert found is not None
    assert (found.status, found.message) == (CheckStatus.UNKNOWN, "memory: said of memory")


def test_a_whole_test_by_an_older_agent_ends_what_was_begun_in_parts() -> None:
    known = with_test(
        after(note("reading")), TestNote(kind=IdleTest.DEEP, at_ms=NOW, status=CheckStatus.PASS, version="b1")
    )
    assert (known.parts, known.deep_ms) == ((), NOW)


@given(st.lists(st.booleans(), max_size=60), st.lists(st.integers(0, 59), max_size=4))
def test_however_often_it_makes_room_it_ends_after_as_many_parts_as_there_are(
    made_room: Sequence[bool], reboots: Sequence[int]
) -> None:
    """Each turn a part is done or makes room; a reboot begins anew. No part is done twice with one boot."""
    known, boot, done = NodeTests(), "b0", []
    for turn, stopped in enumerate(made_room):
        if turn in reboots:
            boot, done = f"b{turn}", []
        part = following(known, boot, NOW + turn)
        if stopped:
            continue
        assert part not in done
        done.append(part)
        last = note(part, NOW + turn, boot=boot)
        known = with_test(known, last)
        found = whole(known.parts, last)
        assert (found is not None) == (len(done) == len(PARTS))
        if found is not None:
            known, done = with_test(known, found), []
