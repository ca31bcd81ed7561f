"""A real embedded MLflow behind a real proxy on loopback, one of each for the folder's tests."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI, Request

from airyard.adapters.mlflow_rest import MlflowTracker
from airyard.adapters.mlflow_server import EmbeddedMlflow
from airyard.adapters.tracking_replay import SpoolReplayer
from airyard.adapters.tracking_spool import Spools
from airyard.core.errors import Denied, NotFound
from airyard.core.tracking_alias import alias_of
from airyard.ports.tracker import OpenRun, TrackerKind
from airyard.server.mlflow_people import PersonScope
from airyard.server.mlflow_policy import AttemptScope
from airyard.server.mlflow_proxy import MlflowProxy, router

USER_TOKEN = "ayt_user"


@dataclass(slots=True)
class Gate:
    """Who may come in: one user, and the attempts that a test adds by token."""

    attempts: dict[str, AttemptScope] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    people: dict[str, PersonScope] = field(default_factory=dict)

    def resolve(self, key: str) -> Callable[[bytes], bytes] | None:
        """Say as the server does how the real ids of an attempt's run come into its held writes."""
        scope = self.attempts[key]
        if key in self.refused:
            raise NotFound(f"attempt {key} has no tracked run", code="TRACKING_NOT_OPEN")
        alias, real = scope.alias, scope.real
        return None if alias is None or real is None else lambda body: alias.replaced_in(body, real)

    def authorise(self, request: Request) -> AttemptScope | PersonScope | None:
        header = request.headers.get("authorization", "")
        token = header.removeprefix("Bearer ") if header else request.cookies.get("airyard_session", "")
        if token == USER_TOKEN:
            return None
        if token in self.attempts:
            return self.attempts[token]
        if token in self.people:
            return self.people[token]
        raise Denied("no valid token", code="UNAUTHENTICATED")


@dataclass(slots=True)
class Yard:
    """The parts a test works with."""

    folder: Path
    mlflow: EmbeddedMlflow
    tracker: MlflowTracker
    spools: Spools
    gate: Gate
    url: str

    def open(self, token: str, experiment: str) -> AttemptScope:
        """Open a tracked run and let ``token`` in as its attempt."""
        opened = self.tracker.open_run(
            OpenRun(key=f"proxy/{token}", experiment=experiment, run_name="r", start_ms=1, user="ada")
        )
        alias = known.alias if (known := self.gate.attempts.get(token)) else None
        scope = AttemptScope(key=token, run_id=opened.run_id, experiment_id=opened.experiment_id, alias=alias)
        self.gate.attempts[token] = scope
        return scope

    def defer(self, token: str) -> AttemptScope:
        """Let ``token`` in as an attempt that did not wait for MLflow."""
        scope = AttemptScope(key=token, run_id=None, experiment_id=None, alias=alias_of("proxy", token))
        self.gate.attempts[token] = scope
        return scope

    def environment(self, token: str) -> dict[str, str]:
        """Return what user code of the attempt finds."""
        scope = self.gate.attempts[token]
        run_id = scope.run_id if scope.run_id or scope.alias is None else scope.alias.run_id
        return (
            os.environ
            | {
                "MLFLOW_TRACKING_URI": f"{self.url}/mlflow",
                "MLFLOW_TRACKING_TOKEN": token,
                "MLFLOW_RUN_ID": str(run_id),
            }
            | ({"MLFLOW_EXPERIMENT_ID": scope.alias.experiment_id} if scope.alias else {})
        )

    def client(self, token: str = USER_TOKEN) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.url}/mlflow", headers=headers, timeout=60)


def _wait_until(condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Return a function that waits for a condition, at most 90 s."""
    return _wait_until


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    folder: Path = tmp_path_factory.mktemp("tracking")
    spools = Spools(folder / "spool")
    mlflow = EmbeddedMlflow(folder / "mlflow", folder / "mlflow.log")
    gate = Gate()
    replayer = SpoolReplayer(spools, mlflow.endpoint, resolve=gate.resolve)
    proxy = MlflowProxy(
        upstream=mlflow.endpoint,
        authorise=gate.authorise,
        scope_of=lambda found: found if isinstance(found, AttemptScope) else None,
        person_of=lambda found: found if isinstance(found, PersonScope) else None,
        spools=spools,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI):
        yield
        await proxy.aclose()

    app = FastAPI(lifespan=lifespan)
    app.include_router(router(proxy))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    # Naming the protocol matters: asyncio sets TCP_NODELAY only on sockets that carry its number.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    mlflow.start()
    replayer.start()
    thread.start()
    tracker = MlflowTracker(mlflow.endpoint, supervised_state=mlflow.state)
    try:
        _wait_until(lambda: server.started and mlflow.state().kind is TrackerKind.UP)
        yield Yard(
            folder / "mlflow", mlflow, tracker, spools, gate, f"http://127.0.0.1:{listener.getsockname()[1]}"
        )
    finally:
        server.should_exit = True
        thread.join(10)
        tracker.close()
        replayer.stop()
        mlflow.stop()
        spools.close()
