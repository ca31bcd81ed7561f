"""A small real HTTP server that plays the server's side of the runner API for tests of node processes."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from airyard.core.log_frames import LogRecord, LogStream, encode, iter_frames


class MemberSide:
    """What the server knows of one member."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.orders: list[dict[str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.records: list[LogRecord] = []
        self.frames = hashlib.sha256()
        self.over = False
        self.report_times: dict[str, float] = {}

    @property
    def next_seq(self) -> int:
        return self.records[-1].next_seq if self.records else 0

    def order(self, kind: str, **body: Any) -> None:
        with self.changed:
            self.orders.append({"number": len(self.orders) + 1, "kind": kind, **body})
            self.changed.notify_all()

    def wait(self, predicate: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        with self.changed:
            assert self.changed.wait_for(predicate, timeout_s), (
                f"not in {timeout_s} s; reports {self.reports}"
            )
            return predicate()

    def report(self, kind: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait for the first report of the kind."""
        found = self.wait(lambda: [one for one in self.reports if one["kind"] == kind], timeout_s)
        assert len(found) == 1 or kind in ("CHECKPOINT", "PROGRESS", "PORT_TAKEN"), found
        return dict(found[0])

    def output(self, stream: LogStream = LogStream.STDOUT) -> bytes:
        return b"".join(one.payload for one in self.records if one.stream is stream)

    def take_logs(self, data: bytes) -> tuple[int, dict[str, Any]]:
        records, used = iter_frames(data)
        assert used == len(data), "frames are sent whole"
        with self.changed:
            for record in records:
                if record.first_seq > self.next_seq:
                    return 409, {"next": self.next_seq, "message": "a record is missing"}
                if record.seq >= self.next_seq:
                    self.records.append(record)
                    self.frames.update(encode(record))
            self.changed.notify_all()
            return 200, {"next": self.next_seq}

    def take_reports(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.changed:
            last = self.reports[-1]["number"] if self.reports else 0
            for report in body["reports"]:
                if report["number"] > last:
                    self.reports.append(report)
                    self.report_times.setdefault(report["kind"], time.monotonic())
                    last = report["number"]
            self.changed.notify_all()
            return 200, {"protocol": 1, "acknowledged": last, "server_time_ns": time.time_ns()}

    def give_orders(self, after: int, wait_s: float) -> tuple[int, dict[str, Any]]:
        with self.changed:
            self.changed.wait_for(
                lambda: self.over or any(one["number"] > after for one in self.orders), min(wait_s, 5)
            )
            fresh = [one for one in self.orders if one["number"] > after]
            return 200, {"protocol": 1, "orders": fresh, "server_time_ns": time.time_ns()}


class RunnerApi:
    """The server: may be stopped and started again on its port, as a real one is."""

    def __init__(self) -> None:
        self.members: dict[str, MemberSide] = {}
        self.code: dict[str, bytes] = {}
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def member(self, token: str) -> MemberSide:
        return self.members.setdefault(token, MemberSide())

    def start(self) -> None:
        api = self

        class Handler(_Handler):
            owner = api

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A runner that was killed leaves broken connections; that is no news."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            for member in self.members.values():
                with member.changed:
                    member.changed.notify_all()

    @property
    def serving(self) -> bool:
        return self._server is not None


class _Handler(BaseHTTPRequestHandler):
    owner: RunnerApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, data: bytes) -> None:
        if not self.owner.serving:
            self.close_connection = True  # a server that is gone answers nobody
            return
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        member = self.owner.members.get(token)
        parts = urlsplit(self.path)
        name = parts.path.removeprefix("/api/v1/runner/")
        if member is None or member.over:
            self._answer(410, b'{"error_code":"ATTEMPT_OVER","message":"over"}')
        elif name == "orders":
            query = parse_qs(parts.query)
            self._json(*member.give_orders(int(query["after"][0]), float(query["wait_s"][0])))
        elif name == "reports":
            self._json(*member.take_reports(json.loads(data)))
        elif name == "logs":
            self._json(*member.take_logs(data))
        elif name.startswith("code/"):
            blob = self.owner.code.get(name.removeprefix("code/"))
            self._answer(200 if blob is not None else 404, blob or b"{}")
        else:
            self._answer(404, b"{}")

    def _json(self, status: int, body: dict[str, Any]) -> None:
        if member_gone := not self.owner.serving:
            self.close_connection = member_gone
            return
        self._answer(status, json.dumps(body).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def prepare_order(command: str, **changes: Any) -> dict[str, Any]:
    """Return the body of a PREPARE order for one CPU member."""
    return {
        "run_id": 1,
        "attempt": 0,
        "member": 0,
        "members": 1,
        "command": command,
        "code": None,
        "environment": None,
        "variables": {},
        "secrets": {},
        "mask": [],
        "parameters": None,
        "devices": [0],
        "visible_devices": "",
        "local_world_size": 1,
        "world_size": 1,
        "simulated": False,
        "rendezvous_port": None,
        "attempt_timeout_s": None,
        "limits": {"memory_bytes": None, "cpus": None},
        "stop": {"signal": "SIGTERM", "grace_s": 5},
        **changes,
    }


GO = {
    "master_addr": "127.0.0.1",
    "master_port": 29999,
    "tracking": None,
    "tracking_deferred": False,
}
