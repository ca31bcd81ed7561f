"""The engine of one machine: keeps its agent running and speaks to it over a UNIX socket.

Owns: starting the agent, the connection and its renewal, requests until they are answered, facts from pushes.
Must not know: what the loop makes of a fact, what runners do. The agent outlives this process on purpose.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import airyard
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import MachineAway, MachineSeen, MemberGone, SeenMember, SeenState
from airyard.core.errors import Unavailable
from airyard.core.ids import MemberKey
from airyard.core.run import Cause, Exit, LogClose
from airyard.ports.engine import ContainmentSeen, FactSink, Sample, Samples

PROTOCOL = 1
_CONNECT_TIMEOUT_S = 10.0
_HELLO_TIMEOUT_S = 60.0
_TIDY_TIMEOUT_S = 300.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_READ_BYTES = 256 * 1024


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
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._home = home.absolute()
        self._server_url = server_url
        self._config = {
            "simulate": dict(simulate or {}),
            "cpu_slots": cpu_slots,
            "system_gpu_lock_folder": str(gpu_lock_folder) if gpu_lock_folder else None,
        }
        self._now_ms = now_ms
        self._sink: FactSink | None = None
        self._machine = ""
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], dict[str, Any]] = {}
        self._unsent: list[tuple[str, str]] = []
        self._sent: dict[int, tuple[str, str]] = {}
        self._next_id = 1
        self._closing = False
        self._renewing = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)

    # --- the port

    def connect(self, sink: FactSink) -> None:
        """Start the agent if there is none and begin to deliver facts."""
        self._sink = sink
        self._thread.start()

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
        with _connected(self._home) as stream:
            stream.settimeout(timeout_s)
            stream.sendall(json.dumps({"id": 1, **request}).encode() + b"\n")
            buffer = b""
            while not buffer.endswith(b"\n"):
                data = stream.recv(_READ_BYTES)
                if not data:
                    raise ValueError("the connection was cut")
                buffer += data
            answer: dict[str, Any] = json.loads(buffer)
            return answer

    def close(self) -> None:
        """Stop delivering facts. The agent and all members live on."""
        self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def stop_agent(self) -> None:
        """Have the agent end, too (``airyard down``); members live on. No agent is fine."""
        self.close()
        with contextlib.suppress(OSError), _connected(self._home) as stream:
            stream.settimeout(_CONNECT_TIMEOUT_S)
            stream.sendall(b'{"id":0,"op":"stop"}\n')
            while stream.recv(_READ_BYTES):
                pass

    # --- requests

    def _ask(self, op: str, key: MemberKey, **fields: Any) -> None:
        """Remember a request until it is answered; the same one again replaces the first."""
        name = (op, str(key))
        with self._lock:
            if name not in self._requests:
                self._unsent.append(name)
            self._requests[name] = {"op": op, "key": str(key), **fields}
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _take_unsent(self) -> bytes:
        lines = []
        with self._lock:
            for name in self._unsent:
                request = self._requests.get(name)
                if request is not None:
                    self._sent[self._next_id] = name
                    lines.append(json.dumps({"id": self._next_id, **request}).encode() + b"\n")
                    self._next_id += 1
            self._unsent.clear()
        return b"".join(lines)

    def _send_all_again(self) -> None:
        with self._lock:
            self._sent.clear()
            self._unsent = list(self._requests)

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
            if self._machine and not self._closing:
                self._tell(MachineAway(machine=self._machine))

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _reach_agent(self) -> socket.socket:
        """Connect, starting the agent when nobody listens. Raises: OSError, Unavailable."""
        try:
            return _connected(self._home)
        except OSError:
            start_agent(self._home)
        deadline = time.monotonic() + _CONNECT_TIMEOUT_S
        while not self._closing:
            try:
                return _connected(self._home)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        raise Unavailable("the engine is being closed")

    def _converse(self, stream: socket.socket) -> None:
        """Say hello, then carry requests out and facts in until the connection ends or ``close``."""
        stream.settimeout(_HELLO_TIMEOUT_S)
        stream.sendall(self._hello_line())
        self._send_all_again()
        greeted = self._renewing = False
        buffer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._closing:
                if greeted and self._renewing:
                    # Requests wait until the answer is told: a member started meanwhile would not be in it.
                    greeted = self._renewing = False
                    stream.sendall(self._hello_line())
                if greeted and (lines := self._take_unsent()):
                    stream.sendall(lines)
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                if stream in ready:
                    data = stream.recv(_READ_BYTES)
                    if not data:
                        return
                    buffer += data
                    while (end := buffer.find(b"\n")) >= 0:
                        message = json.loads(bytes(buffer[:end]))
                        del buffer[: end + 1]
                        greeted = self._on_message(message, stream) or greeted

    def _hello_line(self) -> bytes:
        hello = {
            "id": 0,
            "op": "hello",
            "protocol": PROTOCOL,
            "server": {"url": self._server_url},
            "config": self._config,
        }
        return json.dumps(hello).encode() + b"\n"

    def _on_message(self, message: Mapping[str, Any], stream: socket.socket) -> bool:
        """Deal with one line; True for the answer to hello."""
        event = message.get("event")
        if event == "nodes":
            # The loop wants the whole picture, so it is asked for again.
            self._renewing = True
        elif event is not None:
            self._on_push(str(event), message)
        elif message["id"] == 0:
            if not message["ok"]:
                raise ValueError(f"the agent refused hello: {message['error']['message']}")
            if message["result"]["machine"]["version"] != airyard.__version__:
                # Left over from before an upgrade; members live on, and the next agent is of our version.
                stream.sendall(b'{"id":-1,"op":"stop"}\n')
                raise ValueError("the agent is of another version")
            self._on_hello(message["result"])
            return True
        else:
            self._on_answer(message)
        return False

    def _on_answer(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            name = self._sent.pop(int(message["id"]), None)
            if name is not None and name not in self._unsent:
                self._requests.pop(name, None)
        if name is None or message["ok"] or name[0] != "start":
            return
        key = MemberKey.parse(name[1])
        text = str(message["error"]["message"])
        cause = "STORAGE" if message["error"].get("code") == "NODE_DISK_FULL" else "PLATFORM"
        self._tell(MemberGone(seen=self._died(key, cause, f"the member was not started: {text}")))

    # --- facts

    def _tell(self, fact: Any) -> None:
        assert self._sink is not None
        self._sink(fact)

    def _on_hello(self, result: Mapping[str, Any]) -> None:
        about = result["machine"]
        self._machine = str(about["name"])
        machine = Machine(
            name=self._machine, boot_id=str(about["boot_id"]), address=str(about["address"]), alive=True
        )
        self._tell(ContainmentSeen(machine=self._machine, containment=dict(about["containment"])))
        self._tell(
            MachineSeen(
                machine=machine,
                nodes=tuple(_node(item, self._machine) for item in result["nodes"]),
                members=tuple(self._seen(item) for item in result["attempts"]),
            )
        )

    def _on_push(self, event: str, message: Mapping[str, Any]) -> None:
        if event == "samples":
            samples = tuple(_sample(item) for item in message["samples"])
            self._tell(Samples(samples=samples))
        elif event in ("exited", "died"):
            self._tell(MemberGone(seen=self._seen({**message, "state": event})))

    def _seen(self, item: Mapping[str, Any]) -> SeenMember:
        key = MemberKey.parse(str(item["key"]))
        state = SeenState(item["state"])
        if state is SeenState.DIED:
            return self._died(key, str(item.get("cause") or "PLATFORM"), str(item.get("detail") or ""))
        record = item.get("exit")
        if not record:
            return SeenMember(key=key, state=state)
        logs = record.get("logs")
        return SeenMember(
            key=key,
            state=state,
            exit=_exit(record["exited"]),
            logs=LogClose(last_seq=int(logs["last_seq"]), sha256=str(logs["sha256"])) if logs else None,
        )

    def _died(self, key: MemberKey, cause: str, detail: str) -> SeenMember:
        exit_ = Exit(
            code=None,
            signal=None,
            started=False,
            cause=Cause(cause),
            message=detail,
            at_ms=self._now_ms(),
        )
        return SeenMember(key=key, state=SeenState.DIED, exit=exit_)


def start_agent(home: Path) -> None:
    """Start the agent of this home in a session of its own; it detaches itself. Two at once are harmless.

    Raises: OSError, Unavailable when it ends at once.
    """
    log_folder = home / "server"
    log_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(log_folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        starter = subprocess.Popen(
            [sys.executable, "-m", "airyard.node.agent", "--home", str(home), "--detach"],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(fd)
    # It forks itself away, so this end comes at once and leaves no zombie.
    code = starter.wait()
    if code != 0:
        raise Unavailable(
            f"The agent of {home} could not be started: exit code {code}.",
            fix=f"See {log_folder / 'agent.log'}.",
        )


def _connected(home: Path) -> socket.socket:
    """Connect to the agent's socket, whose path may be longer than the kernel takes. Raises: OSError."""
    folder = os.open(home / "node", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(f"/proc/self/fd/{folder}/agent.sock")
    except OSError:
        stream.close()
        raise
    finally:
        os.close(folder)
    return stream


def _node(item: Mapping[str, Any], machine: str) -> Node:
    return Node(
        name=str(item["name"]),
        machine=machine,
        accelerator=str(item["accelerator"]),
        model=item["model"],
        devices=tuple(
            Device(index=int(device["index"]), uuid=str(device["uuid"]), owner=device["owner"])
            for device in item["devices"]
        ),
        cpus=float(item["cpus"]),
        memory_bytes=int(item["memory_bytes"]),
        simulated=bool(item["simulated"]),
        labels=dict(item["labels"]) or None,
    )


def _sample(item: Mapping[str, Any]) -> Sample:
    return Sample(
        key=MemberKey.parse(str(item["key"])),
        node=str(item["node"]),
        time_ms=int(item["time_ms"]),
        values={str(name): float(value) for name, value in item["values"].items()},
    )


def _exit(item: Mapping[str, Any]) -> Exit:
    """Read the ``exited`` part of an exit record. The runner's clock is this machine's."""
    cause = item.get("cause")
    return Exit(
        code=item.get("code"),
        signal=item.get("signal"),
        started=bool(item.get("started")),
        cause=Cause(cause) if cause else None,
        message=str(item.get("message", "")),
        at_ms=int(item.get("at_ns", 0)) // 1_000_000,
        duration_ms=int(item.get("duration_ms", 0)),
        out_of_memory=bool(item.get("out_of_memory")),
        address_in_use=bool(item.get("address_in_use")),
        stop_reason=str(item.get("stop_reason") or ""),
        permanent=bool(item.get("permanent")),
        fingerprint=str(item.get("fingerprint", "")),
    )
