"""One side of the conversation with one agent, whatever carries its lines.

Owns: hello, requests until they are answered (over lost connections too), questions, facts from what the agent says.
Must not know: sockets, Ray, threads of a transport, what the loop makes of a fact.

A transport calls ``begin`` on a new connection, sends what ``outgoing`` returns, hands every line to ``on_line``, and
calls ``lost`` when the connection ended. ``ask``, ``call`` and ``renew`` come from any thread and wake the transport.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import structlog

import airyard
from airyard.adapters.agent_facts import (
    fact_of_push,
    fact_of_refused_start,
    facts_of_hello,
    health_of_push,
)
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.commands import MachineAway
from airyard.core.ids import MemberKey
from airyard.core.versions import AGENT, order_of_upgrade
from airyard.ports.engine import FactSink, HealthSeen

_log = structlog.get_logger("airyard.agents")


class OtherVersion(Exception):
    """The agent that answered is not of this version."""


class NoCommonProtocol(ValueError):
    """The agent and this server are too far apart; says both versions and which to upgrade."""


class Dialogue:
    """What is said to one agent and heard of it. Begins anew with every connection; requests stay."""

    def __init__(
        self,
        *,
        server_url: str,
        config: Mapping[str, Any],
        tell: FactSink,
        wake: Callable[[], None],
        now_ms: Callable[[], int],
        same_version: bool = True,
        monitor: Mapping[str, Any] | None = None,
    ) -> None:
        """``same_version``: only an agent of this version will do. Else they need a form of the protocol in common.

        ``monitor``: how the agent is to watch its machine's health, as ``[health.monitor]`` says it.
        """
        self._server_url = server_url
        self._config = dict(config)
        self._tell = tell
        self._wake = wake
        self._now_ms = now_ms
        self._same_version = same_version
        self._monitor = dict(monitor or {})
        self._nodes: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], dict[str, Any]] = {}
        self._unsent: list[tuple[str, str]] = []
        self._sent: dict[int, tuple[str, str]] = {}
        self._calls: dict[int, Future[dict[str, Any]]] = {}
        self._call_lines: list[bytes] = []
        self._next_id = 1
        self._greeted = False
        self._renewing = False
        self.is_open = False
        """An agent is there, as far as the transport knows."""
        self.machine = ""
        """The machine's name; empty until an agent has said hello."""

    # --- what the engine port asks

    def start(self, action: StartMember, token: str) -> None:
        """See ``Engine``."""
        self._ask(
            "start",
            action.key,
            node=action.node,
            devices=list(action.devices),
            token=token,
            server_url=self._server_url,
            epoch=action.epoch,
            cookie=action.cookie,
            **({} if action.limits is None else {"limits": dict(action.limits)}),
        )

    def kill(self, action: KillMember) -> None:
        """See ``Engine``."""
        self._ask("kill", action.key, reason=action.reason)

    def ship(self, action: ShipLogs, token: str) -> None:
        """See ``Engine``."""
        self._ask("ship", action.key, token=token, server_url=self._server_url)

    def forget(self, action: ForgetMember) -> None:
        """See ``Engine``."""
        self._ask("forget", action.key)

    def renew(self) -> None:
        """See ``Engine``."""
        self._renewing = True
        self._wake()

    def call(self, op: str, **fields: Any) -> Future[dict[str, Any]]:
        """Ask one thing over the present connection; the future has the answer, or ConnectionError."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            self._calls[self._next_id] = future
            self._call_lines.append(_line({"id": self._next_id, "op": op, **fields}))
            self._next_id += 1
        self._wake()
        return future

    def _ask(self, op: str, key: MemberKey, **fields: Any) -> None:
        """Remember a request until it is answered; the same one again replaces the first."""
        name = (op, str(key))
        with self._lock:
            if name not in self._requests:
                self._unsent.append(name)
            self._requests[name] = {"op": op, "key": str(key), **fields}
        self._wake()

    # --- what a transport does

    def begin(self, *, server_url: str | None = None, config: Mapping[str, Any] | None = None) -> bytes:
        """Begin on a new connection: return hello; whatever is unanswered will be sent again after its answer.

        ``server_url`` and ``config`` are from now on the machine's, where they differ from before.
        """
        self._server_url = server_url or self._server_url
        self._config = dict(config) if config is not None else self._config
        self._greeted = self._renewing = False
        self.is_open = True
        with self._lock:
            self._sent.clear()
            self._unsent = list(self._requests)
        return self._hello()

    def outgoing(self) -> bytes:
        """Return the lines to send now.

        Requests wait until hello's answer is told: a member started meanwhile would not be in it.
        """
        with self._lock:
            questions = b"".join(self._call_lines)
            self._call_lines.clear()
        if self._greeted and self._renewing:
            self._greeted = self._renewing = False
            return questions + self._hello()
        return questions + (self._take_unsent() if self._greeted else b"")

    def on_line(self, line: bytes) -> None:
        """Deal with one line. Raises: ValueError, KeyError for what no agent says, OtherVersion."""
        message = json.loads(line)
        event = message.get("event")
        if event == "nodes":
            # The loop wants the whole picture, so it is asked for again.
            self._renewing = True
        elif event == "health":
            self._on_health(message)
        elif event is not None:
            fact = fact_of_push(str(event), message, self._now_ms())
            if fact is not None:
                self._tell(fact)
        elif message["id"] == 0:
            self._on_hello(message)
        else:
            self._on_answer(message)

    def lost(self) -> None:
        """Take in that the connection ended."""
        self.is_open = False
        with self._lock:
            calls = list(self._calls.values())
            self._calls.clear()
            self._call_lines.clear()
        self._greeted = False
        for future in calls:
            future.set_exception(ConnectionError("the connection was cut"))
        if self.machine:
            self._tell(MachineAway(machine=self.machine))

    def _hello(self) -> bytes:
        return _line(
            {
                "id": 0,
                "op": "hello",
                "protocol": AGENT.newest,
                "oldest": AGENT.oldest,
                "server": {"url": self._server_url, "version": airyard.__version__},
                "config": self._config,
                "monitor": self._monitor,
            }
        )

    def _take_unsent(self) -> bytes:
        lines = []
        with self._lock:
            for name in self._unsent:
                request = self._requests.get(name)
                if request is not None:
                    self._sent[self._next_id] = name
                    lines.append(_line({"id": self._next_id, **request}))
                    self._next_id += 1
            self._unsent.clear()
        return b"".join(lines)

    def _on_hello(self, message: Mapping[str, Any]) -> None:
        if not message["ok"]:
            error = message["error"]
            refused = NoCommonProtocol if error.get("code") == "PROTOCOL_MISMATCH" else ValueError
            raise refused(f"the agent refused hello: {error['message']}")
        result = message["result"]
        version = result["machine"]["version"]
        if self._same_version and version != airyard.__version__:
            raise OtherVersion(version)
        if AGENT.common(result["protocol"], result["protocol"]) is None:
            raise NoCommonProtocol(
                f"the agent (Airyard {version}) speaks protocol {result['protocol']}, this server (Airyard "
                f"{airyard.__version__}) {AGENT}: {order_of_upgrade(airyard.__version__, version, 'the node')}"
            )
        containment, seen = facts_of_hello(result, self._now_ms())
        self.machine = seen.machine.name
        self._nodes = frozenset(node.name for node in seen.nodes)
        self._tell(containment)
        self._tell(seen)
        self._greeted = True

    def _on_health(self, message: Mapping[str, Any]) -> None:
        """Pass on what the machine's monitors saw; the agent hears of it once it is journalled."""
        if not self.machine:
            return
        ids, events = health_of_push(message, self.machine, self._nodes, self._now_ms())
        if len(events) < len(ids):
            left = sorted(set(ids) - {event.event_id for event in events})
            _log.warning("health_not_read", machine=self.machine, events=left[:5], count=len(left))

        def taken() -> None:
            self.call("health_taken", ids=ids)

        self._tell(HealthSeen(machine=self.machine, events=events, taken=taken))

    def _on_answer(self, message: Mapping[str, Any]) -> None:
        number = int(message["id"])
        with self._lock:
            call = self._calls.pop(number, None)
            name = self._sent.pop(number, None)
            if name is not None and name not in self._unsent:
                self._requests.pop(name, None)
        if call is not None:
            call.set_result(dict(message))
        if name is not None and not message["ok"] and name[0] == "start":
            key = MemberKey.parse(name[1])
            self._tell(fact_of_refused_start(key, message["error"], self._now_ms()))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
