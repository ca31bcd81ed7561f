"""Explanations, the queue and lists of waiting runs in words."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from airyard.cli import explain_text, formats
from client_fakes import run_document

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
WAITING: dict[str, Any] = {
    "run_id": 812,
    "state": "QUEUED",
    "reason": "NO_FREE_NODES",
    "message": "it asks 4 nodes of GPU_8xH100; 2 of 16 have 8 free now",
    "evidence": {"nodes_free": 2, "holders": [70, 71]},
    "position": 7,
    "waiting": 40,
    "ahead": [
        {"rule": "class", "count": 7, "runs": [801, 803, 804, 805, 806], "text": "of a higher class"},
        {"rule": "earlier", "count": 1, "runs": [790], "text": "queued earlier"},
    ],
    "eta": {"p50": "2026-01-31T14:05:09Z", "p90": "2026-02-01T03:30:00Z"},
    "predicted": {
        "p50_ms": 7_200_000,
        "p90_ms": 18_000_000,
        "limit_ms": None,
        "samples": 14,
        "source": "user",
        "text": "runs of the same user, project and shape",
    },
    "promise": {"nodes": ["n1", "n2"], "devices_per_node": 8, "from_at": "2026-01-31T14:05:00Z"},
    "may_evict": {
        "runs": [6, 7],
        "rules": ["reclaim"],
        "from_at": "2026-01-31T12:01:00Z",
        "text": "its project may take its guarantee back",
    },
    "counterfactuals": [
        {"change": "FEWER_NODES", "text": "now with 2 nodes instead of 4", "at": None, "command": None},
        {"change": "RUNS_END", "text": "when run 71 ends", "at": "2026-01-31T14:00:00Z", "command": None},
        {
            "change": "HIGHER_CLASS",
            "text": "once run 7 has left as CRITICAL",
            "at": None,
            "command": "airyard update 812 --priority CRITICAL",
        },
    ],
    "passed_by": {
        "count": 3,
        "runs": [
            {
                "later": 815,
                "earlier": 812,
                "rule": "shorter",
                "at": "2026-01-31T11:00:00Z",
                "text": "run 815 started before run 812: shorter predicted duration, 10 min against 2 h",
            }
        ],
    },
    "went_before": None,
    "preemption": None,
    "estimates": {"count": 120, "before_p50": 0.52, "before_p90": 0.91, "median_error_ms": 240_000},
    "fix": {"text": "`airyard queue` shows what is ahead of it"},
}
RUNNING: dict[str, Any] = {
    "run_id": 71,
    "state": "ACTIVE",
    "reason": "RUNNING",
    "message": "attempt 0 is running on n1",
    "evidence": {"nodes": ["n1"]},
    "preemption": {
        "classes": ["CRITICAL"],
        "own_class": "NORMAL",
        "owners": ["nlp"],
        "younger": True,
        "from_at": "2026-01-31T11:01:00Z",
        "younger_from_at": "2026-01-31T13:00:00Z",
        "evicted_at": "2026-01-31T11:30:00Z",
        "spared_until": "2026-01-31T12:30:00Z",
        "lost_device_seconds": 4800,
        "since": "2026-01-31T11:50:00Z",
        "acknowledged": True,
        "ends": {"p50": "2026-01-31T15:00:00Z", "p90": "2026-01-31T15:00:00Z"},
    },
    "passed_by": None,
    "went_before": {"count": 0, "runs": []},
}


def test_a_waiting_run_in_words() -> None:
    assert explain_text.page(WAITING, UTC, NOW).splitlines() == [
        "Run 812 is waiting (NO_FREE_NODES): it asks 4 nodes of GPU_8xH100; 2 of 16 have 8 free now.",
        "",
        "position     7 of 40",
        "ahead        7 of a higher class (801, 803, 804, 805, 806 and 2 more); 1 queued earlier (790)",
        "expected     about 14:05, by Sun 03:30",
        "promised     8 devices on n1, n2 from about 14:05",
        "may evict    runs 6, 7, from 12:01 on unless there is room before: its project may take its guarantee back",
        "lasts        about 2 h 0 min, 5 h 0 min nine times in ten (from 14 runs of the same user, project and shape)",
        "would start  now with 2 nodes instead of 4",
        "             when run 71 ends, about 14:00",
        "             once run 7 has left as CRITICAL: `airyard update 812 --priority CRITICAL`",
        "went first   run 815 started before run 812: shorter predicted duration, 10 min against 2 h (11:00:00)",
        "             and 2 more",
        "nodes free   2",
        "holders      70, 71",
        "estimates    of 120 expected starts 52% came before the first time, 91% before the second; "
        "median error 4 min",
        "next         `airyard queue` shows what is ahead of it",
    ]


def test_times_in_the_evidence_are_times_and_one_run_is_one_run() -> None:
    told = {
        "run_id": 4,
        "state": "QUEUED",
        "reason": "NOT_YET",
        "message": "it is to begin in 5 min",
        "evidence": {"begin_ms": 1_769_861_100_000},
        "predicted": {"p50_ms": 60_000, "p90_ms": 60_000, "samples": 1, "text": "runs of the same shape"},
        "estimates": {"count": 1, "before_p50": 1, "before_p90": 1, "median_error_ms": 0},
    }
    lines = explain_text.page(told, UTC, NOW).splitlines()
    assert "begin      2026-01-31 12:05:00 +00:00" in lines
    assert "lasts      about 1 min (from 1 run of the same shape)" in lines
    assert lines[-1].startswith("estimates  of 1 expected start 100%")


def test_a_search_that_failed_says_so() -> None:
    told = {**WAITING, "counterfactuals": [], "counterfactuals_failed": True}
    assert "would start  unknown: the search for what would help failed; server.log says how" in (
        explain_text.page(told, UTC, NOW).splitlines()
    )


def test_a_running_run_in_words() -> None:
    assert explain_text.page(RUNNING, UTC, NOW).splitlines() == [
        "Run 71 is active (RUNNING): attempt 0 is running on n1.",
        "",
        "ends          about 15:00",
        "may evict it  CRITICAL runs, from 11:01; NORMAL runs within the guarantee of nlp, of which it borrows, "
        "from 11:01; NORMAL runs that have not had their first slice, from 13:00",
        "evicted last  11:30, spared until 12:30 while there is another choice",
        "would lose    1 h 20 min of device time since its last checkpoint",
        "nodes         n1",
    ]


EVICTED = {
    "attempt": 0,
    "at": "2026-01-31T11:30:00Z",
    "for_run": 12,
    "rule": "reclaim",
    "text": "preempted for run 12 (project nlp takes its guarantee back)",
}


def test_a_victim_says_for_whom_it_was_evicted_and_by_what_right() -> None:
    why = "11:30, preempted for run 12 (project nlp takes its guarantee back)"
    assert f"evicted last  {why}" in explain_text.page({**WAITING, "evicted": EVICTED}, UTC, NOW).splitlines()
    again = explain_text.page({**RUNNING, "evicted": EVICTED}, UTC, NOW)
    assert f"evicted last  {why}, spared until 12:30 while there is another choice" in again.splitlines()


def test_of_a_victim_that_leaves_nobody_is_said_to_be_able_to_evict_it() -> None:
    told = {**RUNNING, "preemption": {**RUNNING["preemption"], "leaving": True}, "evicted": EVICTED}
    labels = [line.split("  ")[0] for line in explain_text.page(told, UTC, NOW).splitlines()[2:]]
    assert labels == ["ends", "would lose", "nodes"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-01-31T14:05:59Z", "14:05"),
        ("2026-02-03T14:05:00Z", "Tue 14:05"),
        ("2026-02-07T14:05:00Z", "2026-02-07 14:05"),
        ("2026-01-30T23:59:00Z", "2026-01-30 23:59"),
    ],
)
def test_what_is_expected_is_shown_no_more_precisely_than_it_deserves(text: str, shown: str) -> None:
    assert formats.about(text, UTC, NOW) == shown


def queue_answer(*runs: dict[str, Any], waiting: int, next_offset: int | None = None) -> dict[str, Any]:
    return {
        "runs": list(runs),
        "waiting": waiting,
        "next_offset": next_offset,
        "estimates": WAITING["estimates"],
    }


def queued(run_id: int, position: int) -> dict[str, Any]:
    pending = {
        "reason": "NO_FREE_NODES",
        "message": "it asks 1 node; none is free",
        "evidence": {},
        "not_before": None,
        "eta": {"p50": "2030-01-31T14:05:00Z", "p90": "2030-01-31T14:05:00Z"},
        "position": position,
    }
    return run_document(
        run_id,
        state="QUEUED",
        status="QUEUED",
        outcome=None,
        pending=pending,
        position=position,
        duration_ms=None,
    )


def test_the_queue_shows_expected_starts_and_how_good_they_were(airyard: Any) -> None:
    answers = {"GET /queue": [queue_answer(queued(7, 1), waiting=40, next_offset=1)]}
    code, out, err = airyard("queue", "-n", "1", answers=answers)
    assert code == 0
    assert "limit=1" in airyard.transport.asked[-1].path
    head, row = out.splitlines()
    assert head.split()[-3:] == ["STARTS", "WAITS", "FOR"]
    assert row.startswith("1   7  digits")
    assert row.endswith("about 2030-01-31 14:05  it asks 1 node; none is free")
    assert err.splitlines()[0] == "1 of 40 are shown; --all shows all of them."
    assert err.splitlines()[1].startswith("of 120 expected starts 52% came")
    code, out, _ = airyard("-o", "json", "queue", answers=answers)
    assert json.loads(out)["data"]["waiting"] == 40


def test_the_whole_queue_comes_page_by_page(airyard: Any) -> None:
    answers = {
        "GET /queue": [
            queue_answer(queued(7, 1), waiting=2, next_offset=1),
            queue_answer(queued(8, 2), waiting=2),
        ]
    }
    code, out, _ = airyard("queue", "--all", answers=answers)
    assert (code, len(out.splitlines())) == (0, 3)
    assert "offset=1" in airyard.transport.asked[-1].path


def test_a_list_with_waiting_runs_says_why_and_until_when(airyard: Any) -> None:
    runs = [queued(7, 1), run_document(6)]
    code, out, _ = airyard("list", answers={"GET /runs": [{"runs": runs, "next_before": None}]})
    assert code == 0
    head, waiting, ended = out.splitlines()
    assert head.endswith("WAITS FOR")
    assert waiting.endswith("NO_FREE_NODES, about 2030-01-31 14:05")
    assert ended.endswith("1 min")


def test_a_dry_run_says_when_it_would_start_and_what_would_help(airyard: Any) -> None:
    found = {
        "would_start_now": False,
        "reason": "NO_FREE_NODES",
        "message": "it asks 4 nodes; 2 have room",
        "position": 3,
        "eta": {"p50": "2030-01-31T14:05:00Z", "p90": "2030-01-31T16:00:00Z"},
        "counterfactuals": WAITING["counterfactuals"][:1],
    }
    answers = {"POST /runs": [{"dry_run": found}]}
    code, out, _ = airyard("run", "--cpu", "--dry-run", "--", "true", answers=answers)
    assert code == 0
    assert "expected         about 2030-01-31 14:05, by 2030-01-31 16:00" in out.splitlines()
    assert "would start      now with 2 nodes instead of 4" in out.splitlines()


def test_power_and_cooling_that_slow_a_run_down_are_told_with_where_to_look() -> None:
    one = {
        "supply": "COOLING", "place": "rack r3", "nodes": ["n1"], "since": "2026-01-31T11:57:00Z", "incident": True,
        "text": "cooling of rack r3 fails: it slows n1 of this run down", "next_step": "look at the cooling",
    }  # fmt: skip
    found = {"run_id": 7, "state": "ACTIVE", "reason": "RUNNING", "message": "it runs", "slowed": [one]}
    lines = explain_text.page(found, UTC, NOW).splitlines()
    at = lines.index("slowed down  cooling of rack r3 fails: it slows n1 of this run down (since 11:57)")
    assert lines[at + 1].strip() == "look at the cooling"
