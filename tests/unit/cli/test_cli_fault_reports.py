"""Reports of faults to a server of the release before, which needs every field of an event.

Owns: that such a server takes what a client of this release reports. Must not know: connections.
"""

from __future__ import annotations

from typing import Any

import pytest

from airyard.cli.fault_reports import report
from airyard.core.errors import UserError
from airyard.core.health.facts import HealthEvent
from airyard.core.health.reports import read
from airyard.sdk.health import Health
from airyard.sdk.requests import Request

SHORT = {"event_id": "e1", "rule": "xid.79", "node": "n7"}


class ServerOfBefore:
    """Takes reports as that release did: by the events' own form, in which little may be missing."""

    def __init__(self) -> None:
        self.taken: list[HealthEvent] = []

    def __call__(self, request: Request) -> dict[str, Any]:
        assert isinstance(request.body, dict)
        try:
            self.taken += [HealthEvent.from_json(one) for one in request.body["events"]]
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"this is no health event: {error}", code="BAD_HEALTH_EVENT") from error
        return {"taken": len(self.taken)}


def a_node(name: str) -> dict[str, Any]:
    assert name == "n7"
    return {"node": {"name": name}, "machine": {"name": "m7"}}


def test_a_server_that_needs_every_field_gets_them() -> None:
    server = ServerOfBefore()

    assert report(Health(server), a_node, SHORT) == {"taken": 1}
    (event,) = server.taken
    assert (event.machine, event.code, event.remedy) == ("m7", 79, read(SHORT, event.at_ms).remedy)


def test_what_no_server_takes_is_refused_with_its_field() -> None:
    with pytest.raises(UserError, match="event 0 is no health event: rule"):
        report(Health(ServerOfBefore()), a_node, {**SHORT, "rule": "not a name"})


def test_a_server_that_says_which_event_it_refuses_is_not_asked_again() -> None:
    asked = []

    def of_today(request: Request) -> dict[str, Any]:
        asked.append(request.path)
        read({**SHORT, "at_ms": "now"}, 9)
        raise AssertionError

    with pytest.raises(UserError, match="at_ms"):
        report(Health(of_today), a_node, SHORT)
    assert len(asked) == 1
