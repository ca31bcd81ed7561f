"""A simulated machine: its agent on the engine's socket, its attempt folders, its faults.

Owns: what an agent answers and pushes (as ``node.agent`` does), what is durable on the machine, what a fault does.
Must not know: what runners say to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airyard
from airyard.core.ids import MemberKey
from airyard.core.versions import AGENT
from airyard.node.inventory import Device, Node
from airyard.node.pair_simulated import script_for
from airyard.node.runner_http import Servers
from airyard.node.runner_threads import closed_output
from airyard.node.sampling import EVERY_S
from airyard.node.spool import LogSpool
from airyard.sim.fleet.network import Channel, Network
from airyard.sim.fleet.runner import Folder, Runner, Seat
from airyard.sim.fleet.talk import OVER, Patience, close_log, send_batch

CPUS, MEMORY_BYTES = 128.0, 1 << 40
"""Of a simulated machine: it is not the laptop's share."""
_LINE_BYTES = 16 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_NOTICED_S = (0.001, 0.01)
"""An agent sees the end of a runner by a descriptor: at once."""
_SHIP_LIMIT_S = 120.0
_BEYOND_ANY_RUNNER = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What all machines of a fleet have in common."""

    accelerator: str
    model: str
    devices: int
    run_seconds: float
    folder: Path
    """Where the members' logs wait to be sent."""
    socket: Path
    faults: Path
    """The file of faults that are made up for its nodes."""


