"""The engine of one machine: keeps its agent running and speaks to it over a UNIX socket.

Owns: starting the agent, the connection and its renewal. Must not know: what is said over it (``agent_dialogue``),
what the loop makes of a fact, what runners do. The agent outlives this process on purpose.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airyard.adapters.agent_dialogue import Dialogue, OtherVersion
from airyard.adapters.agent_process import connected, start_agent
from airyard.adapters.line_stream import READ_BYTES, LineBuffer, Waker
from airyard.adapters.node_checking import check_over
from airyard.adapters.node_pairing import pair_over
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.errors import Unavailable
from airyard.ports.engine import Fact, FactSink

_CONNECT_TIMEOUT_S = 10.0
_HELLO_TIMEOUT_S = 60.0
_TIDY_TIMEOUT_S = 300.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class LocalEngine:
    """Implements ``ports.engine.Engine`` for the machine this process runs on."""

    def __init__(
        self,
        home: Path,
        *,
        server_url: str,
        simulate: Mapping[str, int] | None = None,
        cpu_slots: int | None = None,
        gpu_lock_folder: Path | None = None,
        lease_s: float | None = None,
        monitor: Mapping[str, Any] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._home = home.absolute()
        self.lease_s = lease_s
        self._sink: FactSink | None = None
        self._waker = Waker()
        self._dialogue = Dialogue(
            server_url=server_url,
            config={
                "simulate": dict(simulate or {}),
                "cpu_slots": cpu_slots,
                "system_gpu_lock_folder": str(gpu_lock_folder) if gpu_lock_folder else None,
            },
            tell=self._tell,
            wake=self._waker.wake,
            now_ms=now_ms,
            monitor=monitor,
        )
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)

    # --- the port

    @property
    def is_fleet(self) -> bool:
        """See ``Engine``: this is one machine."""
        return False

    def await_ready(self) -> bool:
        """See ``Engine``: the machine is this one."""
        return True

    def connect(self, sink: FactSink) -> None:
        """Start the agent if there is none and begin to deliver facts."""
        self._sink = sink
        self._thread.start()

    def start(self, action: StartMember, token: str) -> None:
        """See ``Engine``."""
        self._dialogue.start(action, token)

    def kill(self, action: KillMember) -> None:
        """See ``Engine``."""
        self._dialogue.kill(action)

    def ship(self, action: ShipLogs, token: str) -> None:
        """See ``Engine``."""
        self._dialogue.ship(action, token)

    def forget(self, action: ForgetMember) -> None:
        """See ``Engine``."""
        self._dialogue.forget(action)

    def renew(self) -> None:
        """See ``Engine``."""
        self._dialogue.renew()

    def warm(self, base: Mapping[str, Any]) -> None:
        """See ``Engine``."""
        with contextlib.suppress(OSError, ValueError):
            self._call({"op": "warm", "base": dict(base)}, timeout_s=_CONNECT_TIMEOUT_S)

    def has_environment(self, environment: Mapping[str, Any]) -> bool | None:
        """See ``Engine``."""
        request = {"op": "has_environment", "environment": dict(environment)}
        try:
            answer = self._call(request, timeout_s=_CONNECT_TIMEOUT_S)
        except (OSError, ValueError):
            return None
        # An agent of an older version, which lives on over an upgrade, does not know the question.
        return bool(answer["result"]["ready"]) if answer["ok"] else None

    def tidy(self, *, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> Mapping[str, Any]:
        """See ``Engine``."""
        request = {"op": "tidy", "age_ms": age_ms, "cap_bytes": cap_bytes, "dry_run": dry_run}
        try:
            answer = self._call(request, timeout_s=_TIDY_TIMEOUT_S)
        except (OSError, ValueError) as error:
            return {"away": f"the agent did not answer: {error}"}
        return dict(answer["result"]) if answer["ok"] else {"away": str(answer["error"]["message"])}

    def _call(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Ask the agent one thing over a connection of its own. Raises: OSError, ValueError."""
        with connected(self._home) as stream:
            stream.settimeout(timeout_s)
            stream.sendall(json.dumps({"id": 1, **request}).encode() + b"\n")
            buffer = b""
            while not buffer.endswith(b"\n"):
                data = stream.recv(READ_BYTES)
                if not data:
                    raise ValueError("the connection was cut")
                buffer += data
            answer: dict[str, Any] = json.loads(buffer)
            return answer

    def check_node(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine``."""
        return check_over(self._dialogue, machine, asked, should_stop)

    def pair_nodes(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine``."""
        sides = (self._dialogue, self._dialogue)
        return pair_over(sides, machines, asked, should_stop)

    def close(self) -> None:
        """Stop delivering facts. The agent and all members live on."""
        self._closing = True
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def stop_agent(self) -> None:
        """See ``Engine``. No agent is fine."""
        self.close()
        with contextlib.suppress(OSError), connected(self._home) as stream:
            stream.settimeout(_CONNECT_TIMEOUT_S)
            stream.sendall(b'{"id":0,"op":"stop"}\n')
            while stream.recv(READ_BYTES):
                pass

    def _tell(self, fact: Fact) -> None:
        assert self._sink is not None
        self._sink(fact)

    # --- the connection's thread

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._closing:
            try:
                stream = self._reach_agent()
            except (OSError, Unavailable):
                self._pause(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
                continue
            with stream:
                try:
                    self._converse(stream)
                    pause_s = _FIRST_PAUSE_S
                except (OSError, ValueError, KeyError):
                    self._pause(pause_s)
                    pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
            if not self._closing:
                self._dialogue.lost()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _reach_agent(self) -> socket.socket:
        """Connect, starting the agent when nobody listens. Raises: OSError, Unavailable."""
        try:
            return connected(self._home)
        except OSError:
            start_agent(self._home)
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        while not self._closing:
            try:
                return connected(self._home)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        raise Unavailable("the engine is being closed")

    def _converse(self, stream: socket.socket) -> None:
        """Say hello, then carry requests out and facts in until the connection ends or ``close``."""
        stream.settimeout(_HELLO_TIMEOUT_S)
        stream.sendall(self._dialogue.begin())
        buffer = LineBuffer()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            selector.register(self._waker, selectors.EVENT_READ)
            while not self._closing:
                if lines := self._dialogue.outgoing():
                    stream.sendall(lines)
                ready = {key.fileobj for key, _ in selector.select()}
                if self._waker in ready:
                    self._waker.drain()
                if stream in ready:
                    data = stream.recv(READ_BYTES)
                    if not data:
                        return
                    for line in buffer.feed(data):
                        self._on_line(line, stream)

    def _on_line(self, line: bytes, stream: socket.socket) -> None:
        try:
            self._dialogue.on_line(line)
        except OtherVersion:
            # Left over from before an upgrade; members live on, and the next agent is of our version.
            stream.sendall(b'{"id":-1,"op":"stop"}\n')
            raise ValueError("the agent is of another version") from None
