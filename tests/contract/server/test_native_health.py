"""The routes of nodes' health, and the unattended circle: each step is asked for and done as the server does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.commands import Command, HealthReported, RemedyDone, RetestDone, SweepDone
from airyard.core.health.fabric_faults import edge_fault
from airyard.core.health.facts import CheckStatus, HealthEvent, Remedy, Retest
from airyard.core.health.idle_records import SweepNote
from airyard.core.health.states import RemedyOutcome
from airyard.server import remedies as remedies_of
from airyard.server.remedies import Remedies
from airyard.wire import native
from airyard.wire.health import HealthEventsAnswer, HealthReportAnswer
from airyard.wire.nodes import NodeAnswer, OperatedAnswer
from server_yard import Yard, play

ONE, TWO = "sim-1xa10-0", "sim-1xa10-1"
PATIENCE_S = 30.0


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def fault(node: str, rule: str = "xid.79", **changes: Any) -> dict[str, Any]:
    told = {
        "event_id": f"{node}.{rule}",
        "rule": rule,
        "machine": "host",
        "node": node,
        "at_ms": time.time_ns() // 1_000_000,
        "component": "GPU",
        "severity": "CRITICAL",
        "source": "OPERATOR",
        "message": "the GPU is off the bus",
        "device": 0,
        "code": 79,
        "evidence": ["NVRM: Xid (PCI:0000:1b:00): 79"],
    }
    return {**told, **changes}


async def report(client: httpx.AsyncClient, *events: dict[str, Any]) -> None:
    answer = await client.post("/health/report", json={"events": events})
    assert answer.status_code == 200, answer.text
    said = HealthReportAnswer.model_validate(answer.json())
    assert said.taken == len(events)
    long = [place for place, event in enumerate(events) if len(event.get("evidence", ())) > 5]
    assert [note.partition(":")[0] for note in said.notes] == [f"event {place}" for place in long]


async def look(client: httpx.AsyncClient, node: str) -> NodeAnswer:
    return NodeAnswer.model_validate((await client.get(f"/nodes/{node}")).json())


def work(yard: Yard) -> None:
    """Carry out what the loop has asked for so far, through the server's own part for it."""
    remedies = Remedies({})
    remedies.start(lambda command: yard.tell(command))
    asked = [action for action in yard.actions if isinstance(action, RunRemedy | RunRetest)]
    yard.actions[:] = [action for action in yard.actions if action not in asked]
    for action in asked:
        remedies.do(action)
    remedies.stop()