class Machine:
    """One machine, from its start to the end of the process. ``note`` hears what happens to it."""

    def __init__(self, model: Model, name: str, address: str, note: Callable[..., None]) -> None:
        self.name = name
        self.network = Network()
        self._model = model
        self._seat = Seat(network=self.network, address=address, run_seconds=model.run_seconds)
        self._labels: Mapping[str, str] = {}
        self._note = note
        self._boot = 1
        self.off = False
        """Powered off: nothing of it is there."""
        self._folders: dict[MemberKey, Folder] = {}
        self._runners: dict[MemberKey, Runner] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._greeted = False
        self._agent_up = asyncio.Event()
        self._agent_up.set()
        self._works: set[asyncio.Task[None]] = set()
        self._seen_ill: dict[str, Mapping[str, Any]] = {}
        """What its monitors saw and the server has not taken yet, by the event's id."""

    @property
    def node_name(self) -> str:
        """Return the name of its only node."""
        return f"{self.name}-sim-{self._model.devices}x{self._model.model.lower()}-0"

    @property
    def devices(self) -> list[str]:
        """Return the UUIDs of its GPUs."""
        return [f"SIM-{self.node_name}-{index}" for index in range(self._model.devices)]

    def place(self, **labels: str) -> None:
        """Say where it stands: the labels of its node."""
        self._labels = labels

    @property
    def members(self) -> list[MemberKey]:
        """Return the members whose runner lives."""
        return list(self._runners)

    @property
    def joined(self) -> bool:
        """True while its agent has said hello."""
        return self._greeted

    @property
    def well(self) -> bool:
        """True unless a fault has it."""
        return not self.off and self._agent_up.is_set() and self.network.up

    # --- the agent's connection

    async def serve(self) -> None:
        """Be the agent for ever: connect, answer, connect again."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._agent_up.wait()
            await self.network.wait_up()
            try:
                reader, self._writer = await asyncio.open_unix_connection(
                    sock=await _connected(self._model.socket), limit=_LINE_BYTES
                )
                pause_s = _FIRST_PAUSE_S
                await self._converse(reader)
            except (OSError, EOFError):
                pass
            self._hang_up()
            await asyncio.sleep(random.uniform(pause_s / 2, pause_s))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    async def _converse(self, reader: asyncio.StreamReader) -> None:
        assert self._writer is not None
        forget = self.network.watch(self._writer.transport.abort)
        offer = {"labels": dict(self._labels), "address": self._seat.address}
        self._send({"event": "up", "machine": self.name, "offer": offer})
        try:
            while line := await reader.readline():
                if self.network.lag_s:
                    await asyncio.sleep(self.network.lag_s)
                self._on_request(json.loads(line))
        finally:
            forget()

    def _send(self, value: Mapping[str, Any]) -> None:
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def _push(self, value: Mapping[str, Any]) -> None:
        if self._greeted:
            self._send(value)

    def _hang_up(self) -> None:
        self._greeted = False
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def _on_request(self, request: Mapping[str, Any]) -> None:
        handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "start": self._start,
            "kill": self._kill,
            "ship": self._ship,
            "forget": self._forget,
            "warm": lambda _: {},
            "has_environment": lambda _: {"ready": True},
            "tidy": lambda _: {"count": 0, "bytes": 0},
            "pair": self._pair,
            "pair_end": self._pair_end,
            "pair_stop": lambda _: {},
            "health_taken": self._health_taken,
        }
        handler = handlers.get(request["op"])
        if handler is None:
            error = {"code": "UNKNOWN_OP", "message": f"the agent has no operation {request['op']!r}"}
            self._send({"id": request.get("id"), "ok": False, "error": error})
            return
        self._send({"id": request.get("id"), "ok": True, "result": handler(request)})
        if request["op"] == "hello":
            self._push_health()  # a server that has them already says so, and counts them once

    def _work(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    # --- operations

    def _hello(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._greeted = True
        # Server and machines are of one installation: what is not in common the server refuses.
        spoken = AGENT.common(request.get("protocol"), request.get("oldest")) or AGENT.newest
        machine = {
            "name": self.name,
            "boot_id": f"{self.name}-boot-{self._boot}",
            "address": self._seat.address,
            "network": {"summary": "simulated", "interfaces": [], "rdma": []},
            "cpus": CPUS,
            "memory_bytes": MEMORY_BYTES,
            "containment": {"kind": "none", "limits": "", "reason": "simulated machines run no processes"},
            "pid": os.getpid(),
            "version": airyard.__version__,
        }
        attempts = [self._seen(folder) for folder in self._folders.values()]
        return {"protocol": spoken, "machine": machine, "nodes": [self._node()], "attempts": attempts}

    def _node(self) -> dict[str, Any]:
        model = self._model
        return Node(
            name=self.node_name,
            accelerator=model.accelerator,
            model=model.model,
            devices=tuple(Device(index=i, uuid=uuid) for i, uuid in enumerate(self.devices)),
            cpus=CPUS,
            memory_bytes=MEMORY_BYTES,
            simulated=True,
            labels=self._labels,
        ).as_json()

    def _seen(self, folder: Folder) -> dict[str, Any]:
        seen: dict[str, Any] = {"key": str(folder.key), "exit": None, "cause": None, "detail": ""}
        seen["version"] = airyard.__version__
        if folder.alive:
            return {**seen, "state": "alive"}
        if folder.exit is not None:
            return {**seen, "state": "exited", "exit": folder.exit}
        if folder.boot_id != self._boot_id:
            detail = "the machine was restarted while the member ran"
            return {**seen, "state": "died", "cause": "NODE", "detail": detail}
        detail = folder.killed_for or "the runner died without an exit record; its processes were killed"
        return {**seen, "state": "died", "cause": "PLATFORM", "detail": detail}

    @property
    def _boot_id(self) -> str:
        return f"{self.name}-boot-{self._boot}"

    def _pair(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Be one side of a test between two nodes: a good one, at once."""
        if request["side"] == "call":
            return self._pair_end(request)
        return {"state": "open", "port": 0, "address": self._seat.address, "simulated": True}

    def _pair_end(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if any(folder.alive for folder in self._folders.values()):
            return {"state": "stopped", "said": {}}
        return {"state": "done", "said": script_for(self._model.faults, self.node_name).said()}

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        key = MemberKey.parse(str(request["key"]))
        if key in self._folders:
            return {"pid": 1, "already": True}
        folder = Folder(
            key=key,
            node=str(request["node"]),
            boot_id=self._boot_id,
            spool=self._model.folder / self.name / str(key),
            epoch=int(request["epoch"]),
        )
        self._folders[key] = folder
        urls, token = str(request["server_url"]), str(request["token"])
        self._runners[key] = Runner(
            self._seat, folder, server_urls=urls, token=token, on_end=lambda: self._runner_ended(folder)
        )
        return {"pid": 1, "already": False}

    def _kill(self, request: Mapping[str, Any]) -> dict[str, Any]:
        key, reason = MemberKey.parse(str(request["key"])), str(request.get("reason") or "")
        folder = self._folders.get(key)
        if folder is None:
            detail = "no such attempt on this machine"
            self._push({"event": "died", "key": str(key), "cause": "PLATFORM", "detail": detail})
        elif folder.alive:
            folder.killed_for = reason
            self.kill_runner(key)
        return {}

    def _ship(self, request: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._folders.get(MemberKey.parse(str(request["key"])))
        if folder is not None and not folder.alive and not folder.shipping:
            folder.shipping = True
            self._work(self._ship_rest(folder, str(request["server_url"]), str(request["token"])))
        return {}

    async def _ship_rest(self, folder: Folder, urls: str, token: str) -> None:
        """Send what a dead runner left of its log, then LOGS_CLOSED; see ``node.log_rest``."""
        channel = Channel(self.network, Servers(urls), token)
        spool, patience = LogSpool(folder.spool), Patience()
        deadline_s = time.monotonic() + _SHIP_LIMIT_S
        status = await send_batch(channel, spool)
        while time.monotonic() < deadline_s and status != OVER:
            if status == 200 and spool.is_drained:
                end = closed_output(spool)
                if await close_log(channel, _BEYOND_ANY_RUNNER, end.last_seq, end.sha256) in (200, OVER):
                    break
                await patience.wait()
            elif status == 200:
                status = await send_batch(channel, spool)
            else:
                await patience.wait()
                status = await send_batch(channel, spool)
        spool.close()
        channel.close()
        folder.shipping = False

    def _forget(self, request: Mapping[str, Any]) -> dict[str, Any]:
        key = MemberKey.parse(str(request["key"]))
        folder = self._folders.get(key)
        if folder is not None and folder.alive:
            folder.forgotten = True  # it is about to leave
        elif folder is not None:
            del self._folders[key]
            shutil.rmtree(folder.spool, ignore_errors=True)
        return {}

    # --- what happens on the machine

    def _runner_ended(self, folder: Folder) -> None:
        """Take in that a runner is gone, and say so, when the agent is there."""
        self._runners.pop(folder.key, None)
        folder.alive = False
        seen = self._seen(folder)
        state = seen.pop("state")
        kept = ("key", "exit") if state == "exited" else ("key", "cause", "detail")
        self._push({"event": state, **{name: seen[name] for name in kept}})
        if folder.forgotten:
            self._forget({"key": str(folder.key)})

    def push_samples(self) -> None:
        """Measure the members, as an agent does every ten seconds."""
        now_ms = time.time_ns() // 1_000_000
        samples = [
            {
                "key": str(key),
                "node": self._folders[key].node,
                "time_ms": now_ms,
                "values": {"cpu_utilization_percentage": 50.0, "system_memory_usage_megabytes": 1e5},
            }
            for key in self._runners
        ]
        if samples:
            self._push({"event": "samples", "samples": samples})

    async def sample(self) -> None:
        """Push samples for ever, at a time of the machine's own."""
        await asyncio.sleep(random.uniform(0, EVERY_S))
        while True:
            self.push_samples()
            await asyncio.sleep(EVERY_S)

    def report(self, event: Mapping[str, Any]) -> None:
        """Tell of something that speaks against its node, until the server has it."""
        self._seen_ill[str(event["event_id"])] = event
        self._push_health()

    def _push_health(self) -> None:
        if self._seen_ill:
            events = list(self._seen_ill.values())
            self._push({"event": "health", "sent_ms": time.time_ns() // 1_000_000, "events": events})

    def _health_taken(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for one in request["ids"]:
            self._seen_ill.pop(str(one), None)
        return {}

    # --- faults

    def kill_runner(self, key: MemberKey) -> None:
        """Kill -9 of one runner; the agent sees it at once, if there is one."""
        runner, folder = self._runners.pop(key, None), self._folders[key]
        if runner is None:
            return
        runner.die()
        self._note("runner-killed", machine=self.name, key=str(key))
        asyncio.get_running_loop().call_later(random.uniform(*_NOTICED_S), self._runner_ended, folder)

    def stop_agent(self) -> None:
        """End the agent; runners live on."""
        self._agent_up.clear()
        self._note("agent-killed", machine=self.name)
        self._hang_up()

    def start_agent(self) -> None:
        """Let there be an agent again: it looks at every folder."""
        if not self.off and not self._agent_up.is_set():
            self._note("agent-back", machine=self.name)
            self._agent_up.set()

    def power_off(self) -> None:
        """End everything at once."""
        self._note("power-off", machine=self.name, keys=[str(key) for key in self._runners])
        self.off = True
        self._agent_up.clear()
        self._hang_up()
        for key in list(self._runners):
            self._runners.pop(key).die()
            self._folders[key].alive = False
        for task in list(self._works):
            task.cancel()
        for folder in self._folders.values():
            folder.shipping = False

    def power_on(self) -> None:
        """Come back with a new boot, unless it is back; the agent follows."""
        if not self.off:
            return
        self._boot += 1
        self.off = False
        self._note("power-on", machine=self.name)
        self._agent_up.set()

    def cut_off(self) -> None:
        """Part it from the server and the engine; what runs on it runs on."""
        self._note("partition", machine=self.name, keys=[str(key) for key in self._runners])
        self.network.cut()

    def mend(self) -> None:
        """Connect it again."""
        if not self.network.up:
            self._note("partition-over", machine=self.name)
            self.network.mend()

    def slow_down(self, lag_s: float) -> None:
        """Have each message of its take longer; 0: as usual again."""
        if lag_s or self.network.lag_s:
            self._note("slow" if lag_s else "slow-over", machine=self.name)
        self.network.lag_s = lag_s

    def recover(self) -> None:
        """End whatever it suffers."""
        self.power_on()
        self.start_agent()
        self.mend()
        self.slow_down(0.0)


async def _connected(path: Path) -> socket.socket:
    """Connect to a socket whose path may be longer than the kernel takes. Raises: OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(stream, f"/proc/self/fd/{folder}/{path.name}")
    except BaseException:
        with contextlib.suppress(OSError):
            stream.close()
        raise
    finally:
        os.close(folder)
    return stream
