"""The bridge: a child of the server that is a driver of Ray, so that the server itself never imports Ray.

``python -m airyard.adapters.ray_bridge --fd N --address HOST:PORT``: JSON lines over the socket N. It ends with the
server's end of it.

Owns: one relay on every live Ray node, its channel, Ray's word on who is there. Must not know: what is said on it.

To the bridge: ``{"do":"send","channel","data"}``; ``{"do":"leave","channel","data"}``: send, then leave it alone.
From it: ``ready {ray, address}``, ``failed {message}``, ``up {channel, own, address, labels, about}``,
``data {channel, data}``, ``down {channel, why}``, each as ``{"event": ...}``. A channel is a Ray node; after ``down``
it may come up again.
``data`` is octets as Latin-1: pieces of lines, not whole ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import airyard
from airyard.adapters.ray_command import NAMESPACE, ROLE_LABEL
from airyard.adapters.ray_relay import Relay
from airyard.core.versions import RELAY, order_of_upgrade

MEMBERS_EVERY_S = 1.0
WAIT_S = 3.0
"""How long a relay holds a question for news: an idle channel proves itself this often."""
SILENCE_S = 10.0
"""A relay that has not answered for so long is away, whatever Ray says of its node."""
OPEN_S = 60.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 3.0
_LINE_BYTES = 64 << 20

Say = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """For whom the bridge speaks."""

    epoch: int
    own_home: str | None
    """The data folder of the agent on the bridge's own machine, where it is not known by an offer."""
    here: bool
    """The bridge's own machine runs members."""


class Channel:
    """The conversation with one Ray node, for as long as Ray has that node."""

    def __init__(self, node: Mapping[str, Any], *, own: bool, leader: Leader, say: Say) -> None:
        self.id = str(node["NodeID"])
        self._node = node
        self._own = own
        self._leader = leader
        self._say = say
        self._unsent: list[bytes] = []
        self._news = asyncio.Event()
        self._left = False
        self._actor: Any = None
        self._number = 0

    def send(self, data: str, *, leave: bool = False) -> None:
        """Queue bytes for the agent."""
        self._unsent.append(data.encode("latin-1"))
        self._left = self._left or leave
        self._news.set()

    async def serve(self) -> None:
        """Keep a relay there and lines flowing until cancelled: the node is dead then."""
        pause_s = _FIRST_PAUSE_S
        while not self._left:
            up = False
            try:
                about = await self._open()
                up = True
                self._say({"event": "up", "channel": self.id, **self._about(), "about": about})
                pause_s = _FIRST_PAUSE_S
                await self._converse()
                why = "the agent's connection ended"
            except TimeoutError:
                why = (
                    f"its relay has not answered for {SILENCE_S:g} s" if up else "no relay could be had there"
                )
            except (RayError, OSError, ValueError) as error:
                why = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            except asyncio.CancelledError:
                if up:
                    self._say({"event": "down", "channel": self.id, "why": "Ray says that the node is dead"})
                raise
            self._unsent.clear()
            self._say({"event": "down", "channel": self.id, "why": why})
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _about(self) -> dict[str, Any]:
        labels = self._node.get("Labels") or {}
        return {
            "own": self._own,
            "address": self._node["NodeManagerAddress"],
            "labels": {key: value for key, value in labels.items() if not key.startswith("ray.io/")},
        }

    async def _open(self) -> dict[str, Any]:
        self._actor = await asyncio.to_thread(self._relay)
        home = (self._leader.own_home if self._own else None) or ""
        try:
            opened = self._actor.open.remote(home, self._leader.epoch)
            about: dict[str, Any] = await asyncio.wait_for(_answer(opened), OPEN_S)
        except RayTaskError as error:
            if not isinstance(error.cause, TypeError):
                raise
            # A relay of the release before does not tell leaders apart.
            about = await asyncio.wait_for(_answer(self._actor.open.remote(home)), OPEN_S)
        # A relay runs the code of its own machine, which may be a release behind.
        spoken = about.get("protocol", RELAY.oldest)
        if RELAY.common(spoken, spoken) is None:
            raise ValueError(
                f"its relay (Airyard {about['version']}) speaks protocol {spoken}, the server (Airyard "
                f"{airyard.__version__}) {RELAY}: "
                f"{order_of_upgrade(airyard.__version__, str(about['version']), 'that machine')}"
            )
        self._number = int(about["number"])
        return about

    def _relay(self) -> Any:
        """Find the node's relay, or have one made there and nowhere else. Blocks."""
        # Another version is another relay: an actor keeps the code it was made with.
        made = ray.remote(Relay).options(
            name=f"relay-{airyard.__version__}-{self.id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=16,
            scheduling_strategy=NodeAffinitySchedulingStrategy(self.id, soft=False),
        )
        return made.remote()

    async def _converse(self) -> None:
        """Carry bytes both ways until the agent's connection is over. Raises: RayError, TimeoutError."""
        sending = asyncio.create_task(self._send_on())
        try:
            while not sending.done():
                receiving = _answer(self._actor.receive.remote(self._number, WAIT_S))
                data = await asyncio.wait_for(receiving, WAIT_S + SILENCE_S)
                if data is None:
                    return
                if data:
                    self._say({"event": "data", "channel": self.id, "data": data.decode("latin-1")})
            sending.result()
        finally:
            sending.cancel()

    async def _send_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            data = b"".join(self._unsent)
            self._unsent.clear()
            if data:
                await asyncio.wait_for(_answer(self._actor.send.remote(self._number, data)), SILENCE_S)


