"""What GO says of tracking: the run's ids, its alias when MLflow was late, nothing when there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airyard.app.orders import OrderDesk
from airyard.core.commands import TrackingAnswered
from airyard.core.run import Tracking, TrackingState
from airyard.core.tracking_alias import alias_of
from core_yard import Yard, node, workload

DESK = OrderDesk(bases={}, secret=lambda *_: ("", False), tracking_uri="http://x/mlflow", yard="yard-1")


def go_of(yard: Yard, run_id: int) -> dict[str, Any]:
    run, attempt = yard.run(run_id), yard.attempt(run_id)
    orders = DESK.orders(run, attempt, attempt.members[0], None, after=1)
    return next(order for order in orders if order["kind"] == "GO")


def placed() -> tuple[Yard, int]:
    yard = Yard(node("n1"))
    run_id = yard.submit(workload(tracked=True))
    yard.place()
    yard.ready(f"{run_id}.0.0")
    return yard, run_id


def answer(yard: Yard, run_id: int, tracking: Tracking) -> None:
    yard.do(TrackingAnswered(run_id=run_id, attempt=0, tracking=tracking))


def test_an_open_run_is_named() -> None:
    yard, run_id = placed()
    answer(yard, run_id, Tracking(state=TrackingState.OPEN, experiment_id="7", run_id="abc"))
    go = go_of(yard, run_id)
    assert go["tracking"] == {"uri": "http://x/mlflow", "run_id": "abc", "experiment_id": "7"}
    assert go["tracking_deferred"] is False


def test_a_late_one_goes_by_its_alias_until_it_is_open() -> None:
    yard, run_id = placed()
    yard.tick(60)
    alias = alias_of("yard-1", f"{run_id}.0")
    go = go_of(yard, run_id)
    assert (go["tracking"]["run_id"], go["tracking"]["experiment_id"]) == (alias.run_id, alias.experiment_id)
    assert go["tracking_deferred"] is True
    answer(yard, run_id, Tracking(state=TrackingState.OPEN, experiment_id="7", run_id="abc"))
    assert go_of(yard, run_id)["tracking"]["run_id"] == "abc"


def test_a_refused_one_is_not_tracked() -> None:
    yard, run_id = placed()
    answer(yard, run_id, Tracking(state=TrackingState.CLOSED, detail="refused"))
    assert go_of(yard, run_id)["tracking"] is None


def test_each_command_has_a_token_of_its_own() -> None:
    yard, run_id = placed()
    desk = replace(DESK, command_token=lambda key: f"ayc_{key}.x")
    answer(yard, run_id, Tracking(state=TrackingState.OPEN, experiment_id="7", run_id="abc"))
    run, attempt = yard.run(run_id), yard.attempt(run_id)
    orders = desk.orders(run, attempt, attempt.members[0], None, after=0)
    assert [(order["kind"], (order.get("tracking") or {}).get("token")) for order in orders] == [
        ("PREPARE", None),
        ("GO", f"ayc_{run_id}.0.0.x"),
    ]
    assert "ayc_" not in json.dumps([dict(order.data) for order in attempt.orders]), "it is not journalled"


def test_without_tracking_a_command_has_no_token() -> None:
    yard, run_id = placed()
    answer(yard, run_id, Tracking(state=TrackingState.CLOSED, detail="refused"))
    desk = replace(DESK, command_token=lambda key: f"ayc_{key}.x")
    run, attempt = yard.run(run_id), yard.attempt(run_id)
    assert "ayc_" not in json.dumps(desk.orders(run, attempt, attempt.members[0], None, after=0))
