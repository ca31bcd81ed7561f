"""One side of a test between two nodes, that the server asks this machine's agent for: it gives way to work.

Owns: which side runs, its process, deadline and early end. Must not know: what is measured, what follows, the other
agent (what that one says comes through the server).

Each side is begun by a thread of its own, which lives as long as the side: its child dies with that thread, and so with
the agent, however that ended. One test at a time a machine; simulated nodes, which start nothing, are not counted.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from airyard.core.health.adapters import Adapter, Lane, lanes
from airyard.core.meeting import Meeting, meeting_addresses
from airyard.node.health_simulated import FAULT_FILE
from airyard.node.inventory import LOOPBACK, Node, Offer
from airyard.node.launch import of_checks
from airyard.node.network import Choice, Network, choose, collect, variables
from airyard.node.node_checks import NICE, ChecksRefused
from airyard.node.pair_simulated import script_for

TCP_S, GROUP_S = 60.0, 70.0
"""The exchange by TCP (single adapters, too) with all that goes before it, and the all-reduce; then it is killed."""
KEPT = 64
_LOOK_S = 0.1
_KILL_S = 2.0
_MODULE = "airyard.checks.pair_side"
Answer = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Side:
    """One side that was begun. ``opened``: where it listens; ``ended``: ``{state, said, problem?}``."""

    name: str
    node: str
    simulated: bool
    over: Event = field(default_factory=Event)
    opened: Future[Answer] = field(default_factory=Future)
    ended: Future[Answer] = field(default_factory=Future)

    def open(self, answer: Answer) -> None:
        """Say where it listens, once."""
        if not self.opened.done():
            self.opened.set_result(answer)


class NodePairs:
    """The sides of one agent. ``begin``, ``find``, ``stop`` and ``give_way`` are called on the agent's thread."""

    def __init__(self, node_folder: Path) -> None:
        self._fault_file = node_folder / "health" / FAULT_FILE
        self._lock = Lock()
        self._sides: dict[tuple[str, str], Side] = {}

    @property
    def is_running(self) -> bool:
        """True while a test of a real node goes on."""
        return any(not side.simulated and not side.ended.done() for side in self._all())

    def begin(
        self,
        asked: Mapping[str, Any],
        node: Node | None,
        offer: Offer,
        *,
        busy: bool,
        checking: bool,
        is_wanted: Callable[[], bool],
    ) -> Side:
        """Begin one side; the same name again on the node replaces the first, which is ended.

        ``asked``: ``name, node, side, token, python, peer?``. ``busy``: a member lives on the node. ``checking``: a
        round of checks runs on the machine. Raises: ChecksRefused, KeyError, ValueError.
        """
        if node is None:
            raise ChecksRefused("UNKNOWN_NODE", f"this machine has no node {asked['node']}")
        if asked["side"] not in ("serve", "call"):
            raise ValueError(f"no side {asked['side']!r}")
        if busy:
            raise ChecksRefused("NODE_IN_USE", f"runs are on {node.name}: a test of pairs would disturb them")
        side = Side(name=str(asked["name"]), node=node.name, simulated=node.simulated)
        for other in self._all():
            if other.ended.done() or other.name == side.name:
                continue
            if other.node == side.node or not (other.simulated or side.simulated):
                raise ChecksRefused("CHECKS_BUSY", f"a test of pairs runs on {other.node} already")
        if checking and not side.simulated:
            raise ChecksRefused("CHECKS_BUSY", f"a round of checks runs on the machine of {node.name}")
        self._keep(side)
        work = self._simulate if side.simulated else self._run
        Thread(target=work, args=(side, asked, node, offer, is_wanted), name="pair", daemon=True).start()
        return side

    def find(self, name: str, node: str) -> Side:
        """Return a side that was begun. Raises: ChecksRefused."""
        with self._lock:
            found = self._sides.get((name, node))
        if found is None:
            raise ChecksRefused("UNKNOWN_PAIR", f"no test of pairs {name} was begun on {node}")
        return found

    def stop(self, name: str | None = None) -> None:
        """End the sides of one test, or all; what was begun answers that it was stopped."""
        for side in self._all():
            if name in (None, side.name):
                side.over.set()

    def give_way(self, node: str) -> None:
        """End what runs on a node: a member starts there."""
        for side in self._all():
            if side.node == node:
                side.over.set()

    def _all(self) -> list[Side]:
        with self._lock:
            return list(self._sides.values())

    def _keep(self, side: Side) -> None:
        with self._lock:
            before = self._sides.pop((side.name, side.node), None)
            if before is not None:
                before.over.set()
            self._sides[side.name, side.node] = side
            done = [key for key, each in self._sides.items() if each.ended.done()]
            for key in done[: -KEPT or None]:
                del self._sides[key]

    # --- on the side's own thread

    def _simulate(
        self, side: Side, asked: Mapping[str, Any], node: Node, offer: Offer, is_wanted: Callable[[], bool]
    ) -> None:
        script = script_for(self._fault_file, node.name)
        side.open({"state": "open", "port": 0, "address": offer.address, "simulated": True})
        until = time.monotonic() + script.seconds
        while time.monotonic() < until and is_wanted() and not side.over.wait(_LOOK_S):
            pass
        if side.over.is_set() or not is_wanted():
            side.ended.set_result({"state": "stopped", "said": {}})
        else:
            state = "late" if script.hangs else "done"
            side.ended.set_result({"state": state, "said": {} if script.hangs else script.said()})

    def _run(
        self, side: Side, asked: Mapping[str, Any], node: Node, offer: Offer, is_wanted: Callable[[], bool]
    ) -> None:
        answer: Answer = {"state": "crashed", "said": {}, "problem": "the test could not be begun"}
        try:
            place = Place.of(offer)
            wish = wish_of(asked, node, place)
            about = {"address": offer.address, "addresses": list(place.choice.addresses), **_means(wish)}
            about["adapters"] = [each.as_json() for each in place.adapters]
            answer = _Child(side, wish, about).run(is_wanted)
        except Exception as error:  # whatever it is, the server hears of it
            answer = {**answer, "problem": f"the test could not be begun: {type(error).__name__}: {error}"}
        finally:
            side.open(answer)
            side.ended.set_result(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How this machine is reached by others; ``choice`` is empty where there are no others."""

    address: str
    choice: Choice
    adapters: tuple[Adapter, ...] = ()

    @classmethod
    def of(cls, offer: Offer) -> Place:
        """Look at the machine's networks, as its members do."""
        if offer.address.startswith("127."):
            return cls(address=offer.address, choice=Choice(addresses=(), rdma=(), summary="", names={}))
        network = collect()
        choice = choose(network, offer.network, offer.address)
        return cls(address=offer.address, choice=choice, adapters=tuple(_adapters(network, choice)))


def _adapters(network: Network, choice: Choice) -> Iterator[Adapter]:
    """Yield the interfaces that runs may use; a kind is what should be as fast."""
    for each in network.interfaces:
        if each.address in choice.addresses:
            kind = f"{'physical' if each.physical else 'virtual'} {each.speed_mbps or 0} {each.mtu}"
            yield Adapter(name=each.name, address=str(each.address), kind=kind)


def wish_of(asked: Mapping[str, Any], node: Node, place: Place) -> dict[str, Any]:
    """Return what the child is told."""
    peer = asked.get("peer")
    alone = place.address.startswith("127.")
    # The other side may reach this one at any of its addresses: as with members, all of them are listened on.
    host = _host(peer, place) if peer is not None else (LOOPBACK if alone else "")
    told = {
        address: {
            "tcp": variables(place.choice, address, rdma=False, own=()),
            "rdma": variables(place.choice, address, rdma=True, own=()),
        }
        for address in place.choice.names
    }
    return {
        "parent": os.getpid(),
        "nice": NICE,
        "side": asked["side"],
        "host": host,
        "token": str(asked["token"]),
        # Where nobody names an interpreter, environments are made by this one.
        "python": str(asked.get("python") or sys.executable),
        "gpus": [device.uuid for device in node.devices] if node.model is not None else [],
        "rdma": bool(place.choice.rdma),
        "variables": told,
        "lanes": [asdict(lane) for lane in _lanes(peer, place)],
        "peer": dict(peer) if peer is not None else None,
    }


def _host(peer: Mapping[str, Any], place: Place) -> str:
    """Return where the other side is called: the address by which members of a run on the two would meet."""
    theirs = Meeting(addresses=tuple(str(each) for each in peer.get("addresses") or ()), port=0)
    mine = Meeting(addresses=place.choice.addresses, port=0)
    return meeting_addresses([str(peer["address"]), place.address], [theirs, mine])[0]


def _lanes(peer: Mapping[str, Any] | None, place: Place) -> tuple[Lane, ...]:
    """Return which adapters are tested one by one; none with an agent of a release that does not know of it."""
    if peer is None or not peer.get("lanes_port"):
        return ()
    return lanes(place.adapters, [Adapter.from_json(each) for each in peer.get("adapters") or ()])


def _means(wish: Mapping[str, Any]) -> dict[str, Any]:
    return {"gpus": len(wish["gpus"]), "rdma": wish["rdma"], "simulated": False}


class _Child:
    """The process of one side: read line by line, ended at its deadline or when it has to make room."""

    def __init__(self, side: Side, wish: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self._side = side
        self._about = about
        self._until = time.monotonic() + TCP_S
        self._buffer = b""
        self._said: Answer | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=of_checks(os.environ),
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(wish).encode())
            self._process.stdin.close()

    def run(self, is_wanted: Callable[[], bool]) -> Answer:
        """Wait for its end and return what it came to; nothing of it is left then."""
        try:
            while self._read():
                if self._side.over.is_set() or not is_wanted():
                    return {"state": "stopped", "said": {}}
                if time.monotonic() >= self._until:
                    return {"state": "late", "said": {}}
        finally:
            self._end()
        return _ended(self._said)

    def _read(self) -> bool:
        """Take in what it says; False when it has ended."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _LOOK_S)
        if not ready:
            return True
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self._take(json.loads(line))
        return bool(data)

    def _take(self, said: Answer) -> None:
        if "port" in said:
            self._side.open({"state": "open", **self._about, **said})
        elif "stage" in said:
            self._until = time.monotonic() + GROUP_S
        else:
            self._said = said

    def _end(self) -> None:
        # Its group may hold ranks also when it has ended by itself.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it waits in the kernel: nobody waits for it
            self._process.wait(_KILL_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _ended(said: Answer | None) -> Answer:
    """Return what the last line of a child comes to."""
    if said is None:
        return {"state": "crashed", "said": {}, "problem": "the test crashed"}
    if said.get("late"):
        return {"state": "late", "said": {}}
    if "broken" in said:
        return {"state": "crashed", "said": {}, "problem": str(said["broken"])}
    if "problem" in said:
        return {"state": "apart", "said": {}, "problem": str(said["problem"])[:300]}
    return {"state": "done", "said": said}
