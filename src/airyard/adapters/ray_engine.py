"""The engine of a fleet: Ray says which machines there are and carries lines to their agents.

Owns: the bridge process and its restarts, one dialogue a machine, which machine a channel is. Must not know: Ray itself
(only the bridge imports it), what the loop makes of a fact. Leases, cordons and retries are the journal's.

A machine that is away is no dead machine: its agent and runners need neither Ray nor this process to live.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from airyard.adapters import ray_command
from airyard.adapters.agent_dialogue import Dialogue
from airyard.adapters.dialogues import ASK_S, TIDY_S, Answers, Dialogues, any_ready, ask_all, tidied
from airyard.adapters.line_stream import READ_BYTES, LineBuffer, Waker
from airyard.adapters.node_checking import check_over
from airyard.adapters.node_pairing import pair_over
from airyard.adapters.ray_head import RayHead
from airyard.adapters.ray_node import RayNode
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.errors import AiryardError, Unavailable
from airyard.ports.engine import Fact, FactSink

LEASE_S = 600.0
FIRST_RAY_S = 80.0
"""A head of Ray that starts takes 5 s on a quiet machine, half a minute on a busy one."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_BRIDGE_END_S = 5.0
_AGENT_END_S = 5.0

_log = structlog.get_logger("airyard.ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The Ray cluster to use: where it is, and the token's file."""

    address: str
    """HOST:PORT, or ``auto`` for what runs on this machine."""
    token_file: Path
    node_ip: str | None = None
    kept: RayHead | RayNode | None = None
    """What this server keeps running here itself; None where others do."""


@dataclass(slots=True)
class _Channel:
    id: str
    dialogue: Dialogue
    home: str
    machine_id: str
    """What the machine's data folder is known by: made at its first join."""
    own: bool
    buffer: LineBuffer


class RayEngine:
    """Implements ``ports.engine.Engine`` for the machines of a Ray cluster."""

    def __init__(
        self,
        home: Path,
        *,
        cluster: Cluster,
        server_url: str,
        own_offer: Mapping[str, Any] | None,
        here: bool | None = None,
        everywhere: bool = False,
        epoch: Callable[[], int] = lambda: 0,
        lease_s: float = LEASE_S,
        monitor: Mapping[str, Any] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """``own_offer`` is what the server's machine offers, as in ``hello.config``; None: as its own offer file says.

        ``here``: it runs members; by default where ``own_offer`` is given. ``everywhere``: runners on all machines
        are told ``server_url``, whatever the address was by which a machine joined. ``epoch`` is the leader's, once
        it has one.
        """
        self._home = home.absolute()
        self._cluster = cluster
        self._server_url = server_url
        self._own_offer = dict(own_offer) if own_offer is not None else None
        self._here = here if here is not None else own_offer is not None
        self._everywhere = everywhere
        self._epoch = epoch
        self._now_ms = now_ms
        self._monitor = dict(monitor or {})
        self.lease_s = lease_s
        """How long a runner may go on that the server cannot reach."""
        self._ray_address = cluster.address
        self.ready = threading.Event()
        """Set once Ray could be reached; ``ready_s`` is when, by the monotonic clock."""
        self.ready_s = 0.0
        self.problem = ""
        """Why there is no Ray now; empty while there is."""
        self._sink: FactSink | None = None
        self._lock = threading.Lock()
        self._dialogues = Dialogues(self._new_dialogue)
        self._channels: dict[str, _Channel] = {}
        self._leaving: bytes = b""
        self._closing = self._stopping = False
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="ray-engine", daemon=True)

    # --- the port

    @property
    def is_fleet(self) -> bool:
        """See ``Engine``: machines come and go."""
        return True

    def await_ready(self) -> bool:
        """See ``Engine``: wait for Ray; then for the server's own machine, where that runs members."""
        if not self.ready.wait(FIRST_RAY_S):
            raise Unavailable(
                f"Ray could not be reached: {self.problem or f'no answer within {FIRST_RAY_S:g} s'}",
                code="RAY_AWAY",
                fix=f"look at {self._home / 'server' / 'ray'}: keeper.log, bridge.log",
            )
        return self._here

    def connect(self, sink: FactSink) -> None:
        """Have Ray running where that is this server's business, and begin to deliver facts."""
        self._sink = sink
        self._thread.start()

    def start(self, action: StartMember, token: str) -> None:
        """See ``Engine``."""
        self._dialogues.of(action.machine).start(action, token)

    def kill(self, action: KillMember) -> None:
        """See ``Engine``."""
        self._dialogues.of(action.machine).kill(action)

    def ship(self, action: ShipLogs, token: str) -> None:
        """See ``Engine``."""
        self._dialogues.of(action.machine).ship(action, token)

    def forget(self, action: ForgetMember) -> None:
        """See ``Engine``."""
        self._dialogues.of(action.machine).forget(action)

    def renew(self) -> None:
        """See ``Engine``."""
        for channel in self._connected():
            channel.dialogue.renew()

    def warm(self, base: Mapping[str, Any]) -> None:
        """See ``Engine``. Only of machines that are there now."""
        self._ask_all("warm", ASK_S, base=dict(base))

    def has_environment(self, environment: Mapping[str, Any]) -> bool | None:
        """See ``Engine``: True as soon as one machine has it."""
        return any_ready(self._ask_all("has_environment", ASK_S, environment=dict(environment)))

    def tidy(self, *, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> Mapping[str, Any]:
        """See ``Engine``: the sum over all machines that are there."""
        answers = self._ask_all("tidy", TIDY_S, age_ms=age_ms, cap_bytes=cap_bytes, dry_run=dry_run)
        return tidied(answers, self.problem)

    def check_node(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine``."""
        return check_over(self._dialogues.of(machine), machine, asked, should_stop)

    def pair_nodes(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine``."""
        sides = (self._dialogues.of(machines[0]), self._dialogues.of(machines[1]))
        return pair_over(sides, machines, asked, should_stop)

    def close(self) -> None:
        """Stop delivering facts. Ray, the agents and all members live on."""
        self._closing = True
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=_BRIDGE_END_S + 2)

    def stop_agent(self) -> None:
        """See ``Engine``: what this server keeps on its own machine is its agent, and its head.

        Other machines stay joined to nothing until the server is back; members live on.
        """
        own = [channel for channel in self._connected() if channel.own]
        self._stopping = True
        if own:
            self._leaving = b'{"id":-1,"op":"stop"}\n'
            self._waker.wake()
            deadline = time.monotonic() + _AGENT_END_S
            while any(channel.id in self._channels for channel in own) and time.monotonic() < deadline:
                time.sleep(0.02)
        self.close()
        if self._cluster.kept is not None:
            self._cluster.kept.stop()

    @property
    def token_file(self) -> Path:
        """The fleet's token, which joining machines need."""
        return self._cluster.token_file

    @property
    def ray_address(self) -> str:
        """Where other machines find the Ray cluster: what it says of itself once it was reached."""
        return self._ray_address

    def machines(self) -> dict[str, str]:
        """Return the machines that can be reached now: name -> id."""
        return {channel.dialogue.machine: channel.machine_id for channel in self._connected()}

    def _new_dialogue(self, machine: str) -> Dialogue:
        return Dialogue(
            server_url=self._server_url,
            config={},
            tell=self._tell,
            wake=self._waker.wake,
            now_ms=self._now_ms,
            same_version=False,
            monitor=self._monitor,
        )

    def _connected(self) -> list[_Channel]:
        with self._lock:
            return list(self._channels.values())

    def _ask_all(self, op: str, timeout_s: float, **fields: Any) -> Answers:
        return ask_all((channel.dialogue for channel in self._connected()), op, timeout_s, **fields)

    def _tell(self, fact: Fact) -> None:
        assert self._sink is not None
        self._sink(fact)

    # --- the bridge's thread

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing:
            began_s = time.monotonic()
            try:
                if self._cluster.kept is not None:
                    self._cluster.kept.ensure()
                self._over_a_bridge()
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                self._note(f"the bridge to Ray broke: {type(error).__name__}: {error}")
            except AiryardError as error:
                self._note(error.message)
            except Exception as error:
                # A bug must not end the only thread that speaks with the machines.
                _log.exception("ray_engine_broke")
                self._note(f"a bug: {error!r}")
            self._lose_all("Ray cannot be reached")
            if time.monotonic() - began_s > 60:
                pause_s = _FIRST_PAUSE_S
            deadline = time.monotonic() + pause_s
            while not self._closing and time.monotonic() < deadline:
                time.sleep(0.05)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _note(self, problem: str) -> None:
        if problem != self.problem and not self._closing:
            _log.warning("ray_away", reason=problem)
        self.problem = problem

    def _over_a_bridge(self) -> None:
        """Start a bridge and talk over it until it ends, or ``close``. Raises: OSError, ValueError, KeyError."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                bridge = self._start_bridge(theirs)
            try:
                self._converse(ours)
            finally:
                ours.close()
                try:
                    bridge.wait(_BRIDGE_END_S)
                except subprocess.TimeoutExpired:
                    bridge.kill()
                    bridge.wait()

    def _start_bridge(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        folder = self._home / "server" / "ray"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        node_ip = self._cluster.node_ip
        command = [
            *(sys.executable, "-m", "airyard.adapters.ray_bridge", "--fd", str(theirs.fileno())),
            *("--address", self._cluster.address, "--epoch", str(self._epoch())),
            *(("--here",) if self._here else ()),
            *(("--own-home", str(self._home)) if self._own_offer is not None else ()),
            *(("--node-ip", node_ip) if node_ip else ()),
        ]
        with open(folder / "bridge.log", "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **ray_command.ray_environment(self._cluster.token_file)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in a terminal is the server's to deal with; the bridge ends with its socket.
                start_new_session=True,
                cwd="/",
            )

    def _converse(self, stream: socket.socket) -> None:
        buffer = LineBuffer()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            while not self._closing:
                if lines := self._outgoing():
                    stream.sendall(lines)
                ready = {key.fileobj for key, _ in selector.select()}
                if self._waker in ready:
                    self._waker.drain()
                if stream in ready:
                    data = stream.recv(READ_BYTES)
                    if not data:
                        raise ValueError("the bridge ended; server/ray/bridge.log may say why")
                    for line in buffer.feed(data):
                        if answer := self._on_event(json.loads(line)):
                            stream.sendall(answer)

    def _outgoing(self) -> bytes:
        lines = []
        for channel in self._connected():
            if data := channel.dialogue.outgoing():
                lines.append(_to(channel.id, data))
            if channel.own and self._leaving:
                lines.append(_to(channel.id, self._leaving, do="leave"))
        self._leaving = b""
        return b"".join(lines)

    def _on_event(self, message: Mapping[str, Any]) -> bytes:
        """Deal with one line of the bridge; return what to answer."""
        match message["event"]:
            case "ready":
                self.problem = ""
                self._ray_address = str(message["address"])
                if not self.ready.is_set():
                    self.ready_s = time.monotonic()
                self.ready.set()
                _log.info("ray_connected", address=self._ray_address, ray=message["ray"])
            case "failed":
                raise ValueError(str(message["message"]))
            case "up":
                return self._on_up(message)
            case "down":
                self._on_down(str(message["channel"]), str(message["why"]))
            case "data":
                return self._on_data(str(message["channel"]), str(message["data"]))
        return b""

    def _on_up(self, message: Mapping[str, Any]) -> bytes:
        channel, about = str(message["channel"]), message["about"]
        here = bool(message["own"])
        own = here and self._own_offer is not None
        offer = (self._own_offer or {}) if own else dict(about["offer"] or {})
        given, machine_id = offer.get("machine"), str(offer.get("id") or "")
        name = str(given or about["host"]).split(".")[0].lower()
        # The server's own nodes keep the names that they have without a fleet; all others carry their machine's.
        config = {
            **offer,
            "machine": given if own else name,
            "address": offer.get("address") or message["address"],
            "labels": {**message["labels"], **(offer.get("labels") or {})},
        }
        dialogue = self._dialogues.of(name)
        holder = next((each for each in self._connected() if each.dialogue is dialogue), None)
        if holder is not None:
            if (holder.home, holder.machine_id, holder.own) != (about["home"], machine_id, here):
                _log.warning("machine_name_taken", machine=name, home=about["home"], held_by=holder.home)
                return _to(channel, b"", do="leave")
            self._on_down(holder.id, "it is back under another number")
        with self._lock:
            self._channels[channel] = _Channel(
                id=channel,
                dialogue=dialogue,
                home=str(about["home"]),
                machine_id=machine_id,
                own=here,
                buffer=LineBuffer(),
            )
        _log.info("machine_up", machine=name, address=config["address"], version=about["version"])
        url = None if self._everywhere else offer.get("server_url")
        return _to(channel, dialogue.begin(server_url=url, config=config))

    def _on_down(self, channel: str, why: str) -> None:
        with self._lock:
            found = self._channels.pop(channel, None)
        if found is not None:
            _log.info("machine_away", machine=found.dialogue.machine, reason=why)
            if not self._closing and not self._stopping:
                found.dialogue.lost()

    def _lose_all(self, why: str) -> None:
        for channel in self._connected():
            self._on_down(channel.id, why)

    def _on_data(self, channel: str, data: str) -> bytes:
        found = self._channels.get(channel)
        if found is None:
            return b""
        for line in found.buffer.feed(data.encode("latin-1")):
            try:
                found.dialogue.on_line(line)
            except (ValueError, KeyError) as error:
                _log.warning("agent_not_understood", machine=found.dialogue.machine, error=str(error))
                self._on_down(channel, str(error))
                return _to(channel, b"", do="leave")
        return b""


def _to(channel: str, data: bytes, *, do: str = "send") -> bytes:
    return json.dumps({"do": do, "channel": channel, "data": data.decode("latin-1")}).encode() + b"\n"
