"""One process in place of a machine's agent and of the runners of all its members: their protocols, no commands.

Owns: the lives of simulated members: prepared after a moment, ready, started on GO, ended after a random time or soon
after a STOP, with an empty log. Must not know: the server's insides, what is measured.

To the server it looks like a yard: each member keeps one connection open on which it asks for orders by long poll, and
one for reports, as a real runner does. What real ones also do is missing: log records, samples, checkpoints.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import airyard
from airyard.node.agent_socket import bind_unix

PROTOCOL = 1
POLL_S = 20
DEVICES = 8
MACHINE = "stand-in"
_PREPARING_S = (0.2, 1.5)
_LEAVING_S = (0.2, 1.0)
_PAUSE_S = 0.5
_EMPTY = hashlib.sha256().hexdigest()


class Channel:
    """A connection to the runner API that is kept, and made again once the server has closed it."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\nAccept: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and answer. Raises: OSError, EOFError when the server is away."""
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} /api/v1/runner/{path} HTTP/1.1\r\n{self._head}"
        request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
        kept = self._streams is not None
        try:
            return await self._exchange(request)
        except (OSError, EOFError):
            self.close()
            if not kept:
                raise
        return await self._exchange(request)

    async def _exchange(self, request: bytes) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(head.partition("content-length:")[2].partition("\r\n")[0])
        return int(head[9:12]), json.loads(await reader.readexactly(size))

    def close(self) -> None:
        """Cut it."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Member:
    """One member from its start to its end."""

    def __init__(self, request: Mapping[str, Any], mean_s: float) -> None:
        self.key = str(request["key"])
        self._epoch = int(request["epoch"])
        url, token = str(request["server_url"]), str(request["token"])
        self._orders, self._reports = Channel(url, token), Channel(url, token)
        self._told: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._number = 0
        # All members of an attempt end at about the same time.
        self._lasts_s = random.Random(self.key.rpartition(".")[0]).expovariate(1 / mean_s)
        self.exited: Mapping[str, Any] = {}

    async def live(self) -> None:
        """Be prepared, started and ended; returns when all is said. ``exited`` is the exit record then."""
        polling = asyncio.create_task(self._poll())
        try:
            await self._story()
        finally:
            polling.cancel()
            self._orders.close()
            self._reports.close()

    async def _poll(self) -> None:
        after = 0
        while True:
            try:
                status, answer = await self._orders.call("GET", f"orders?after={after}&wait_s={POLL_S}")
            except (OSError, EOFError):
                status, answer = 503, {}
            if status == 410:
                await self._told.put({"kind": "OVER"})
                return
            if status != 200:
                await asyncio.sleep(_PAUSE_S)
                continue
            for order in answer["orders"]:
                after = max(after, int(order["number"]))
                await self._told.put(order)

    async def _story(self) -> None:
        begun = time.monotonic()
        if (await self._told.get())["kind"] != "PREPARE":
            return
        await asyncio.sleep(random.uniform(*_PREPARING_S))
        taken_ms = int((time.monotonic() - begun) * 1000)
        prepared = {"environment_ms": taken_ms, "code_ms": 0, "environment_hit": True}
        await self._report({"kind": "READY", "address": "127.0.0.1", "prepared": prepared})
        order = await self._told.get()
        started = order["kind"] == "GO"
        began = time.monotonic()
        if started:
            await self._report({"kind": "STARTED", "pid": 1})
            with contextlib.suppress(TimeoutError):
                order = await asyncio.wait_for(self._told.get(), self._lasts_s)
        if order["kind"] == "OVER":
            return
        reason = str(order.get("reason", ""))
        if reason:
            await asyncio.sleep(random.uniform(*_LEAVING_S))
        exited = {"kind": "EXITED", "started": started, "duration_ms": int((time.monotonic() - began) * 1000)}
        exited |= _stopped(reason) if reason else {"code": 0, "signal": None, "cause": None, "message": ""}
        closed = {"kind": "LOGS_CLOSED", "last_seq": -1, "sha256": _EMPTY}
        self.exited = {"exited": {**exited, "at_ns": time.time_ns()}, "logs": closed}
        await self._report(exited, closed)

    async def _report(self, *said: Mapping[str, Any]) -> None:
        """Say something until it is acknowledged, or the attempt is over."""
        now_ns = time.time_ns()
        reports = [{"number": self._number + 1 + i, "at_ns": now_ns, **one} for i, one in enumerate(said)]
        self._number += len(reports)
        while True:
            body = {
                "protocol": PROTOCOL,
                "epoch": self._epoch,
                "sent_ns": time.time_ns(),
                "reports": reports,
            }
            try:
                status, answer = await self._reports.call("POST", "reports", body)
            except (OSError, EOFError):
                status, answer = 503, {}
            if status == 410 or (status == 200 and answer["acknowledged"] >= self._number):
                return
            await asyncio.sleep(_PAUSE_S)


def _stopped(reason: str) -> dict[str, Any]:
    cause = {"PREEMPTED": "PREEMPTED", "DRAIN": "OPERATOR", "CANCELLED": "CANCELLED"}.get(reason, "PLATFORM")
    return {"code": 143, "signal": None, "cause": cause, "message": "stopped", "stop_reason": reason}


class StandIn:
    """The agent's side of its socket."""

    def __init__(self, nodes: int, mean_s: float) -> None:
        self._nodes = [_node(index) for index in range(nodes)]
        self._mean_s = mean_s
        self._members: dict[str, asyncio.Task[None]] = {}
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, home: Path) -> None:
        """Serve ``home``'s socket until the process ends."""
        (home / "node").mkdir(parents=True, exist_ok=True, mode=0o700)
        listener = bind_unix(home / "node" / "agent.sock")
        async with await asyncio.start_unix_server(self._converse, sock=listener, limit=1 << 24) as server:
            await server.serve_forever()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                answer = {"id": request["id"], "ok": True, "result": self._result(request)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _result(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "hello":
                return self._hello()
            case "start" if request["key"] not in self._members:
                self._members[request["key"]] = asyncio.create_task(self._live(request))
            case "kill" if (task := self._members.get(request["key"])) is not None:
                task.cancel()
            case "forget" if (task := self._members.get(request["key"])) is not None:
                # One that is about to leave is forgotten once it has left.
                task.add_done_callback(lambda _: self._members.pop(request["key"], None))
            case "has_environment":
                return {"ready": True}
            case "tidy":
                return {"count": 0, "bytes": 0}
        return {}

    def _hello(self) -> dict[str, Any]:
        alive = [key for key, task in self._members.items() if not task.done()]
        machine = {
            "name": MACHINE,
            "boot_id": "stand-in",
            "address": "127.0.0.1",
            "cpus": 128,
            "memory_bytes": 1 << 40,
            "containment": {"kind": "none", "limits": "", "reason": "nothing is run"},
            "pid": os.getpid(),
            "version": airyard.__version__,
        }
        attempts = [{"key": key, "state": "alive"} for key in alive]
        return {"protocol": PROTOCOL, "machine": machine, "nodes": self._nodes, "attempts": attempts}

    async def _live(self, request: Mapping[str, Any]) -> None:
        member = Member(request, self._mean_s)
        push: dict[str, Any] = {"event": "died", "cause": "PLATFORM", "detail": "it was killed"}
        try:
            await member.live()
            if member.exited:
                push = {"event": "exited", "exit": {**member.exited, "delivered": True}}
        finally:
            for writer in self._writers:
                writer.write(json.dumps({**push, "key": member.key}).encode() + b"\n")


def _node(index: int) -> dict[str, Any]:
    name = f"n{index}"
    return {
        "name": name,
        "accelerator": f"GPU_{DEVICES}xH100",
        "model": "H100",
        "devices": [
            {"index": number, "uuid": f"{name}-{number}", "owner": None} for number in range(DEVICES)
        ],
        "cpus": 128.0,
        "memory_bytes": 1 << 40,
        "simulated": True,
        "labels": {"fabric": f"f{index // 32}", "rack": f"r{index // 8}"},
    }


def main() -> None:
    """Serve one data folder until ended."""
    parser = argparse.ArgumentParser(prog="stand_in_agent")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--mean-s", type=float, required=True, help="how long a member lasts on average")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(StandIn(options.nodes, options.mean_s).serve(options.home))


if __name__ == "__main__":
    main()