def test_a_broken_node_goes_round_the_circle_and_tells_its_story(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await report(client, fault(ONE))
            await report(client, fault(ONE, evidence=["NVRM: Xid (PCI:0000:1b:00): 79"] * 7))
            assert (await look(client, ONE)).node.cordoned
            deadline = time.monotonic() + PATIENCE_S
            while (shown := await look(client, ONE)).node.health is None or (
                shown.node.health.state != "PROBATION" and time.monotonic() < deadline
            ):
                time.sleep(0.1)
                work(yard)
            assert not shown.node.cordoned
            assert [step.after for step in shown.story] == [
                "CORDONED", "DRAINING", "QUARANTINED", "RESETTING", "RETESTING", "RETESTING", "PROBATION",
            ]  # fmt: skip
            assert shown.story[0].evidence == ["NVRM: Xid (PCI:0000:1b:00): 79"]
            answer = await client.get("/health/events", params={"node": ONE, "since_s": 600})
            told = HealthEventsAnswer.model_validate(answer.json())
            assert told.events == shown.story
            print()
            for step in shown.story:
                print(f"{step.at}  {step.before:>12} -> {step.after}")

    play(scene())


def test_a_fault_between_nodes_is_listed_until_it_is_found_well(yard: Yard) -> None:
    async def standing(client: httpx.AsyncClient, **asked: Any) -> list[tuple[str, str, str]]:
        answer = await client.get("/health/events", params=asked)
        told = HealthEventsAnswer.model_validate(answer.json())
        assert all(one.next_step and one.since <= one.seen for one in told.faults)
        return [(one.pool, one.what, one.where) for one in told.faults]

    async def scene() -> None:
        async with yard.client() as client:
            bad = SweepNote(number=0, at_ms=yard.context.clock.now_ms(), tests=9, edges=((ONE, TWO),))
            yard.tell(SweepDone(pool="GPU_1xA10", sweep=bad))
            assert await standing(client) == [("GPU_1xA10", "EDGE", f"{ONE} - {TWO}")]
            assert await standing(client, node=ONE) == []
            well = replace(bad, number=1, edges=(), well=(edge_fault((ONE, TWO)),))
            yard.tell(SweepDone(pool="GPU_1xA10", sweep=well))
            assert await standing(client) == []

    play(scene())


def test_maintenance_acquittal_and_the_breaker_are_asked_for_by_persons(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            answer = await client.post(
                "/health/maintenance", json={"nodes": [ONE], "on": True, "reason": "fan"}
            )
            done = OperatedAnswer.model_validate(answer.json())
            assert done.nodes[0].node is not None
            assert (done.nodes[0].changed, done.nodes[0].node.cordoned) == (True, True)
            refused = await client.post("/nodes/uncordon", json={"nodes": [ONE]})
            assert refused.status_code == 409
            assert native.ErrorAnswer.model_validate(refused.json()).error.code == "NODE_UNHEALTHY"
            refused = await client.post("/health/acquit", json={"nodes": [ONE]})
            assert native.ErrorAnswer.model_validate(refused.json()).error.code == "NODE_NOT_QUARANTINED"
            answer = await client.post("/health/breaker/reset", json={})
            assert OperatedAnswer.model_validate(answer.json()).nodes == []
            for wrong, code in (
                ({"rule": "x"}, "BAD_HEALTH_EVENT"),
                (fault(ONE, message="m" * 100_000), "BAD_HEALTH_EVENT"),
                (fault("nosuch"), "NODE_NOT_FOUND"),
                (fault(ONE, device=99), "DEVICE_NOT_FOUND"),
            ):
                # All or nothing: what is right beside it is not taken either.
                refused = await client.post("/health/report", json={"events": [fault(TWO), wrong]})
                error = native.ErrorAnswer.model_validate(refused.json()).error
                assert (error.code, bool(error.fix)) == (code, True)
            assert (await look(client, TWO)).node.health is None

    play(scene())


def test_a_name_that_is_nowhere_is_no_empty_answer(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for answer, code in (
                (await client.get("/health/events", params={"node": "sim-1xa10-7"}), "NODE_NOT_FOUND"),
                (await client.post("/health/check", json={"node": "sim-1xa10-7"}), "NODE_NOT_FOUND"),
                (await client.post("/health/pair", json={"nodes": [ONE, "sim-1xa10-7"]}), "NODE_NOT_FOUND"),
                (await client.post("/health/breaker/reset", json={"pool": "GPU_1xA1"}), "POOL_NOT_FOUND"),
            ):
                assert answer.status_code == 404, answer.text
                error = native.ErrorAnswer.model_validate(answer.json()).error
                assert (error.code, "did you mean" in error.message) == (code, True)
                assert error.fix is not None

    play(scene())


REMEDY = RunRemedy(node="n1", machine="m1", name="n1/1/1", remedy=Remedy.REBOOT, simulated=False)
RETEST = RunRetest(node="n1", machine="m1", name="n1/1/1/0", level=Retest.T2, simulated=False)


def answer_of(action: RunRemedy | RunRetest, **commands: str) -> RemedyDone | RetestDone:
    """What the server's part says of one action with these commands configured."""
    answers: list[Command] = []
    remedies = Remedies(commands)
    remedies.start(answers.append)
    remedies.do(action)
    remedies.do(action)
    remedies.stop()
    wait(lambda: len(answers) > 0)
    (done,) = answers
    assert isinstance(done, RemedyDone | RetestDone)
    return done


def wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_simulated_nodes_have_commands_of_their_own_and_never_a_real_machines(tmp_path: Path) -> None:
    real, practice = tmp_path / "real", tmp_path / "practice"
    commands = {"reboot_command": f"touch {real}", "retest_command": f"touch {real}; exit 1"}
    for action in (replace(REMEDY, simulated=True), replace(RETEST, simulated=True)):
        assert answer_of(action, **commands).message == "simulated"
    assert not real.exists()
    commands["simulated_remedy_command"] = f"echo $AIRYARD_REMEDY > {practice}"
    commands["simulated_retest_command"] = "exit 1"
    mended = answer_of(replace(REMEDY, simulated=True), **commands)
    tested = answer_of(replace(RETEST, simulated=True), **commands)
    assert isinstance(mended, RemedyDone)
    assert isinstance(tested, RetestDone)
    assert (mended.outcome, practice.read_text()) == (RemedyOutcome.SUCCEEDED, "REBOOT\n")
    assert tested.status is CheckStatus.FAIL
    assert not real.exists()


def test_a_configured_command_is_told_the_node_and_its_exit_status_decides(tmp_path: Path) -> None:
    said = tmp_path / "said"
    done = answer_of(REMEDY, reboot_command=f'sleep 0.3; echo "$AIRYARD_NODE $AIRYARD_ATTEMPT" >> {said}')
    assert isinstance(done, RemedyDone)
    assert (done.outcome, said.read_text()) == (
        RemedyOutcome.SUCCEEDED,
        "n1 n1/1/1\n",
    )  # once, though asked twice
    outcomes = []
    for command in ("exit 75", "echo no way; exit 1"):
        done = answer_of(REMEDY, reboot_command=f"sleep 0.3; {command}")
        assert isinstance(done, RemedyDone)
        outcomes.append((done.outcome, "no way" in done.message))
    assert outcomes == [(RemedyOutcome.TRANSIENT, False), (RemedyOutcome.PERMANENT, True)]


@pytest.mark.parametrize(
    ("boots", "changes", "outcome"),
    [
        (["boot-1", "boot-1", "boot-2"], True, RemedyOutcome.SUCCEEDED),
        (["boot-1", "", "boot-2"], True, RemedyOutcome.SUCCEEDED),
        (["boot-1"], True, RemedyOutcome.PERMANENT),
        (["boot-1"], False, RemedyOutcome.SUCCEEDED),
        ([""], True, RemedyOutcome.SUCCEEDED),  # nobody knows its boots
    ],
)
def test_a_reboot_is_done_when_the_machine_was_started_again(
    boots: list[str], changes: bool, outcome: RemedyOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(remedies_of.DEADLINE_MS, Remedy.REBOOT, 600)
    monkeypatch.setattr(remedies_of, "LEFT_S", 0.1)
    monkeypatch.setattr(remedies_of, "LOOK_S", 0.05)
    answers: list[Command] = []
    told = iter(boots)
    remedies = Remedies({"reboot_command": "true", "reboot_changes_boot": changes})
    remedies.start(answers.append, boot=lambda machine: next(told, boots[-1]) if machine == "m1" else "x")
    remedies.do(REMEDY)
    wait(lambda: len(answers) > 0)
    remedies.stop()
    (done,) = answers
    assert isinstance(done, RemedyDone)
    assert done.outcome is outcome
    assert ("machine m1 was not started again" in done.message) is (outcome is RemedyOutcome.PERMANENT)


def test_what_is_not_configured_and_what_nobody_knows_is_left_to_a_person(tmp_path: Path) -> None:
    nothing = answer_of(REMEDY)
    assert isinstance(nothing, RemedyDone)
    assert (nothing.outcome, "reboot_command is not configured" in nothing.message) == (
        RemedyOutcome.CANCELLED,
        True,
    )
    said = tmp_path / "said"
    again = RunRemedy(
        node="n1", machine="m1", name="n1/1/1", remedy=Remedy.REBOOT, simulated=False, again=True
    )
    unsure = answer_of(again, reboot_command=f"echo x >> {said}")
    assert isinstance(unsure, RemedyDone)
    assert (unsure.outcome, said.exists()) == (RemedyOutcome.PERMANENT, False)


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 0", CheckStatus.PASS), ("exit 1", CheckStatus.FAIL), ("exit 5", CheckStatus.UNKNOWN)],
)
def test_a_test_that_says_neither_yes_nor_no_is_unknown(command: str, status: CheckStatus) -> None:
    done = answer_of(RETEST, retest_command=f"sleep 0.3; {command}")
    assert isinstance(done, RetestDone)
    assert done.status is status


LOUD = '\x1b[2J\x1b]0;owned\x07"\n' + "x" * 100_000


def test_what_a_monitor_sends_is_shown_plain_and_bounded_everywhere(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            names = {"event_id": LOUD, "rule": LOUD, "machine": LOUD, "unit": LOUD, "device_uuid": LOUD}
            grave = fault(ONE, message=LOUD, evidence=[LOUD] * 50, code=None, **names)
            # As an agent does: what persons report is refused where it is too long.
            yard.tell(HealthReported(events=(HealthEvent.from_json(grave),)))
            asked = {"nodes": [TWO], "on": True, "reason": "\x1b[2J"}
            assert (await client.post("/health/maintenance", json=asked)).status_code == 200
            for path in ("/health/events", f"/nodes/{ONE}", "/nodes", f"/nodes/{TWO}"):
                answer = await client.get(path)
                assert len(answer.content) < 40_000, path
                assert "\\u001b" not in answer.text, path
                assert "\x1b" not in answer.text, path
            node = await look(client, ONE)
            assert node.node.health is not None
            assert "… (cut: " in node.story[0].evidence[0]
            assert "… (cut: " in node.story[0].why

    play(scene())
