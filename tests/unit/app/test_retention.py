"""What goes and what stays: ages, caps, things in use, and a plan that is carried out or only shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.adapters.memory import MemoryDisk, MemoryJournal, MemoryReadStore
from airyard.app.retention import (
    DAY_MS,
    Item,
    Keep,
    Kind,
    Removal,
    RetentionPolicy,
    execute,
    plan_gc,
    take_inventory,
)
from airyard.core.errors import Conflict
from journal_yard import Writer, row_of, run

NOW = 1000 * DAY_MS
POLICY = RetentionPolicy(
    runs=Keep(age_ms=180 * DAY_MS),
    logs=Keep(age_ms=30 * DAY_MS, cap_bytes=1000),
    code=Keep(age_ms=30 * DAY_MS),
    environments=Keep(cap_bytes=500),
    journal=Keep(),
)


def item(
    kind: Kind, name: str, days: float, size: int = 100, *, in_use: bool = False, orphan: bool = False
) -> Item:
    return Item(
        kind=kind, name=name, bytes=size, used_ms=NOW - int(days * DAY_MS), in_use=in_use, orphan=orphan
    )


def going(*items: Item, policy: RetentionPolicy = POLICY) -> list[tuple[str, str]]:
    return [(one.kind.value, one.name) for one in plan_gc(policy, items, NOW)]


def test_what_is_too_old_goes_and_what_is_in_use_stays() -> None:
    assert going(
        item(Kind.LOGS, "1", 31),
        item(Kind.LOGS, "2", 30),
        item(Kind.LOGS, "3", 400, in_use=True),
        item(Kind.RUNS, "4", 181),
        item(Kind.RUNS, "5", 179),
        item(Kind.CODE, "old", 31),
        item(Kind.CODE, "referred", 31, in_use=True),
        item(Kind.LOGS, "9", 0, orphan=True),
    ) == [("runs", "4"), ("logs", "1"), ("logs", "9"), ("code", "old")]


def test_over_the_cap_the_longest_unused_go_first() -> None:
    logs = [item(Kind.LOGS, str(days), days, 400) for days in (1, 5, 3, 2)]
    assert going(*logs) == [("logs", "5"), ("logs", "3")]
    assert going(*logs, item(Kind.LOGS, "live", 0, 900, in_use=True)) == [
        ("logs", "5"),
        ("logs", "3"),
        ("logs", "2"),
        ("logs", "1"),
    ]
    assert going(item(Kind.ENVIRONMENTS, "a", 500, 300), item(Kind.ENVIRONMENTS, "b", 1, 300)) == [
        ("environments", "a")
    ]


def test_reasons_have_numbers() -> None:
    old, capped = plan_gc(POLICY, [item(Kind.LOGS, "1", 45.5), item(Kind.LOGS, "2", 1, 2000)], NOW)
    assert old.reason == "last used 45.5 days ago; kept for 30"
    assert "GiB are kept" in capped.reason


def test_the_defaults_keep_what_is_fresh() -> None:
    fresh = [item(kind, "x", 0.5) for kind in Kind]
    assert going(*fresh, policy=RetentionPolicy()) == [("journal", str(NOW - 180 * DAY_MS))]


class Files:
    """Stands for the logs and the blobs: names and sizes."""

    def __init__(self, logs: dict[int, int], blobs: dict[str, int]) -> None:
        self._logs, self._blobs = logs, blobs

    def runs(self) -> list[tuple[int, int]]:
        return list(self._logs.items())

    def names(self) -> list[tuple[str, int, int]]:
        return [(name, size, NOW) for name, size in self._blobs.items()]


def test_the_inventory_knows_what_is_in_use() -> None:
    disk = MemoryDisk()
    ended = replace(row_of(run(1), code_hash="shared"), state="ENDED", ended_ms=77)
    disk.runs = {1: ended, 2: row_of(run(2))}
    files = Files({1: 10, 2: 20, 3: 30}, {"shared": 5, "loose": 6})
    others = [item(Kind.ENVIRONMENTS, "e", 1)]
    found = take_inventory(MemoryReadStore(disk), files, files, others)  # type: ignore[arg-type]  # has what is asked
    assert [(one.kind.value, one.name, one.bytes, one.used_ms, one.in_use, one.orphan) for one in found][
        :-1
    ] == [
        ("runs", "1", 0, 77, False, False),
        ("logs", "1", 10, 77, False, False),
        ("logs", "2", 20, 0, True, False),
        ("logs", "3", 30, 0, False, True),
        ("code", "shared", 5, NOW, True, False),
        ("code", "loose", 6, NOW, False, False),
    ]


def test_many_ended_runs_are_all_found() -> None:
    disk = MemoryDisk()
    disk.runs = {
        number: replace(row_of(run(number)), state="ENDED", ended_ms=number) for number in range(1, 1203)
    }
    files = Files({}, {})
    found = list(take_inventory(MemoryReadStore(disk), files, files))  # type: ignore[arg-type]  # has what is asked
    assert len(found) == 1202


PLAN = (
    Removal(kind=Kind.RUNS, name="4", bytes=0, reason="old"),
    Removal(kind=Kind.LOGS, name="1", bytes=100, reason="old"),
    Removal(kind=Kind.LOGS, name="2", bytes=50, reason="old"),
    Removal(kind=Kind.SCRATCH, name="nobody's", bytes=7, reason="old"),
)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_plan_is_carried_out_or_shown(dry_run: bool) -> None:
    gone: list[str] = []

    def refuse(name: str) -> None:
        raise Conflict(f"run {name} is live")

    removers = {Kind.LOGS: gone.append, Kind.RUNS: refuse if not dry_run else gone.append}
    told = execute(PLAN, removers, None, dry_run=dry_run).to_json()
    assert told["dry_run"] is dry_run
    assert told["bytes"] == 150
    assert told["kinds"]["logs"] == {"count": 2, "bytes": 150}
    assert gone == ([] if dry_run else ["1", "2"])
    assert told["failed"] == ([] if dry_run else ["runs 4: run 4 is live"])


def test_the_journal_is_pruned_behind_its_snapshots() -> None:
    journal, writer = MemoryJournal(), Writer()
    for events, changes in writer.story(5):
        journal.append(events[0].seq - 1, 1, events, changes)
    for seq in (6, 9):
        journal.save_snapshot(seq, {"seq": seq})
    plan = plan_gc(RetentionPolicy(journal=Keep(age_ms=DAY_MS)), [], NOW)
    assert execute(plan, {}, journal, dry_run=True).events_dropped == 0
    assert execute(plan, {}, journal, dry_run=False).events_dropped == 6
    assert next(journal.events_after(0)).seq == 7
