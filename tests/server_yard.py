"""A server's real parts in one process, with its ASGI application, for tests of the native API.

Journal, read tables, log, blob and secret stores lie in a folder of the test; the loop runs on its own threads. There
is no engine: tests say what machines and runners report by handing the commands to the loop.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from airyard.adapters.blob_files import FileBlobStore
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.log_files import FileLogStore
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.adapters.secrets_fernet import FernetSecretStore
from airyard.adapters.system_clock import SystemClock
from airyard.adapters.tracking_off import NullTracker
from airyard.app.changes import ChangeFeed
from airyard.app.loop import ControlLoop
from airyard.app.retention import RetentionPolicy
from airyard.core.access.people import People
from airyard.core.actions import Action
from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import MachineSeen, MemberReports, Report, ReportKind
from airyard.core.errors import Unavailable
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode
from airyard.core.run import Cause, Exit, LogClose, Run
from airyard.server.app import create_app
from airyard.server.audit import AuditLog
from airyard.server.auth import Gatekeeper
from airyard.server.context import AccessParts, ServerContext
from airyard.server.logins import LoginDesk
from airyard.server.node_rounds import NodeRounds, find_node
from airyard.server.pair_desk import PairDesk
from airyard.server.pair_rounds import PairRounds

TOKEN = "ayt_" + "x" * 43
HEADERS = {"authorization": f"Bearer {TOKEN}"}


class Yard:
    """One server over ``home``, which another one may have left; ``stop`` ends its threads."""

    def __init__(self, home: Path, *, cpu_slots: int = 2, gpu_nodes: int = 2) -> None:
        self.home = home
        server = home / "server"
        server.mkdir(parents=True, exist_ok=True)
        self.actions: list[Action] = []
        self.stopped = asyncio.Event()
        self.users = People(owner="ada")
        changes, clock = ChangeFeed(), SystemClock()
        journal = SqlJournal(server / "journal.db")
        self.loop = ControlLoop(journal=journal, clock=clock, do=self.actions.extend, changes=changes)
        self.loop.start()
        self.context = ServerContext(
            home=home,
            url="http://127.0.0.1:8008",
            started_ms=clock.now_ms(),
            owner="ada",
            loop=self.loop,
            journal=journal,
            reads=SqlReadStore(server / "journal.db"),
            logs=FileLogStore(server / "logs"),
            blobs=FileBlobStore(server / "blobs"),
            secrets=FernetSecretStore(server),
            tracker=NullTracker(),
            changes=changes,
            clock=clock,
            retention=RetentionPolicy(),
            tracking_off=True,
            environment_versions=frozenset({"6"}),
            engine_name="none",
            simulate={},
            has_environment=lambda workload: None,
            tidy_nodes=lambda age_ms, cap_bytes, dry_run: {},
            rounds=NodeRounds(
                check_node=self.check_node,
                find_node=partial(find_node, self.loop),
                report=lambda command: self.loop.submit(command).result(timeout=30),
                now_ms=clock.now_ms,
                python="",
            ),
            pairs=PairDesk(
                PairRounds(pair_nodes=self.pair_nodes, find_node=partial(find_node, self.loop), python="")
            ),
            containment=lambda: {"kind": "cookie", "limits": "", "reason": "a test"},
            access=self._access(server),
            shutdown=self.stopped.set,
        )
        self.app = create_app(self.context)
        self._number: dict[MemberKey, int] = {}
        self.join_machine("host", cpu_slots=cpu_slots, gpu_nodes=gpu_nodes)

    logins: LoginDesk | None = None

    def check_node(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Say that the machine is away: it is only in the journal."""
        raise Unavailable(f"machine {machine} cannot be reached: nothing was checked", code="MACHINE_AWAY")

    def pair_nodes(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Say that the machine is away: it is only in the journal."""
        raise Unavailable(
            f"machine {machines[0]} cannot be reached: nothing was checked", code="MACHINE_AWAY"
        )

    def _access(self, folder: Path) -> AccessParts:
        """Have the real gatekeeper over ``users``, which a test may replace."""
        gate = Gatekeeper(owner="ada", token=TOKEN, attempt_key=b"k" * 32, people=lambda: self.users)
        gate.connect(
            lambda token_id: self.loop.peek(lambda control: control.state.tokens.get(token_id)),
            SystemClock().now_ms,
        )
        self.gate = gate
        return AccessParts(
            authorise=gate.authorise,
            still=gate.still,
            proof=gate.proof,
            link=gate.one_time_link,
            redeem=gate.session_for,
            session=gate.session_of,
            logins=self.logins,
            people=lambda: self.users,
            audit=AuditLog(folder / "audit"),
            used_ms=gate.used_ms,
        )

    def as_attempt(self) -> dict[str, str]:
        """Return the headers of the first run's first member."""
        return {"authorization": f"Bearer {self.gate.attempt_token(MemberKey(1, 0, 0))}"}

    def stop(self) -> None:
        self.loop.stop()
        self.context.access.audit.close()
        self.context.reads.close()  # type: ignore[attr-defined]  # the SQL adapter has one
        self.context.logs.close()  # type: ignore[attr-defined]  # the file adapter has one

    def client(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://yard/api/v1", headers=HEADERS)

    def tell(self, command: Any) -> Any:
        """Hand a command to the loop and wait for its reply."""
        return self.loop.submit(command).result(timeout=10)

    def join_machine(self, name: str, *, cpu_slots: int, gpu_nodes: int = 0) -> None:
        nodes = [
            Node(
                name=f"{name}-cpu-{index}",
                machine=name,
                accelerator="CPU",
                model=None,
                devices=(Device(index=0, uuid=f"CPU-{name}-{index}"),),
                cpus=4.0,
                memory_bytes=8 << 30,
            )
            for index in range(cpu_slots)
        ]
        nodes += [
            Node(
                name=f"sim-1xa10-{index}",
                machine=name,
                accelerator="GPU_1xA10",
                model="A10",
                devices=(Device(index=0, uuid=f"SIM-{index}"),),
                cpus=4.0,
                memory_bytes=8 << 30,
                simulated=True,
            )
            for index in range(gpu_nodes)
        ]
        machine = Machine(name=name, boot_id="boot", address="127.0.0.1")
        self.tell(MachineSeen(machine=machine, nodes=tuple(nodes), members=()))

    async def record(self, run_id: int) -> Run:
        return await asyncio.wrap_future(self.loop.query(lambda control: control.state.runs[run_id]))

    async def placed(self, run_id: int, attempt: int = 0) -> Run:
        """Wait until the planner has placed the attempt."""
        while True:
            run = await self.record(run_id)
            if len(run.attempts) > attempt:
                return run
            await asyncio.sleep(0.002)

    async def report(self, key: MemberKey, kind: ReportKind, **fields: Any) -> None:
        run = await self.record(key.run_id)
        number = self._number[key] = self._number.get(key, 0) + 1
        report = Report(number=number, kind=kind, at_ms=self.context.clock.now_ms(), **fields)
        epoch = run.attempts[key.attempt].epoch
        await asyncio.wrap_future(self.loop.submit(MemberReports(key=key, epoch=epoch, reports=(report,))))

    async def begin(self, run_id: int, attempt: int = 0) -> list[MemberKey]:
        """Bring a placed attempt to RUNNING; return its members."""
        run = await self.placed(run_id, attempt)
        keys = [MemberKey(run_id, attempt, member.index) for member in run.attempts[attempt].members]
        for key in keys:
            first = MemberReports(key=key, epoch=run.attempts[attempt].epoch, reports=())
            await asyncio.wrap_future(self.loop.submit(first))
            prepared = {"environment_ms": 30, "code_ms": 5, "environment_hit": 1}
            await self.report(key, ReportKind.READY, address="127.0.0.1", prepared=prepared)
        for key in keys:
            await self.report(key, ReportKind.STARTED)
        return keys

    async def finish(self, key: MemberKey, code: int = 0, *, permanent: bool = False) -> None:
        """Let a member exit and close its log."""
        end = self.context.logs.end(key)
        now_ms = self.context.clock.now_ms()
        cause = Cause.USER_CODE if code else None
        exit_ = Exit(
            code=code, signal=None, started=True, cause=cause, message=f"exit code {code}", at_ms=now_ms,
            permanent=permanent,
        )  # fmt: skip
        await self.report(key, ReportKind.EXITED, exit=exit_)
        await self.close_log(key, LogClose(last_seq=end.next_seq - 1, sha256=end.sha256))

    async def close_log(self, key: MemberKey, logs: LogClose) -> None:
        try:
            await self.report(key, ReportKind.LOGS_CLOSED, logs=logs)
        except KeyError:
            pass  # the run has left memory

    def write(
        self, key: MemberKey, *texts: str, stream: LogStream = LogStream.STDOUT, time_ns: int | None = None
    ) -> None:
        """Append one record for each text, as a runner would send it."""
        seq = self.context.logs.end(key).next_seq
        start_ns = self.context.clock.now_ms() * 1_000_000 if time_ns is None else time_ns
        frames = b"".join(
            encode(LogRecord(stream=stream, seq=seq + index, time_ns=start_ns + index, payload=text.encode()))
            for index, text in enumerate(texts)
        )
        self.context.logs.append(key, frames)
        self.context.changes.publish([key.run_id])


def workload(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a small CPU workload without tracking."""
    whole: dict[str, Any] = {
        "experiment": "digits",
        "command": "true",
        "compute": {"accelerator": "CPU", "nodes": 1},
        "tracking": {"enabled": False},
        "max_retries": 0,
    }
    return {**whole, **changes}


async def submit(client: httpx.AsyncClient, key: str | None = None, **changes: Any) -> dict[str, Any]:
    """Submit a workload and return its RunDoc."""
    body = {"workload": workload(**changes), "idempotency_key": key}
    answer = await client.post("/runs", json=body)
    assert answer.status_code == 200, answer.text
    run: dict[str, Any] = answer.json()["run"]
    return run


class StreamReader:
    """Reads NDJSON while the server writes it: httpx's ASGI transport collects whole answers, so this speaks ASGI."""

    def __init__(self, yard: Yard, path: str) -> None:
        route, _, query = path.partition("?")
        self._scope: dict[str, Any] = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": "GET", "scheme": "http", "path": f"/api/v1{route}", "raw_path": b"", "root_path": "",
            "query_string": query.encode(), "client": ("test", 1), "server": ("yard", 80),
            "headers": [(b"authorization", HEADERS["authorization"].encode())],
        }  # fmt: skip
        self._app = yard.app
        self._gone = asyncio.Event()
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 0
        self.task: asyncio.Task[None] | None = None
        self._rest = b""
        self._ready: deque[dict[str, Any]] = deque()
        self.seen: list[dict[str, Any]] = []

    async def __aenter__(self) -> StreamReader:
        self.task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gone.set()
        assert self.task is not None
        await asyncio.wait_for(self.task, 15)

    async def _serve(self) -> None:
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            elif message.get("body"):
                self._parts.put_nowait(message["body"])

        try:
            await self._app(self._scope, receive, send)
        finally:
            self._parts.put_nowait(None)

    async def next(self) -> dict[str, Any] | None:
        """Return the next object, None at the end."""
        while not self._ready:
            part = await self._parts.get()
            if part is None:
                return None
            *whole, self._rest = (self._rest + part).split(b"\n")
            self._ready.extend(json.loads(line) for line in whole if line)
        self.seen.append(self._ready.popleft())
        return self.seen[-1]

    async def until(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """Read on to the first object of a type with these values."""
        async with asyncio.timeout(20):
            while (found := await self.next()) is not None:
                if found["type"] == kind and all(found.get(name) == value for name, value in wanted.items()):
                    return found
        raise AssertionError(f"the stream ended without {kind} {wanted}: {self.seen}")


def lines(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Return the text of the LOG objects."""
    return [found["line"] for found in objects if found["type"] == "LOG"]


def play(scene: Coroutine[Any, Any, None]) -> None:
    """Run one test's coroutine."""
    asyncio.run(scene)
