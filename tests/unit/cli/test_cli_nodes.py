"""What operators type about nodes: the list, one node, cordon, uncordon, drain, confirm-dead."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from airyard.cli.verbs import drain as drain_verb
from airyard.core.errors import Conflict, NotFound
from client_fakes import run_document

AT, LATER = "2026-12-02T12:00:00.000Z", "2026-12-02T12:02:00.000Z"
CORDON = {"by": "op", "at": AT, "reason": "fan"}


def node(name: str, *, run: int | None = None, **fields: Any) -> dict[str, Any]:
    """A node of two devices, the first of which a run may hold."""
    devices = [
        {"index": 0, "uuid": "a", "state": "booked" if run else "free", "run_id": run, "detail": None},
        {"index": 1, "uuid": "b", "state": "free", "run_id": None, "detail": None},
    ]
    made = {
        "name": name, "machine": "host", "accelerator": "GPU_2xH100", "devices": devices, "alive": True,
        "cordoned": False, "cordon": None, "draining": None, "reservation_id": None, "simulated": False, "cpus": 8.0,
        "memory_bytes": 1 << 30, "labels": {}, "pool": "h100",
    }  # fmt: skip
    return made | fields


def closed(name: str, *, deadline: str | None = None, drained: bool | None = None, **fields: Any) -> Any:
    """One that is cordoned, or drained."""
    draining = None if drained is None else {**CORDON, "deadline_at": deadline, "drained": drained}
    return node(name, cordoned=True, cordon=CORDON, draining=draining, **fields)


def page(
    shown: dict[str, Any], *, alive: bool = True, runs: tuple[dict[str, Any], ...] = ()
) -> dict[str, Any]:
    """The answer about one node."""
    machine = {"name": "host", "address": "10.0.0.1", "boot_id": "b7", "alive": alive}
    return {"node": shown, "machine": machine, "runs": list(runs)}


RESIDENT = {
    "run_id": 7, "name": "digits", "owner": "ada", "project": "default", "attempt": 0, "member": 0,
    "phase": "RUNNING", "devices": [0], "leaving": None,
}  # fmt: skip


def test_health_events_begin_with_incidents_of_the_facility(airyard: Any) -> None:
    incident = {
        "place": "rack r3", "supply": "POWER", "began": AT, "ended": None, "nodes": ["n1", "n2", "n3"],
        "why": "the power brake is on at 3 of 4 nodes: n1, n2, n3", "next_step": "look at the supply",
    }  # fmt: skip
    over = {**incident, "supply": "COOLING", "ended": LATER, "next_step": ""}
    slow = {"supply": "POWER", "place": "", "since": AT, "at": LATER, "device": 2, "message": "slowed down"}
    found = {
        "events": [], "breakers": [], "tests": [], "faults": [], "incidents": [over, incident],
        "slowdowns": [{**slow, "node": "n2"}, {**slow, "node": "n9"}],
    }  # fmt: skip
    code, out, err = airyard("health", "events", answers={"GET /health/events": [found]})
    assert code == 0
    first, second, third = out.splitlines()
    assert first.startswith("From 2026-12-02 12:00:00")
    assert "cooling of rack r3 failed" in first
    assert second.startswith("Since 2026-12-02 12:00:00")
    assert second.endswith(
        "power of rack r3 fails (the power brake is on at 3 of 4 nodes: n1, n2, n3): look at the supply"
    )
    # n2 is part of the incident, n9 is on its own.
    assert third.endswith("power of n9: slowed down (since 2026-12-02 12:00:00 +00:00)")
    assert "No node's health has changed" in err + out
    more = {**incident, "nodes": ["n1", "n2", "n3", "n4"]}
    out = airyard("health", "events", answers={"GET /health/events": [{**found, "incidents": [more]}]})[1]
    assert "n1, n2, n3; 4 nodes by now): look" in out
    # The page of a node has its own, with or without others.
    told = {**page(node("n2")), "incidents": [incident], "slowdowns": [{**slow, "node": "n2"}]}
    shown = airyard("nodes", "n2", answers={"GET /nodes/n2": [told]})[1].splitlines()
    assert second in shown
    assert third.replace("n9", "n2") in shown
    # An older server tells of none.
    older = {"events": [], "breakers": []}
    assert airyard("health", "events", answers={"GET /health/events": [older]})[0] == 0


def test_a_node_that_little_speaks_against_says_what_and_how_much(airyard: Any) -> None:
    health = {
        "state": "HEALTHY", "since": None, "rule": "xid.63", "score": 2.0, "attempt": 0, "remedy": "NONE",
        "retest": "T1", "strikes": 0, "waits_for": "", "not_before": None, "waits": None,
    }  # fmt: skip
    code, out, _ = airyard("nodes", "n1", answers={"GET /nodes/n1": [page(node("n1", health=health))]})
    assert (code, "healthy; xid.63, score 2\n" in out) == (0, True)
    well = {**health, "since": AT, "score": 0.0}
    out = airyard("nodes", "n1", answers={"GET /nodes/n1": [page(node("n1", health=well))]})[1]
    assert "healthy since 2026-12-02 12:00:00 +00:00\n" in out
    answers = {"POST /health/report": [{"taken": 1}], "GET /nodes/n1": [page(node("n1", health=health))]}
    out = airyard("health", "report", "n1", "--rule", "xid.63", answers=answers)[1]
    assert out == "n1 is healthy, score 2\n"
    answers["GET /nodes/n1"] = [page(node("n1"))]
    out = airyard("health", "report", "n1", "--rule", "xid.13", answers=answers)[1]
    assert out == "n1 is healthy; this weighs nothing\n"


def test_a_span_that_is_too_long_is_refused_before_anybody_is_asked(airyard: Any) -> None:
    code, _, err = airyard("health", "events", "--since", "99999999d")
    assert (code, "Invalid value for '--since'" in err, "11,574d" in err) == (2, True, True)
    answers = {"GET /runs/7": [{"run": run_document(7)}], "GET /admin/audit": [[]]}
    answers["GET /runs/7/logs"] = [[{"type": "END", "complete": True, "members": []}]]
    asked = (("logs", "7", "--since"), ("admin", "audit", "--since"))
    for verb in asked:  # since ever
        code, _, err = airyard(*verb, "0001-01-01T00:00:00Z", answers=answers)
        assert code == 0, err
    for verb, expected in zip(asked, (0, 2), strict=True):
        code, _, err = airyard(*verb, "9" * 400 + "d", answers=answers)
        assert code == expected, err


def test_the_list_says_of_each_node_what_state_it_is_in_and_who_closed_it(airyard: Any) -> None:
    nodes = [
        node("n1", run=7),
        closed("n2"),
        closed("n3", drained=False, run=8, deadline="2090-01-02T12:00:00Z"),
        closed("n4", drained=True),
        closed("n5", alive=False),
    ]
    code, out, _ = airyard("nodes", answers={"GET /nodes": [{"nodes": nodes}]})
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert code == 0
    assert "CLOSED BY" in rows["NODE"]
    assert "up" in rows["n1"].split()
    assert rows["n2"].endswith("op: fan")
    assert "cordoned" in rows["n2"]
    assert rows["n3"].endswith("op, by 2090-01-02 12:00: fan")
    assert ("draining" in rows["n3"], "run 8" in rows["n3"]) == (True, True)
    assert "drained" in rows["n4"].split()
    assert "down, cordoned" in rows["n5"]
    _, out, _ = airyard("nodes", answers={"GET /nodes": [{"nodes": [node("n1")]}]})
    assert "CLOSED BY" not in out
    _, out, _ = airyard("-o", "json", "nodes", answers={"GET /nodes": [{"nodes": nodes}]})
    assert json.loads(out)["data"]["nodes"] == nodes


def out(name: str, what: str, text: str, until: str | None = None, **fields: Any) -> dict[str, Any]:
    """One that is out for its health and waits for something."""
    health = {
        "state": "QUARANTINED", "since": AT, "rule": "nic.down", "score": 8.0, "attempt": 0, "remedy": "NONE",
        "retest": "T1", "strikes": 1, "waits_for": "", "not_before": until,
        "waits": {"what": what, "text": text, "until": until},
    }  # fmt: skip
    draining = {**CORDON, "by": "airyard health", "reason": "r" * 300, "deadline_at": AT, "drained": True}
    return node(name, cordoned=True, cordon=CORDON, draining=draining, health=health | fields)


def test_what_a_node_that_is_out_waits_for_is_told_of_one_and_in_the_list(airyard: Any) -> None:
    later = "2090-01-02T12:00:00Z"
    nodes = [
        out("n1", "BACK_OFF", "it came back and failed again (strike 1)", later),
        out("n2", "PERSON", "mend it by hand; then `airyard health acquit n2`"),
        out("n3", "TEST", "test T3, 1 of 2 passed", later, state="RETESTING", attempt=1, remedy="REBOOT"),
        node("n4"),
    ]
    _, text, _ = airyard("nodes", answers={"GET /nodes": [{"nodes": nodes}]})
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert "WAITS FOR" in rows["NODE"]
    assert rows["n1"].endswith("the next remedy, at 2090-01-02 12:00")
    assert rows["n2"].endswith("a person")
    assert rows["n3"].endswith("test T3, 1 of 2 passed, by 2090-01-02 12:00")
    # Empty since long: by when it had to be says nothing any more; and a reason is cut.
    assert "by 20" not in rows["n1"].split("rrr")[0]
    assert all(len(row) < 250 for row in rows.values())
    pages = {
        one["name"]: airyard("nodes", one["name"], answers={f"GET /nodes/{one['name']}": [page(one)]})
        for one in nodes
    }
    assert "failed again (strike 1); next remedy at 2090-01-02 12:00:00" in pages["n1"][1]
    assert "next: mend it by hand; then `airyard health acquit n2`" in pages["n2"][1]
    assert "remedy 1 of 3 (REBOOT); test T3, 1 of 2 passed; given up at 2090-01-02" in pages["n3"][1]
    assert "to be empty by" not in pages["n1"][1]


def test_one_node_is_shown_with_its_runs(airyard: Any) -> None:
    leaving = {"reason": "DRAIN", "by": "op", "at": AT, "gone_by": LATER, "message": ""}
    answer = page(closed("n1", drained=False, run=7), runs=({**RESIDENT, "leaving": leaving},))
    code, out, _ = airyard("nodes", "n1", answers={"GET /nodes/n1": [answer]})
    assert code == 0
    assert "by op since 2026-12-02" in out
    assert "host (10.0.0.1), up" in out
    assert "GPU_2xH100, 1 of 2 devices free" in out
    assert "(DRAIN)" in out.splitlines()[-1]
    _, out, _ = airyard("nodes", "n1", "-o", "json", answers={"GET /nodes/n1": [answer]})
    assert json.loads(out)["data"] == answer
    missing = NotFound("there is no node 'n9'; did you mean 'n1'?", code="NODE_NOT_FOUND")
    code, _, err = airyard("nodes", "n9", answers={"GET /nodes/n9": [missing]})
    assert (code, "did you mean 'n1'" in err) == (3, True)


def test_cordon_and_uncordon_say_what_was_news(airyard: Any) -> None:
    done = {
        "nodes": [
            {"name": "n1", "changed": True, "message": "is cordoned", "node": closed("n1")},
            {"name": "n2", "changed": False, "message": "is cordoned already, by eve", "node": closed("n2")},
        ],
        "runs": [],
    }
    code, out, _ = airyard("cordon", "n1", "n2", "--reason", "fan", answers={"POST /nodes/cordon": [done]})
    assert (code, out) == (0, "n1 is cordoned\nn2 is cordoned already, by eve\n")
    assert airyard.transport.asked[-1].body == {"nodes": ["n1", "n2"], "reason": "fan"}
    code, out, _ = airyard("uncordon", "n1", "-o", "json", answers={"POST /nodes/uncordon": [done]})
    assert (code, json.loads(out)["data"]) == (0, done)


DRAINED = {
    "nodes": [{"name": "n1", "changed": True, "message": "is drained", "node": closed("n1", drained=False, run=7)}],
    "runs": [{"run_id": 7, "owner": "ada", "nodes": ["n1"], "asked_at": AT, "gone_by": LATER}],
}  # fmt: skip


def test_drain_says_who_leaves_and_waits_until_nothing_is_left(
    airyard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain_verb, "POLL_S", 0.0)
    answers = {
        "POST /nodes/drain": [DRAINED],
        "GET /nodes": [
            {"nodes": [closed("n1", drained=False, run=7), node("n2", run=9)]},
            {"nodes": [closed("n1", drained=True), node("n2", run=9)]},
        ],
    }
    code, out, err = airyard("drain", "n1", "--wait", "--reason", "fan", answers=answers)
    assert code == 0
    assert out.startswith("n1 is drained\nrun 7 (ada) on n1: asked to leave at 2026-12-02")
    assert out.endswith("n1: nothing is left\n")
    assert err == "waiting for n1: run 7\n"


def test_a_deadline_is_a_span_from_now(airyard: Any) -> None:
    code, out, _ = airyard(
        "drain", "n1", "--deadline", "2h", "-o", "json", answers={"POST /nodes/drain": [DRAINED]}
    )
    assert (code, json.loads(out)["data"]) == (0, DRAINED)
    assert airyard.transport.asked[-1].body == {"nodes": ["n1"], "reason": "", "deadline_s": 7200}
    code, _, err = airyard("drain", "n1", "--deadline", "soon", answers={})
    assert (code, "is not a span such as" in err) == (2, True)


@pytest.mark.parametrize("verb", [("confirm-dead",), ("nodes", "confirm-dead")])
def test_a_machine_is_dead_only_on_a_word_that_was_asked_for(
    airyard: Any, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    answers = {
        "GET /nodes/n1": [page(node("n1", alive=False), alive=False, runs=(RESIDENT,))],
        "POST /nodes/n1/confirm-dead": [{"machine": "host", "changed": True, "message": "is taken for dead"}],
    }
    code, _, err = airyard(*verb, "n1", answers=answers)
    assert code == 2
    assert "Machine host (10.0.0.1) is away. Runs on n1: 7 (ada)" in err
    assert "-y goes ahead without asking" in err
    code, out, _ = airyard(*verb, "n1", "--yes", "--reason", "burnt", answers=answers)
    assert (code, out) == (0, "machine host is taken for dead\n")
    assert airyard.transport.asked[-1].body == {"reason": "burnt", "boot_id": "b7"}
    assert airyard(*verb, "n1", "-o", "json", answers=answers)[0] == 2


def test_of_a_machine_that_is_connected_nobody_is_asked(airyard: Any) -> None:
    refusal = Conflict("machine host is connected to this server", code="MACHINE_IS_ALIVE", fix="drain it")
    answers = {"GET /nodes/n1": [page(node("n1"))], "POST /nodes/n1/confirm-dead": [refusal]}
    code, _, err = airyard("confirm-dead", "n1", answers=answers)
    assert (code, "is connected" in err, "Is it really dead" in err) == (2, True, False)
