"""What a server has of a fleet: its Ray engine as the configuration wants it, and the desk where machines join.

Owns: which Ray cluster, whose token, what is checked of a machine before it may join. Must not know: HTTP, Ray itself.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from airyard.adapters import ray_command
from airyard.adapters.ray_engine import Cluster, RayEngine
from airyard.adapters.ray_head import RayHead
from airyard.adapters.ray_node import RayNode
from airyard.app.control import Control
from airyard.app.leases import LONE_LEASE_S, STANDBY_LEASE_S
from airyard.app.loop import ControlLoop
from airyard.core.commands import DrainNodes, EndReservation, MakeReservation, UncordonNodes
from airyard.core.errors import Conflict, Denied, Fix, UserError
from airyard.core.policy import Reservation
from airyard.server.config import EngineSection, RaySection
from airyard.server.engine_place import EnginePlace
from airyard.server.join_versions import check_versions
from airyard.server.journal_place import read_password
from airyard.server.premises import write_atomically

DAY_MS = 86_400_000
RESERVED_DAYS = 365
PROBE_S = 3.0
SETTLE_S = 30.0
"""After a start of the server, machines that it knew have this time to be heard of before their names are free."""
UNTIL_NOTE = "it leaves: airyard node join --until"
LEAVE_NOTE = "it leaves: airyard node leave"


def make_ray_engine(config: EngineSection, place: EnginePlace) -> RayEngine:
    """Return the engine of a fleet.

    Raises: UserError for a Ray that is not there or another, for an address that is not this machine's.
    """
    ray_command.check_ray()
    if place.standby and config.ray.head is None and config.ray.address is None:
        raise UserError(
            "[standby] shared is set, and the head of Ray would be on the leader's own machine, and gone with it",
            code="BAD_CONFIG",
            fix="start it on a machine of its own with `airyard node head`, and name it in [engine.ray] head; "
            "docs/operate/standby.md has the whole of it",
        )
    offer = _own_offer(config, place)
    with_head = config.ray.head is not None
    return RayEngine(
        place.home,
        cluster=_cluster(config, place),
        server_url=place.urls,
        # Beside a head elsewhere this machine is one of the others, known by its offer to whoever leads.
        own_offer=offer if config.ray.here and not with_head else None,
        here=config.ray.here,
        everywhere=place.standby,
        epoch=place.epoch,
        lease_s=config.lease_seconds or (STANDBY_LEASE_S if place.standby else LONE_LEASE_S),
        monitor=place.monitor,
        now_ms=place.now_ms,
    )


def own_node(config: EngineSection, place: EnginePlace) -> RayNode | None:
    """Return the Ray node of a server's machine whose head is elsewhere. Raises: UserError as ``make_ray_engine``."""
    if config.ray.head is None:
        return None
    ray_command.check_ray()
    assert config.ray.token_file is not None
    token = Path(config.ray.token_file)
    if not token.is_file():
        raise UserError(
            f"[engine.ray] token_file names {token}, which is not there",
            code="BAD_CONFIG",
            fix="copy head/token from the data folder of the head's machine",
        )
    address = _address(config, place)
    with _bad_address(address):
        return RayNode(
            place.home,
            head=config.ray.head,
            address=address,
            token_file=token,
            offer=_own_offer(config, place) if config.ray.here else None,
        )


def _cluster(config: EngineSection, place: EnginePlace) -> Cluster:
    folder = place.home / "server" / "ray"
    ray, address = config.ray, _address(config, place)
    if ray.head is None and ray.address is None:
        with _bad_address(address):
            head = RayHead(folder, address=address, dashboard=ray.dashboard, redis=redis_of(ray))
        return Cluster(address=head.address, token_file=head.token_file, node_ip=address, kept=head)
    node = own_node(config, place)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Cluster(
        address=ray.head or ray.address or "",
        token_file=ray_command.token_file(folder, Path(ray.token_file) if ray.token_file else None),
        node_ip=address if ray.head is not None else ray.node_ip,
        kept=node,
    )


def _own_offer(config: EngineSection, place: EnginePlace) -> dict[str, Any]:
    return {
        "simulate": dict(place.simulate),
        "cpu_slots": config.cpu_slots,
        "system_gpu_lock_folder": config.system_gpu_lock_folder,
        "address": _address(config, place),
        "server_url": place.url,
    }


def _address(config: EngineSection, place: EnginePlace) -> str:
    return config.ray.node_ip or node_address(place.host)


@contextlib.contextmanager
def _bad_address(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Ray cannot listen on {address}: {error.strerror}",
            code="BAD_HOST",
            fix="set [engine.ray] node_ip to an address of this machine that the other machines reach",
        ) from error


