"""A runner of protocol 1, as it was recorded, is served to its end; and a runner follows an older server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airyard.app.orders import OrderDesk
from airyard.core.ids import MemberKey
from airyard.core.versions import RUNNER
from airyard.node.runner_http import Servers
from airyard.server.routes_runner import router
from server_yard import Yard, play, submit

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "runner_1.json").read_text())
ENDS = "LOGS_CLOSED"
KEY = MemberKey(1, 0, 0)


def first_runner() -> list[dict[str, Any]]:
    """Return what the first of the two recorded runners asked, up to its last report."""
    asked = [one for one in RECORDED if "method" in one]
    last = next(
        number
        for number, one in enumerate(asked)
        if any(report["kind"] == ENDS for report in one.get("json", {}).get("reports", ()))
    )
    return asked[: last + 1]


def answered(path: str) -> list[dict[str, Any]]:
    """Return all recorded answers to one kind of request; a poll's, a report's, a log batch's."""
    marks = {"orders": "orders", "reports": "acknowledged", "logs": "next"}
    return [one["answer"] for one in RECORDED if marks[path] in one.get("answer", {})]


def test_a_recorded_runner_is_served_to_its_end(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "home")
    desk = OrderDesk(bases={}, secret=lambda *_: ("", False), tracking_uri="", yard="yard")
    yard.app.include_router(router(desk))

    async def scene() -> None:
        orders: dict[str, dict[str, Any]] = {}
        async with yard.client() as client:
            await submit(client)
            epoch = (await yard.placed(1)).attempts[0].epoch
            headers = yard.as_attempt()
            poll = ""
            for asked in first_runner():
                path = asked["path"].partition("?")[0]
                if path == "orders":
                    poll = f"/runner/{asked['path'].replace('wait_s=20', 'wait_s=0')}"
                    found = await client.get(poll, headers=headers)
                elif path == "reports":
                    body = {**asked["json"], "epoch": epoch}
                    found = await client.post("/runner/reports", json=body, headers=headers)
                else:
                    data = bytes.fromhex(asked["hex"])
                    found = await client.post("/runner/logs", content=data, headers=headers)
                assert found.status_code == 200, (asked, found.text)
                for wanted in answered(path):
                    assert wanted.keys() <= found.json().keys(), asked
                assert found.json().get("protocol", 1) == 1 or path == "logs"
                # The recorded poll was waiting while the runner reported.
                news = (await client.get(poll, headers=headers)).json().get("orders", ())
                orders |= {order["kind"]: order for order in news}
            assert yard.context.older_runners == {KEY}
            recorded = {order["kind"]: order for one in answered("orders") for order in one["orders"]}
            assert orders.keys() == recorded.keys() == {"PREPARE", "GO"}
            assert all(recorded[kind].keys() <= orders[kind].keys() for kind in recorded)
            run = (await client.get("/runs/1")).json()["run"]
            assert (run["outcome"], run["logs_complete"]) == ("SUCCEEDED", True), run
            lines = (await client.get("/runs/1/logs/raw", params={"node": 0})).content
            assert lines == b"hello\nbye\n"

    try:
        play(scene())
    finally:
        yard.stop()


@pytest.mark.parametrize("spoken", [0, RUNNER.newest + 2])
def test_a_runner_too_far_away_is_told_so(tmp_path: Path, spoken: int) -> None:
    yard = Yard(tmp_path / "home")
    yard.app.include_router(router(OrderDesk.__new__(OrderDesk)))

    async def scene() -> None:
        async with yard.client() as client:
            headers = yard.as_attempt()
            poll = await client.get(f"/runner/orders?wait_s=0&protocol={spoken}", headers=headers)
            body = {"protocol": spoken, "epoch": 1, "reports": []}
            report = await client.post("/runner/reports", json=body, headers=headers)
            for answer in (poll, report):
                assert (answer.status_code, answer.json()["error_code"]) == (400, "PROTOCOL_MISMATCH")

    try:
        play(scene())
    finally:
        yard.stop()


def test_a_runner_speaks_what_the_leader_speaks() -> None:
    servers = Servers("http://a")
    assert servers.spoken == RUNNER.oldest
    seen = []
    for answer in (RUNNER.newest, RUNNER.oldest, RUNNER.newest + 1, None):
        servers.answered(answer)
        seen.append(servers.spoken)
    assert seen == [RUNNER.newest, RUNNER.oldest, RUNNER.newest, RUNNER.oldest]
