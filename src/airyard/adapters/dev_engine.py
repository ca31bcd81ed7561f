"""The engine of ``airyard dev fleet``: simulated machines connect to a socket in the data folder and are spoken to.

Owns: the socket, a connection a machine, one thread for all of them. Must not know: that the machines are simulated,
what is said to them (``agent_dialogue``), what the loop makes of a fact.

A machine says first ``{"event":"up","machine","offer"}``: who it is, and what ``hello.config`` is to say to it. From
then on it hears and answers what every agent does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from airyard.adapters.agent_dialogue import Dialogue
from airyard.adapters.dialogues import ASK_S, TIDY_S, Dialogues, any_ready, ask_all, tidied
from airyard.adapters.line_stream import READ_BYTES, LineBuffer, Waker
from airyard.adapters.node_checking import check_over
from airyard.adapters.node_pairing import pair_over
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.ports.engine import Fact, FactSink

SOCKET = "dev.sock"
_BACKLOG = 4096
_MOST_UNREAD_BYTES = 16 << 20
_END_S = 5.0

_log = structlog.get_logger("airyard.dev_engine")


class _Connection:
    """One machine's: until it has said who it is, ``dialogue`` is None."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.buffer = LineBuffer()
        self.unsent = bytearray()
        self.name = ""
        self.dialogue: Dialogue | None = None


class DevEngine:
    """Implements ``ports.engine.Engine`` for machines that one other process plays."""

    def __init__(
        self,
        home: Path,
        *,
        server_url: str,
        lease_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._folder = home.absolute() / "server"
        self._server_url = server_url
        self._now_ms = now_ms
        self.lease_s = lease_s
        self._sink: FactSink | None = None
        self._dialogues = Dialogues(self._new_dialogue)
        self._there: dict[str, _Connection] = {}
        self._with_news: deque[str] = deque()
        """Machines for which something may have to be sent; appended to by any thread."""
        self._waker = Waker()
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="dev-engine", daemon=True)

    # --- the port

    @property
    def is_fleet(self) -> bool:
        """See ``Engine``: machines come and go."""
        return True

    def await_ready(self) -> bool:
        """See ``Engine``: nobody is waited for."""
        return False

    def connect(self, sink: FactSink) -> None:
        """Listen, and deliver facts."""
        self._sink = sink
        self._listener = _listen(self._folder / SOCKET)
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
        for dialogue in self._connected():
            dialogue.renew()

    def warm(self, base: Mapping[str, Any]) -> None:
        """See ``Engine``: simulated machines have every environment."""

    def has_environment(self, environment: Mapping[str, Any]) -> bool | None:
        """See ``Engine``."""
        return any_ready(ask_all(self._connected()[:1], "has_environment", ASK_S, environment=environment))

    def tidy(self, *, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> Mapping[str, Any]:
        """See ``Engine``."""
        asked = self._connected()
        return tidied(ask_all(asked, "tidy", TIDY_S, age_ms=age_ms, cap_bytes=cap_bytes, dry_run=dry_run), "")

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
        """See ``Engine``."""
        self._closing = True
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=_END_S)

    def stop_agent(self) -> None:
        """See ``Engine``: who started the machines ends them."""
        self.close()

    def _new_dialogue(self, machine: str) -> Dialogue:
        return Dialogue(
            server_url=self._server_url,
            config={},
            tell=self._tell,
            wake=partial(self._note_news, machine),
            now_ms=self._now_ms,
            same_version=False,
        )

    def _connected(self) -> list[Dialogue]:
        return [one.dialogue for one in list(self._there.values()) if one.dialogue is not None]

    def _tell(self, fact: Fact) -> None:
        assert self._sink is not None
        self._sink(fact)

    def _note_news(self, machine: str) -> None:
        self._with_news.append(machine)
        self._waker.wake()

    # --- the thread

    def _run(self) -> None:
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._closing:
            for key, events in self._selector.select():
                if key.fileobj is self._waker:
                    self._waker.drain()
                    self._send_news()
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    self._serve(key.data, events)
        self._listener.close()
        for one in list(self._there.values()):
            one.stream.close()
        self._selector.close()

    def _send_news(self) -> None:
        names: dict[str, None] = {}
        with contextlib.suppress(IndexError):
            while True:
                names[self._with_news.popleft()] = None
        for name in names:
            one = self._there.get(name)
            if one is not None and one.dialogue is not None:
                self._send(one, one.dialogue.outgoing())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            stream, _ = self._listener.accept()
            stream.setblocking(False)
            self._selector.register(stream, selectors.EVENT_READ, _Connection(stream))

    def _serve(self, one: _Connection, events: int) -> None:
        if one.stream.fileno() < 0:
            return  # ended by another one that was served before it
        if events & selectors.EVENT_WRITE:
            self._send(one, b"")
        if one.stream.fileno() < 0 or not events & selectors.EVENT_READ:
            return
        try:
            data = one.stream.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(one)
            return
        try:
            for line in one.buffer.feed(data):
                self._on_line(one, line)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("agent_not_understood", machine=one.name, error=str(error))
            self._end(one)

    def _on_line(self, one: _Connection, line: bytes) -> None:
        if one.dialogue is not None:
            one.dialogue.on_line(line)
            self._send(one, one.dialogue.outgoing())
            return
        message = json.loads(line)
        one.name, offer = str(message["machine"]), dict(message["offer"])
        before = self._there.get(one.name)
        if before is not None:
            self._end(before)
        one.dialogue = self._dialogues.of(one.name)
        self._there[one.name] = one
        self._send(one, one.dialogue.begin(config={**offer, "machine": one.name}))

    def _send(self, one: _Connection, data: bytes) -> None:
        """Send what can be sent at once; the rest when the machine takes it."""
        one.unsent += data
        try:
            while one.unsent:
                del one.unsent[: one.stream.send(one.unsent)]
        except BlockingIOError:
            if len(one.unsent) > _MOST_UNREAD_BYTES:
                self._end(one)
                return
        except OSError:
            self._end(one)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.unsent else 0)
        if self._selector.get_key(one.stream).events != wanted:
            self._selector.modify(one.stream, wanted, one)

    def _end(self, one: _Connection) -> None:
        if one.stream.fileno() < 0:
            return
        self._selector.unregister(one.stream)
        one.stream.close()
        if self._there.get(one.name) is one:
            del self._there[one.name]
            if one.dialogue is not None and not self._closing:
                one.dialogue.lost()


def _listen(path: Path) -> socket.socket:
    """Listen at a path that may be longer than the kernel takes, in place of a dead process. Raises: OSError."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    listener.setblocking(False)
    return listener
