"""A server in memory for tests of the client and the command line: scripted answers, no socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from airyard.sdk.client import Client
from airyard.sdk.config import Target
from airyard.sdk.requests import PREFIX, Request
from airyard.sdk.transport import Answer


class FakeTransport:
    """Answers ``METHOD /path`` (query left out) by the next of its scripted answers; the last one repeats;
    ``/*`` stands for any last part.

    An answer is a document, an exception to raise, or for a stream a list of objects, bytes and exceptions.
    """

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self.answers = {key: list(values) for key, values in answers.items()}
        self.asked: list[Request] = []
        self.uploads: list[bytes] = []

    def send(self, request: Request, content: BinaryIO | None = None, size: int = 0) -> Answer:
        if content is not None:
            self.uploads.append(content.read(size))
        answer = self._next(request)
        return Answer(status=200, data=answer)

    @contextmanager
    def open(self, request: Request) -> Iterator[Iterator[bytes]]:
        yield self._play(self._next(request))

    def _next(self, request: Request) -> Any:
        self.asked.append(request)
        key = f"{request.method} {request.path.removeprefix(PREFIX).partition('?')[0]}"
        left = self.answers.get(key) or self.answers[f"{key.rpartition('/')[0]}/*"]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _play(self, script: list[Any]) -> Iterator[bytes]:
        for item in script:
            if isinstance(item, BaseException):
                raise item
            yield item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n"


class FakeClock:
    """Seconds that pass only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def fake_client(
    answers: dict[str, list[Any]], home: Any = "unused"
) -> tuple[Client, FakeTransport, FakeClock]:
    """Return a client of a scripted server."""
    transport, clock = FakeTransport(answers), FakeClock()
    target = Target(home=home, host="http://fake", token="t")
    client = Client(target=target, connect=lambda: transport, clock=clock, sleep=clock.sleep)
    return client, transport, clock


def run_document(run_id: int = 12, **changes: Any) -> dict[str, Any]:
    """Return the document of a run that succeeded, with ``changes``."""
    return {
        "run_id": run_id,
        "name": None,
        "experiment": "digits",
        "owner": "ada",
        "project": None,
        "tags": {},
        "state": "ENDED",
        "status": "SUCCEEDED",
        "outcome": "SUCCEEDED",
        "cause": None,
        "simulated": False,
        "accelerator": "GPU_1xA10",
        "nodes": 2,
        "devices_per_node": 1,
        "priority": "NORMAL",
        "pool": None,
        "submitted_at": "2026-01-31T12:00:00Z",
        "started_at": "2026-01-31T12:00:03Z",
        "ended_at": "2026-01-31T12:01:03Z",
        "duration_ms": 60_000,
        "version": 7,
        "phases": [
            {"name": "queued", "started_at": "2026-01-31T12:00:00Z", "duration_ms": 100},
            {"name": "environment", "started_at": "2026-01-31T12:00:00Z", "duration_ms": 2300},
            {"name": "code", "started_at": "2026-01-31T12:00:02Z", "duration_ms": 100},
            {"name": "running", "started_at": "2026-01-31T12:00:03Z", "duration_ms": 60_000},
        ],
        "attempt": 0,
        "attempts": [],
        "max_retries": 3,
        "retries_spent": 0,
        "pending": None,
        "failure": None,
        "tracking": None,
        "code": None,
        "logs_complete": True,
        "exit_code": 0,
        "parameters": {},
        **changes,
    }


def failed_document(run_id: int = 12, **changes: Any) -> dict[str, Any]:
    """Return the document of a run whose node 1 ended with exit code 7."""
    failure = {
        "cause": "USER_CODE",
        "attempt": 0,
        "member": 1,
        "node": "host-b",
        "exit_code": 7,
        "signal": None,
        "message": "the command ended with exit code 7",
        "next_step": None,
    }
    base = {"status": "FAILED", "outcome": "FAILED", "cause": "USER_CODE", "failure": failure, "exit_code": 1}
    return run_document(run_id, **{**base, **changes})
