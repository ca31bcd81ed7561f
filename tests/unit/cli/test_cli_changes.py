"""The verbs for what comes after submit: what they ask of the server, and what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airyard.core.errors import Conflict
from client_fakes import run_document

QUEUED = {"state": "QUEUED", "status": "QUEUED", "outcome": None, "ended_at": None, "exit_code": None}
BEGIN = "2026-12-02T08:00:00.000Z"
RESERVATION = {
    "reservation_id": 3, "nodes": ["n1", "n2"], "from_at": BEGIN, "to_at": "2026-12-02T10:00:00.000Z", "active": False,
    "maintenance": True, "project": None, "by": "ada", "note": "new fans",
}  # fmt: skip


def answer(*changed: str, warnings: tuple[str, ...] = (), **run: Any) -> dict[str, Any]:
    return {"run": run_document(12, **QUEUED, **run), "changed": [*changed], "warnings": [*warnings]}


def asked(airyard: Any) -> Any:
    return airyard.transport.asked[-1].body


def test_update_sends_only_what_is_named_and_says_what_changed(airyard: Any) -> None:
    told = answer("priority", "timeout_s", priority="CRITICAL", timeout_s=5400, warnings=("attempt 0 ...",))
    answers = {"POST /runs/12/update": [told]}
    code, out, err = airyard("update", "12", "--priority", "critical", "--timeout", "1h30m", answers=answers)
    assert (code, out) == (0, "run 12: priority CRITICAL, time limit 1 h 30 min\n")
    assert err == "warning: attempt 0 ...\n"
    assert asked(airyard) == {"priority": "CRITICAL", "timeout_s": 5400}


def test_none_and_now_take_limit_and_begin_away(airyard: Any) -> None:
    answers = {"POST /runs/12/update": [answer("timeout_s", "begin_at")]}
    code, out, _ = airyard("update", "12", "--timeout", "none", "--begin", "now", answers=answers)
    assert (code, out) == (0, "run 12: time limit none, begins as soon as there is room\n")
    assert asked(airyard) == {"timeout_s": None, "begin_at": None}


def test_a_begin_in_no_time_is_now(airyard: Any) -> None:
    answers = {"POST /runs/12/update": [answer("begin_at")]}
    assert airyard("update", "12", "--begin", "+0m", answers=answers)[0] == 0
    assert asked(airyard) == {"begin_at": None}


def test_a_begin_is_sent_in_utc(airyard: Any) -> None:
    answers = {"POST /runs/12/update": [answer("begin_at", begin_at=BEGIN)]}
    code, out, _ = airyard("update", "12", "--begin", "2026-12-02T09:00:00+01:00", answers=answers)
    assert (code, asked(airyard)) == (0, {"begin_at": BEGIN})
    assert out.startswith("run 12: begins not before 2026-12-02 ")


def test_nothing_new_is_said_to_be_so(airyard: Any) -> None:
    answers = {"POST /runs/12/update": [answer()]}
    assert airyard("update", "12", "--project", "nlp", answers=answers)[1] == (
        "run 12 is so already: nothing to change\n"
    )
    assert airyard("hold", "12", answers=answers)[1] == "run 12 was held already\n"
    assert airyard("release", "12", answers=answers)[1] == "run 12 was not held\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("update", "12"), "Name what to change"),
        (("update", "12", "--timeout", "90"), "is not a span such as"),
        (("update", "12", "--timeout", "0s"), "is no time at all"),
        (("update", "12", "--timeout", "-5m"), "is not a span such as"),
        (("update", "12", "--begin", "soon"), "is not a time such as"),
        (("update", "12", "--priority", "URGENT"), "URGENT"),
        (("hold",), "Missing argument"),
        (("reserve", "--nodes", "n1"), "Say when it ends"),
        (("reserve", "--nodes", "n1", "--for", "1h", "--to", "08:00"), "Say when it ends"),
        (("reserve", "--nodes", "n1", "--to", "now"), "over at once"),
        (("reserve", "--for", "1h"), "Missing option '--nodes'"),
        (("reserve", "--nodes", "n1", "--for", "1h", "--maintenance", "--project", "p"), "nobody's runs"),
        (("unreserve", "n1"), "'n1' is no number of a reservation; `airyard reservations` lists them"),
        (("unreserve", "0"), "'0' is no number of a reservation"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(airyard: Any, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = airyard(*arguments, answers={})
    assert (code, out) == (2, "")
    assert words in err


def test_hold_and_release_say_what_comes_next(airyard: Any) -> None:
    answers = {"POST /runs/12/update": [answer("held", held=True), answer("held")]}
    code, out, _ = airyard("hold", "12", answers=answers)
    assert (code, asked(airyard)) == (0, {"held": True})
    assert out == "run 12 is held; `airyard release 12` lets it go\n"
    code, out, _ = airyard("release", "12", answers=answers)
    assert (code, asked(airyard), out) == (0, {"held": False}, "run 12 is released\n")


def test_of_several_runs_the_others_go_on_after_a_refusal(airyard: Any) -> None:
    refusal = Conflict(
        "run 13 is running; only while it is queued can it be held.", code="RUN_NOT_QUEUED", fix="stop it"
    )
    answers = {"POST /runs/13/update": [refusal], "POST /runs/12/update": [answer("held", held=True)]}
    code, out, err = airyard("hold", "13", "12", answers=answers)
    assert (code, out.startswith("run 12 is held")) == (2, True)
    assert "error: run 13 is running" in err
    code, out, _ = airyard("-o", "json", "hold", "13", "12", answers=answers)
    found = json.loads(out)["data"]
    assert (code, len(found["held"]), found["failed"][0]["code"]) == (2, 1, "RUN_NOT_QUEUED")
    assert found["failed"][0]["details"]["ref"] == "13"
    assert airyard("hold", "13", answers=answers)[0] == 2


def test_a_held_run_is_seen_as_such(airyard: Any) -> None:
    runs = [run_document(12, **QUEUED, held=True)]
    _, out, _ = airyard("list", answers={"GET /runs": [{"runs": runs, "next_before": None}]})
    assert "QUEUED (held)" in out


def test_reserve_asks_for_nodes_time_and_purpose(airyard: Any) -> None:
    answers = {"POST /reservations": [{"reservation": RESERVATION, "warnings": ["run 7 (ada) on n1 ..."]}]}
    code, out, err = airyard(
        "reserve", "--nodes", "n1,n2", "--from", BEGIN, "--for", "2h", "--maintenance", "--note", "new fans",
        answers=answers,
    )  # fmt: skip
    assert (code, err) == (0, "warning: run 7 (ada) on n1 ...\n")
    assert out.startswith("reservation 3: n1, n2 for maintenance, 2026-12-02 ")
    assert asked(airyard) == {
        "nodes": ["n1", "n2"], "from_at": BEGIN, "duration_s": 7200, "maintenance": True, "note": "new fans",
    }  # fmt: skip
    code, out, _ = airyard(
        "reserve", "--nodes", "n1", "--nodes", "n2", "--to", BEGIN, "--evict", "-o", "json", answers=answers
    )
    assert (code, json.loads(out)["data"]["reservation"]) == (0, RESERVATION)
    assert asked(airyard) == {"nodes": ["n1", "n2"], "to_at": BEGIN, "evict": True}


def test_reservations_are_listed_and_taken_back(airyard: Any) -> None:
    answers: dict[str, list[Any]] = {
        "GET /reservations": [{"reservations": [RESERVATION]}, {"reservations": []}]
    }
    _, out, _ = airyard("reservations", answers=answers)
    row = out.splitlines()[1].split()
    assert row[:4] == ["3", "n1,", "n2", "planned"]
    assert out.splitlines()[1].rstrip().endswith("new fans")
    answers["GET /reservations"] = [{"reservations": []}]
    assert airyard("reservations", answers=answers)[2] == "No reservations.\n"
    gone = {"DELETE /reservations/3": [{"reservation_id": 3}]}
    assert airyard("unreserve", "3", answers=gone)[1] == "reservation 3 is taken back\n"
    _, out, _ = airyard("-o", "json", "unreserve", "3", answers=gone)
    assert json.loads(out)["data"] == {"unreserved": [3], "failed": []}
