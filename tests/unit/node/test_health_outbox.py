"""Health events wait on disk until the server has them; the settings of the watch survive, too."""

from __future__ import annotations

import json
from pathlib import Path

from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.node.health_outbox import HealthOutbox
from airyard.node.health_settings import HealthSettings


def event(name: str, severity: Severity = Severity.CRITICAL) -> HealthEvent:
    return HealthEvent(
        event_id=name,
        rule="xid.79",
        machine="m",
        at_ms=7,
        component=Component.GPU,
        severity=severity,
        source=Source.KERNEL,
        message="lost",
    )


def ids(outbox: HealthOutbox) -> list[str]:
    return [one["event_id"] for one in outbox.waiting(10_000)]


def test_events_wait_until_they_are_taken_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "health" / "outbox.jsonl"
    first = HealthOutbox(path)
    assert first.add([event("a"), event("b")]) == 2
    assert first.add([event("b"), event("c")]) == 1
    again = HealthOutbox(path)
    assert ids(again) == ["a", "b", "c"]
    assert HealthEvent.from_json(again.waiting(1)[0]) == event("a")
    again.taken(["a", "b", "never"])
    assert ids(again) == ["c"]
    again.taken(["c"])
    assert ids(HealthOutbox(path)) == []
    assert path.read_bytes() == b""


def test_a_line_that_a_crash_cut_takes_nothing_else_with_it(tmp_path: Path) -> None:
    path = tmp_path / "outbox.jsonl"
    HealthOutbox(path).add([event("a")])
    with path.open("ab") as file:
        file.write(json.dumps(event("b").as_json()).encode()[:30])
    outbox = HealthOutbox(path)
    outbox.add([event("c")])
    assert ids(HealthOutbox(path)) == ["a", "c"]


def test_of_too_many_the_mildest_go_and_are_counted(tmp_path: Path) -> None:
    outbox = HealthOutbox(tmp_path / "outbox.jsonl", most=20)
    outbox.add([event("grave")])
    outbox.add([event(f"mild{number}", Severity.INFO) for number in range(30)])
    assert len(ids(outbox)) == 18
    assert "grave" in ids(outbox)
    assert outbox.dropped == 13
    assert ids(HealthOutbox(tmp_path / "outbox.jsonl")) == ids(outbox)


def test_a_folder_that_cannot_be_written_loses_nothing_while_the_agent_lives(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    outbox = HealthOutbox(tmp_path / "file" / "outbox.jsonl")
    assert outbox.add([event("a")]) == 1
    assert ids(outbox) == ["a"]


def test_settings_keep_to_their_bounds(tmp_path: Path) -> None:
    said = HealthSettings.from_json(
        {
            "enabled": False,
            "gpus_s": 9,
            "ports_s": 0,
            "host_s": "x",
            "kernel_s": True,
            "new": 1,
            "counters_s": 1e9,
        }
    )
    assert said == HealthSettings(enabled=False, gpus_s=9.0, counters_s=86_400.0)
    said.save(tmp_path / "health" / "settings.json")
    assert HealthSettings.load(tmp_path / "health" / "settings.json") == said
    (tmp_path / "broken").write_text("[")
    assert HealthSettings.load(tmp_path / "broken") == HealthSettings()


def test_a_clock_that_is_set_after_a_fault_makes_it_neither_older_nor_newer(tmp_path: Path) -> None:
    """One that was a day behind and was put right while the event waited: it would count no more."""
    path, clocks = tmp_path / "outbox.jsonl", [1_000_000, 5_000]
    outbox = HealthOutbox(path, now=lambda: (clocks[0], clocks[1]), boot="b1")
    outbox.add([event("a")])
    assert outbox.waiting(1)[0]["at_ms"] == 7
    clocks[:] = [1_000_000 + 86_400_000 + 2_000, 7_000]
    for one in (outbox, HealthOutbox(path, now=lambda: (clocks[0], clocks[1]), boot="b1")):
        (told,) = one.waiting(10)
        assert told == {**event("a").as_json(), "at_ms": 7 + 86_400_000}
    # Another boot: its steady clock says nothing of this one's.
    (told,) = HealthOutbox(path, now=lambda: (clocks[0], 1), boot="b2").waiting(10)
    assert told == event("a").as_json()


def test_an_event_of_an_older_agent_and_a_broken_note_of_the_moment_keep_nobody(tmp_path: Path) -> None:
    path = tmp_path / "outbox.jsonl"
    lines = [event("old").as_json(), {**event("odd").as_json(), "noted": "yesterday"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outbox = HealthOutbox(path, boot="b1")
    assert outbox.waiting(10) == [event("old").as_json()]
