"""Who gets a message of which event, and what stands in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airyard.app.notifying import FleetReceiver, Sender
from airyard.core import events as e
from airyard.core.events import Recorded
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.notify import FleetNotice, NotifyRule, RunNotice
from airyard.core.run import Cause, Failure, Outcome, Run
from airyard.ports.notice_store import Message
from core_samples import RUN

HOOK, CHAT = "https://one.example/hook", "{{secrets/ops/chat}}"
AT_MS = 1_700_000_000_000
FAILED = e.RunEnded(
    run_id=5,
    outcome=Outcome.FAILED,
    cause=Cause.USER_CODE,
    failure=Failure(
        cause=Cause.USER_CODE, message="exit code 1.", next_step="see `airyard logs ID`", node="n1"
    ),
)


def run_with(*rules: NotifyRule) -> Run:
    return replace(RUN, workload=replace(RUN.workload, notify=rules))


def rule(to: str, *on: RunNotice, secret: str | None = None) -> NotifyRule:
    return NotifyRule(on=on, to=to, secret=secret)


def made(event: Any, run: Run | None = None, sender: Sender | None = None, seq: int = 7) -> list[Message]:
    sender = sender or Sender(yard="yard-1", server="http://yard:1")
    return sender.messages(Recorded(seq=seq, at_ms=AT_MS, epoch=2, event=event), lambda run_id: run)


@pytest.mark.parametrize(
    ("on", "kinds"),
    [
        ((RunNotice.FAILED,), ["failed"]),
        ((RunNotice.DONE,), ["done"]),
        ((RunNotice.DONE, RunNotice.FAILED), ["failed"]),
        ((RunNotice.PREEMPTED, RunNotice.STALLED), []),
    ],
)
def test_a_receiver_gets_one_message_of_the_kind_that_it_asked_for(
    on: tuple[RunNotice, ...], kinds: list[str]
) -> None:
    assert [message.kind for message in made(FAILED, run_with(rule(HOOK, *on)))] == kinds


def test_each_receiver_gets_its_own_and_none_two() -> None:
    run = run_with(
        rule(HOOK, RunNotice.DONE),
        rule(CHAT, RunNotice.FAILED, secret="ops/key"),
        rule(HOOK, RunNotice.FAILED, secret="ops/other"),
    )
    messages = made(FAILED, run)
    assert {(one.target, one.kind, one.secret) for one in messages} == {
        (CHAT, "failed", "ops/key"),
        (HOOK, "failed", "ops/other"),
    }
    assert len({one.message_id for one in messages}) == 2


def test_the_same_event_makes_the_same_message_and_another_one_another() -> None:
    run = run_with(rule(HOOK, RunNotice.FAILED))
    (one,), (again,), (later,) = made(FAILED, run), made(FAILED, run), made(FAILED, run, seq=8)
    assert one == again
    assert later.message_id != one.message_id
    (elsewhere,) = made(FAILED, run, Sender(yard="yard-2", server="http://yard:1"))
    assert elsewhere.message_id != one.message_id


def test_what_stands_in_a_message_about_a_run() -> None:
    (message,) = made(FAILED, run_with(rule(HOOK, RunNotice.FAILED)))
    body = json.loads(message.body)
    assert list(body) == [
        "id", "kind", "at", "text", "yard", "server", "command", "message", "next_step", "run", "node", "pool",
        "place", "by", "cause",
    ]  # fmt: skip
    assert body["id"] == message.message_id
    assert (body["kind"], body["at"]) == ("failed", "2023-11-14T22:13:20.000Z")
    assert body["text"].endswith("has ended: failed: exit code 1. More: airyard explain 5")
    assert body["command"] == "airyard explain 5"
    assert body["run"]["run_id"] == 5
    assert body["run"]["outcome"] == "FAILED"
    assert (body["node"], body["next_step"], body["cause"]) == ("n1", "see `airyard logs 5`", "USER_CODE")


def test_runs_without_rules_and_events_of_no_interest_make_nothing() -> None:
    assert made(FAILED, run_with()) == []
    assert made(FAILED, None) == []
    assert made(e.RunArchived(run_id=5), run_with(rule(HOOK, RunNotice.DONE))) == []


def test_preemption_is_told_with_its_attempt() -> None:
    event = e.AttemptEnded(
        run_id=5, attempt=2, outcome=Outcome.PREEMPTED, cause=Cause.PREEMPTED, failure=None
    )
    (message,) = made(event, run_with(rule(HOOK, RunNotice.PREEMPTED)))
    body = json.loads(message.body)
    assert body["run"]["attempt"] == 2
    assert "was preempted and waits again" in body["text"]


QUARANTINED = e.NodeHealthChanged(
    node="n1",
    health=NodeHealth(
        state=HealthState.QUARANTINED, since_ms=AT_MS, rule="xid.79", waits_for="replace the GPU"
    ),
    why="xid.79",
    by="agent",
)


@pytest.mark.parametrize(
    ("event", "kind", "text"),
    [
        (QUARANTINED, "node_quarantined", "Node n1 is quarantined: xid.79. More: airyard nodes n1"),
        (
            e.NodeCordoned(node="n1", by="op", reason="dust"),
            "node_cordoned",
            "Node n1 was cordoned by op: dust. More: airyard nodes n1",
        ),
        (
            e.BreakerOpened(pool="h100", why="3 of 8 nodes"),
            "breaker_open",
            "The breaker of pool h100 is open: nothing more is taken out by itself: 3 of 8 nodes. "
            "More: airyard health events",
        ),
        (
            e.LeadBegan(epoch=2, version="1.0"),
            "server_takeover",
            "A server has begun to lead the yard: version 1.0, epoch 2. More: airyard status",
        ),
    ],
)
def test_the_yard_s_messages_go_where_the_configuration_says(event: Any, kind: str, text: str) -> None:
    receivers = [
        FleetReceiver(on={FleetNotice(kind)}, to=HOOK),
        FleetReceiver(on=set(FleetNotice) - {FleetNotice(kind)}, to="https://other.example/"),
    ]
    (message,) = made(event, sender=Sender(yard="y", server="s", fleet=receivers))
    assert (message.kind, message.run_id, message.target) == (kind, None, HOOK)
    assert json.loads(message.body)["text"] == text


def test_queues_are_apart_by_owner_and_host() -> None:
    (mine,) = made(FAILED, run_with(rule(HOOK, RunNotice.DONE)))
    theirs = replace(run_with(rule(HOOK, RunNotice.DONE)), owner="eve")
    (other,) = made(FAILED, theirs)
    assert mine.queue.startswith(f"{RUN.owner} https://one.example ")
    assert other.queue.startswith("eve https://one.example ")