def redis_of(section: RaySection) -> ray_command.Redis | None:
    """Return where the server's own head keeps its state. Raises: UserError for a password file of no use."""
    if section.redis is None:
        return None
    file = section.redis_password_file
    return ray_command.Redis(
        address=section.redis,
        password=read_password(Path(file), "[engine.ray] redis_password_file") if file else "",
    )


def advertised(host: str) -> str:
    """Return where a server that listens on ``host`` is reached: a wildcard is no address."""
    return ray_command.own_address() if host in ("0.0.0.0", "::") else host


def node_address(host: str) -> str:
    """Return the address by which Ray and the members on this machine are reached: the server's own, if it is one."""
    if host in ("", "0.0.0.0", "::", "::1", "localhost") or host.startswith("127."):
        return ray_command.own_address()
    try:
        return socket.gethostbyname(host)  # Ray wants numbers
    except OSError:
        return ray_command.own_address()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A machine that wants to join, as it describes itself."""

    name: str
    machine_id: str
    """What its data folder is known by; another folder is another machine."""
    version: str
    ray: str
    python: str
    address: str
    port: int
    """Where it listens for this server's probe."""
    nonce: str


class FleetDesk:
    """Checks machines that want to join, and those that want to leave. Any thread; blocks."""

    def __init__(
        self,
        engine: RayEngine,
        loop: ControlLoop,
        *,
        folder: Path,
        host: str,
        servers: Sequence[str],
        now_ms: Callable[[], int],
        by: str,
    ) -> None:
        """``folder`` holds what the servers of the yard know of its machines; ``servers``: where they are."""
        self._engine = engine
        self._loop = loop
        self._host = host
        self._now_ms = now_ms
        self._by = by
        self._servers = tuple(servers)
        self._registry = Registry(folder / "machines.json")

    def authorise(self, authorization: str | None) -> None:
        """Let only a holder of the fleet's token pass. Raises: Denied."""
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token()):
            error = Denied(
                "this is not the token of the fleet",
                code="UNAUTHENTICATED",
                fix="copy server/ray/token from the server's data folder, and name it with --token-file",
            )
            error.http_status = 401  # type: ignore[misc]  # 403 is for callers that are known
            raise error

    def proof(self, nonce: str) -> str:
        """Return what only a holder of the fleet's token can say to a nonce."""
        return hmac.new(self._token(), nonce.encode(), sha256).hexdigest()

    def _token(self) -> bytes:
        return self._engine.token_file.read_bytes().strip()

    def join(self, one: Applicant) -> dict[str, Any]:
        """Check a machine; return where Ray is and which members its name still has. Raises: Conflict, UserError."""
        check_versions(one.name, version=one.version, ray=one.ray, python=one.python)
        if self._host.startswith("127.") or self._host in ("::1", "localhost"):
            raise Conflict(
                f"this server listens on {self._host} only: runs on {one.name} could not reach it",
                code="SERVER_ON_LOOPBACK",
                fix=Fix(
                    text="start it on an address that the other machines reach",
                    command="airyard server --host ADDRESS --engine ray",
                ),
            )
        self._name_is_free(one)
        reason = probe(one.address, one.port, one.nonce)
        if reason is not None:
            raise Conflict(
                f"this server cannot reach {one.name} at {one.address} port {one.port}: {reason}",
                code="NODE_UNREACHABLE",
                fix="open the firewall between the two, or name another address of that machine with --address",
            )
        self._registry.note(one.name, one.machine_id)
        return {
            "ray_address": self._engine.ray_address,
            "members": self._members(one.name),
            "servers": list(self._servers),
        }

    def _name_is_free(self, one: Applicant) -> None:
        """Refuse a name that another machine has, or had when this server was not there to see."""
        holder = self._engine.machines().get(one.name)
        # A machine that was off for a moment is back before anybody missed it. A copy of its folder is elsewhere.
        itself = holder == one.machine_id and self._address(one.name) == one.address
        there = holder is not None and not itself
        before = self._registry.find(one.name) not in (None, one.machine_id)
        settled = self._engine.ready.is_set() and time.monotonic() - self._engine.ready_s > SETTLE_S
        if there or (before and not settled):
            when = (
                "is in the fleet already"
                if there
                else f"was in the fleet; it has {SETTLE_S:g} s to come back"
            )
            raise Conflict(
                f"a machine called {one.name} {when}",
                code="NAME_TAKEN",
                fix=Fix(text="choose another name for this one", command="airyard node join ... --name NAME"),
            )

    def is_in(self, name: str, machine_id: str) -> dict[str, Any]:
        """Return whether a machine has arrived, and its nodes."""

        def read(control: Control) -> list[str]:
            machine = control.state.machines.get(name)
            alive = machine is not None and machine.alive
            return sorted(
                node.name for node in control.state.nodes.values() if alive and node.machine == name
            )

        joined = self._engine.machines().get(name) == machine_id
        return {"joined": joined, "nodes": self._loop.query(read).result(timeout=10)}

    def until(self, name: str, until_ms: int) -> dict[str, Any]:
        """Set the machine's nodes aside from its end on: nothing is placed that would not be over, the rest drains."""

        def read(control: Control) -> tuple[list[str], list[int], list[str]]:
            state = control.state
            nodes = sorted(node.name for node in state.nodes.values() if node.machine == name)
            old = [
                each.reservation_id
                for each in state.reservations.values()
                if each.note == UNTIL_NOTE and set(each.nodes) & set(nodes)
            ]
            closed = [
                node for node in nodes if node in state.cordons and state.cordons[node].reason == LEAVE_NOTE
            ]
            return nodes, old, closed

        nodes, old, closed = self._loop.query(read).result(timeout=10)
        for number in old:
            self._loop.submit(EndReservation(reservation_id=number, by=self._by)).result(timeout=10)
        if closed:  # by its last leaving, not by an operator, whose cordons stay
            self._loop.submit(UncordonNodes(nodes=tuple(closed), by=self._by)).result(timeout=10)
        if until_ms <= 0:
            return {"nodes": nodes}
        wanted = Reservation(
            reservation_id=0,
            nodes=tuple(nodes),
            from_ms=until_ms,
            to_ms=max(until_ms, self._now_ms()) + RESERVED_DAYS * DAY_MS,
            by=self._by,
            maintenance=True,
            note=UNTIL_NOTE,
        )
        self._loop.submit(MakeReservation(reservation=wanted)).result(timeout=10)
        return {"nodes": nodes}

    def leave(self, name: str, *, force: bool, within_s: int | None = None) -> dict[str, Any]:
        """Say whether a machine may leave. Raises: Conflict that lists its members, unless forced.

        With ``within_s`` nothing is refused: its nodes are drained, so that all are gone by then at the latest.
        """
        members = self._members(name)
        if within_s is not None:
            self._drain(name, within_s)
            return {"members": members}
        if members and not force:
            raise Conflict(
                f"{name} still has live members ({len(members)}): {', '.join(members[:10])}",
                code="NODE_BUSY",
                fix="`airyard drain` its nodes and wait; --force leaves the members running until it joins again",
                details={"members": members},
            )
        return {"members": members}

    def _drain(self, machine: str, within_s: int) -> None:
        def read(control: Control) -> list[str]:
            return sorted(node.name for node in control.state.nodes.values() if node.machine == machine)

        nodes = self._loop.query(read).result(timeout=10)
        if nodes:
            deadline_ms = self._now_ms() + within_s * 1000
            wanted = DrainNodes(nodes=tuple(nodes), by=self._by, reason=LEAVE_NOTE, deadline_ms=deadline_ms)
            self._loop.submit(wanted).result(timeout=10)

    def _address(self, machine: str) -> str | None:
        def read(control: Control) -> str | None:
            found = control.state.machines.get(machine)
            return found.address if found is not None else None

        return self._loop.query(read).result(timeout=10)

    def _members(self, machine: str) -> list[str]:
        def read(control: Control) -> list[str]:
            return [
                str(attempt.member_key(member.index))
                for _, attempt in control.state.live_attempts()
                for member in attempt.members
                if member.machine == machine and not member.released
            ]

        return self._loop.query(read).result(timeout=10)


class Registry:
    """Which data folder a machine's name belongs to, in a file. A hint for joins; nothing is placed by it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def find(self, name: str) -> str | None:
        """Return the id that last had this name."""
        return self._read().get(name)

    def note(self, name: str, machine_id: str) -> None:
        """Give the name to a machine."""
        with self._lock:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps({**self._read(), name: machine_id}).encode())

    def _read(self) -> dict[str, str]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return {str(name): str(machine_id) for name, machine_id in found.items()}


def probe(address: str, port: int, nonce: str) -> str | None:
    """Return why a machine that listens there for us cannot be reached; None when it can."""
    try:
        with socket.create_connection((address, port), timeout=PROBE_S) as stream:
            stream.settimeout(PROBE_S)
            answer = stream.recv(256).decode(errors="replace")
    except OSError as error:
        return str(error.strerror or error)
    return None if secrets.compare_digest(answer, nonce) else "something else answers there"