async def _answer(reference: Any) -> Any:
    return await reference


class Bridge:
    """All channels, and the server's end."""

    def __init__(self, writer: asyncio.StreamWriter, leader: Leader) -> None:
        self._writer = writer
        self._leader = leader
        self._own_node = ray.get_runtime_context().get_node_id()
        self._channels: dict[str, tuple[Channel, asyncio.Task[None]]] = {}

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Serve until the server's end closes, or Ray does not answer any more."""
        address = ray.get_runtime_context().gcs_address
        self._say({"event": "ready", "ray": ray.__version__, "address": address})
        listening = asyncio.create_task(self._listen(reader))
        watching = asyncio.create_task(self._watch())
        done, _ = await asyncio.wait((listening, watching), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    def _say(self, value: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(value).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            found = self._channels.get(message["channel"])
            if found is not None:
                found[0].send(message["data"], leave=message["do"] == "leave")

    async def _watch(self) -> None:
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            living = {node["NodeID"]: node for node in nodes if node["Alive"]}
            if self._own_node not in living:
                # A driver may outlive its raylet, whose successor it would take for another machine.
                raise ConnectionError("the Ray node of this machine is gone")
            alive = {name: node for name, node in living.items() if not _has_role(node)}
            if not self._leader.here:
                alive.pop(self._own_node, None)
            for gone in self._channels.keys() - alive.keys():
                _, task = self._channels.pop(gone)
                await _cancelled(task)
            for new in alive.keys() - self._channels.keys():
                own = new == self._own_node
                channel = Channel(alive[new], own=own, leader=self._leader, say=self._say)
                self._channels[new] = channel, asyncio.create_task(channel.serve())
            await asyncio.sleep(MEMBERS_EVERY_S)


def _has_role(node: Mapping[str, Any]) -> bool:
    """True for a node that runs no members: a head of its own, a server."""
    return ROLE_LABEL in (node.get("Labels") or {})


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


async def _main(stream: socket.socket, leader: Leader) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=stream, limit=_LINE_BYTES)
    await Bridge(writer, leader).run(reader)


def main() -> int:
    """Connect to Ray, then serve; say ``failed`` where Ray cannot be had."""
    parser = argparse.ArgumentParser(prog="airyard.adapters.ray_bridge")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--node-ip", default=None)
    parser.add_argument("--epoch", type=int, default=0, help="the epoch of the leader")
    parser.add_argument("--here", action="store_true", help="this machine runs members")
    parser.add_argument(
        "--own-home", default=None, help="data folder of this machine's agent; none: as its offer says"
    )
    given = parser.parse_args()
    leader = Leader(epoch=given.epoch, own_home=given.own_home, here=given.here)
    stream = socket.socket(fileno=given.fd)
    try:
        ray.init(
            address=given.address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            **({"_node_ip_address": given.node_ip} if given.node_ip else {}),
        )
    except Exception as error:
        # Whatever Ray raises here: the server is told in words and decides whether to try again.
        stream.sendall(json.dumps({"event": "failed", "message": str(error)}).encode() + b"\n")
        return 1
    stream.setblocking(False)
    try:
        asyncio.run(_main(stream, leader))
    except (RayError, ConnectionError, KeyboardInterrupt) as error:
        sys.stderr.write(f"the bridge ends: {error}\n")
    # No ray.shutdown: it waits for a head that may be gone, and a driver's exit is all that Ray needs.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
