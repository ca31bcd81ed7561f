"""The agent: one process per machine that hosts all its nodes and outlives the server.

Owns: the operations of the agent socket, watching runners, pushing what happened, sampling.
Must not know: workloads, orders, what a run is. Runners talk to the server themselves.

``python -m airyard.node.agent --home H`` serves ``H/node/agent.sock`` until told to stop. One thread does
everything but killing, removing and measuring, which may take long and run on others.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import airyard
from airyard.core.versions import AGENT, order_of_upgrade
from airyard.node.agent_socket import Connection, Hub, bind_unix
from airyard.node.attempts import Attempt, Attempts, Seen
from airyard.node.chores import has_environment, tidy, warm
from airyard.node.containment import detect
from airyard.node.exit_record import boot_id, write_json_by_rename
from airyard.node.health_watch import AGAIN_S, HealthWatch
from airyard.node.inventory import Inventory, Node, Offer, host_name, open_nvml
from airyard.node.lease import lease_is_overdue
from airyard.node.log_rest import close_unwritten, ship_rest
from airyard.node.network import collect, describe
from airyard.node.node_checks import ChecksRefused, NodeChecks
from airyard.node.pair_ops import PairOps
from airyard.node.runner_http import Servers
from airyard.node.sampling import EVERY_S, Sampled, Sampler
from airyard.node.trust import kept_ca
from airyard.node.zygote import Zygote, ZygoteGone

_NODES_EVERY_S = 15.0
_SWEEP_EVERY_S = 2.0
_LEASES_EVERY_S = 1.0
_FIRST_SAMPLE_S = 1.0
_ALREADY_RUNS = 3


class Refusal(Exception):
    """An operation cannot be done; sent as ``error``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Agent:
    """The agent of one home."""

    def __init__(self, home: Path, is_orphaned: Callable[[], bool]) -> None:
        """``is_orphaned`` says that the home was removed or replaced under this agent."""
        self._node_folder = home / "node"
        self._is_orphaned = is_orphaned
        self._containment = detect()
        self._attempts = Attempts(self._node_folder, self._containment)
        self._zygote = Zygote(self._node_folder)
        self._nvml = open_nvml()
        self._offer = Offer()
        self._inventory = Inventory(self._offer, self._nvml)
        self._nodes: list[Node] = []
        self._sampler = Sampler(self._node_folder, self._nvml)
        self._known: dict[str, Attempt] = {}
        self._watched: dict[str, int] = {}
        self._looking: set[str] = set()
        self._shipping: set[str] = set()
        self._forgotten: set[str] = set()
        self._overdue: set[str] = set()
        self._unstarted: set[str] = set()  # known to have written nothing
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="work")
        self._checks = NodeChecks(self._node_folder)
        self._pair_ops = PairOps(
            self._node_folder,
            node=self._node,
            is_busy=self._is_busy,
            is_checking=lambda: self._checks.is_running,
            offer=lambda: self._offer,
            soon=self._soon,
        )
        self._done: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._hub = Hub(bind_unix(self._node_folder / "agent.sock"), self._on_line)
        self._hub.watch(self._wake_read, self._run_done)
        self._stopping = False
        nvml = self._nvml.client if self._nvml is not None else None
        self._health = HealthWatch(self._node_folder, lambda: self._soon(self._push_health), nvml)
        self._due_s = dict.fromkeys(("samples", "nodes", "sweep", "leases", "health"), 0.0)

    # --- life

    def serve(self) -> None:
        """Serve until told to stop."""
        for key in self._attempts.folder_keys():
            self._take_up(self._attempts.look(key))
        self._health.start()
        while not self._stopping:
            self._hub.wait(1.0)
            self._do_due()
        self._health.close()
        self._hub.close()
        if self._nvml is not None:
            self._nvml.client.close()
        self._zygote.close()
        self._inventory.close()
        self._checks.close()
        self._pair_ops.pairs.stop()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """End soon."""
        self._stopping = True

    def _do_due(self) -> None:
        now_s = time.monotonic()
        for name, every_s, action in (
            ("samples", EVERY_S, self._push_samples),
            ("nodes", _NODES_EVERY_S, self._push_nodes),
            ("sweep", _SWEEP_EVERY_S, self._sweep),
            ("leases", _LEASES_EVERY_S, self._look_at_leases),
            ("health", AGAIN_S, self._push_health),
        ):
            if now_s >= self._due_s[name]:
                self._due_s[name] = now_s + every_s
                action()

    def _later(
        self, work: Callable[[], Any], then: Callable[[Any], None], pool: ThreadPoolExecutor | None = None
    ) -> None:
        """Do ``work`` on another thread and ``then`` with its result on this one."""

        def run() -> None:
            try:
                result = work()
            except Exception:
                traceback.print_exc()
                result = None
            self._soon(lambda: then(result))

        (pool or self._workers).submit(run)

    def _soon(self, action: Callable[[], None]) -> None:
        """Do something on this thread; called from any."""
        self._done.append(action)
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def _run_done(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._done:
            self._done.popleft()()

    # --- runners

    def _take_up(self, attempt: Attempt) -> None:
        """Know an attempt, and watch it while it is alive."""
        self._known[attempt.key] = attempt
        if attempt.state is not Seen.ALIVE or attempt.key in self._watched:
            return
        fd = self._attempts.watch(attempt)
        if fd is None:
            return  # the sweep looks again
        self._watched[attempt.key] = fd
        self._hub.watch(fd, lambda: self._runner_ended(attempt.key))

    def _runner_ended(self, key: str) -> None:
        fd = self._watched.pop(key, None)
        if fd is not None:
            self._hub.unwatch(fd)
            os.close(fd)
        if key in self._looking:
            return  # after hundreds of ends at once, each sweep would add as many looks to those that wait
        self._looking.add(key)

        def settle(attempt: Attempt | None) -> None:
            self._looking.discard(key)
            self._settle(attempt)

        # What the runner left may take time to kill.
        self._later(lambda: self._attempts.look(key), settle)

    def _settle(self, attempt: Attempt | None) -> None:
        before = self._known.get(attempt.key) if attempt is not None else None
        if attempt is None or before is None or before.state is not Seen.ALIVE:
            return
        if before.cause is not None and attempt.state is Seen.DIED:
            detail = f"{attempt.detail}: {before.detail}" if before.detail else attempt.detail
            attempt = replace(attempt, detail=detail)
        self._take_up(attempt)
        self._tell_end(attempt)
        if attempt.state is not Seen.ALIVE and attempt.key in self._forgotten:
            self._forget(None, {"key": attempt.key})

    def _tell_end(self, attempt: Attempt) -> None:
        if attempt.state is Seen.EXITED:
            self._hub.broadcast({"event": "exited", "key": attempt.key, "exit": attempt.exit})
        elif attempt.state is Seen.DIED:
            push = {"event": "died", "key": attempt.key, "cause": attempt.cause, "detail": attempt.detail}
            self._hub.broadcast(push)

    def _sweep(self) -> None:
        """Look again at runners that could not be watched, and keep a zygote warm."""
        if self._is_orphaned():
            self.stop()
            return
        for key, attempt in list(self._known.items()):
            if attempt.state is Seen.ALIVE and key not in self._watched:
                self._runner_ended(key)
        if not self._zygote.alive:
            self._new_zygote()

    def _look_at_leases(self) -> None:
        """End members whose runner should have done so: one that hangs must not outlive its lease.

        Elsewhere the member may be started again right after it.
        """
        for key, attempt in list(self._known.items()):
            if attempt.state is not Seen.ALIVE or key in self._overdue:
                continue
            if lease_is_overdue(self._attempts.folder(key)):
                self._overdue.add(key)
                self._kill(None, {"key": key, "reason": "its lease ran out and its runner did not end it"})

    def _new_zygote(self) -> None:
        with contextlib.suppress(OSError):
            self._zygote.close()
        self._zygote = Zygote(self._node_folder)

    # --- pushes

    def _push_samples(self) -> None:
        simulated = {node.name: node.simulated or node.model is None for node in self._nodes}
        wanted = [
            Sampled(key=one.key, node=one.node, devices=() if simulated.get(one.node, True) else one.devices)
            for one in self._known.values()
            if one.state is Seen.ALIVE
        ]
        self._health.busy(any(one.devices for one in wanted))

        def push(samples: list[dict[str, Any]] | None) -> None:
            if samples:
                self._hub.broadcast({"event": "samples", "samples": samples})

        self._later(lambda: self._sampler.sample(wanted), push)

    def _push_nodes(self) -> None:
        if self._nvml is None or not self._nodes:
            return  # nothing that could change by itself
        alive = [one.key for one in self._known.values() if one.state is Seen.ALIVE]

        def push(nodes: list[Node] | None) -> None:
            if nodes is not None and nodes != self._nodes:
                self._nodes = nodes
                self._health.offers(nodes)
                self._hub.broadcast({"event": "nodes", "nodes": [node.as_json() for node in nodes]})

        self._later(lambda: self._inventory.nodes(self._ours(alive)), push)

    def _push_health(self) -> None:
        """Say what the server has not taken yet; one of a release that does not take it is told nothing."""
        takers = [each for each in self._hub.connections if each.takes_health]
        if takers and (events := self._health.waiting()):
            message = {"event": "health", "sent_ms": time.time_ns() // 1_000_000, "events": events}
            for each in takers:
                each.send(message)

    def _ours(self, keys: list[str]) -> frozenset[int]:
        return frozenset(pid for key in keys for pid in self._attempts.members(key))

    # --- operations

    def _on_line(self, connection: Connection, line: bytes) -> None:
        try:
            request = json.loads(line)
            number, op = request.get("id"), request["op"]
        except (ValueError, KeyError, AttributeError):
            connection.close()
            return
        handler = {
            "hello": self._hello,
            "start": self._start,
            "kill": self._kill,
            "ship": self._ship,
            "forget": self._forget,
            "warm": self._warm,
            "has_environment": self._has_environment,
            "tidy": self._tidy,
            "health_taken": self._health_taken,
            "check": self._check,
            "check_stop": self._check_stop,
            **self._pair_ops.operations(),
            "stop": self._stop,
        }.get(op)
        try:
            if handler is None:
                raise Refusal("UNKNOWN_OP", f"the agent has no operation {op!r}")
            result = handler(connection, request)
        except (Refusal, ChecksRefused) as refusal:
            error = {"code": refusal.code, "message": refusal.message}
            connection.send({"id": number, "ok": False, "error": error})
        except (KeyError, ValueError, TypeError, OSError) as problem:
            error = {"code": "FAILED", "message": f"{op}: {type(problem).__name__}: {problem}"}
            connection.send({"id": number, "ok": False, "error": error})
        else:
            if result is not None:
                connection.send({"id": number, "ok": True, "result": result})

    def _hello(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        spoken = _common_protocol(request)
        offer = Offer.from_json(request.get("config") or {})
        if offer != self._offer:
            self._inventory.close()
            self._offer = offer
            self._inventory = Inventory(offer, self._nvml)
        alive = [one.key for one in self._known.values() if one.state is Seen.ALIVE]
        self._nodes = self._inventory.nodes(self._ours(alive) if self._nvml else frozenset())
        connection.said_hello = True
        self._watch_health(connection, request)
        return {
            "protocol": spoken,
            "machine": {
                "name": self._offer.machine or host_name(),
                "boot_id": boot_id(),
                "address": self._offer.address,
                "network": describe(collect(), self._offer.network, self._offer.address),
                "cpus": self._inventory.cpus,
                "memory_bytes": self._inventory.memory_bytes,
                "containment": self._containment.describe(),
                "pid": os.getpid(),
                "version": airyard.__version__,
            },
            "nodes": [node.as_json() for node in self._nodes],
            "attempts": [one.as_json() for one in self._known.values()],
        }

    def _watch_health(self, connection: Connection, request: dict[str, Any]) -> None:
        monitor = request.get("monitor")
        connection.takes_health = isinstance(monitor, dict)
        self._health.configure(
            monitor if isinstance(monitor, dict) else None, self._offer.machine or host_name()
        )
        self._health.offers(self._nodes)
        self._due_s["health"] = 0.0  # what waits is sent right after the answer

    def _health_taken(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._health.taken([str(one) for one in request["ids"]])
        if self._health.waiting():
            self._due_s["health"] = 0.0
        return {}

    def _start(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        key = str(request["key"])
        self._checks.give_way(str(request["node"]))
        self._pair_ops.pairs.give_way(str(request["node"]))
        self._health.limits.tell(str(request["node"]), request.get("limits"))
        folder = self._attempts.folder(key)
        if not folder.create():
            known = self._known.get(key)
            return {"pid": known.pid if known else None, "already": True}
        answer = self._fork(request)
        if "error" in answer:
            self._attempts.forget(key)
            self._unstarted.add(key)
            code = "NODE_DISK_FULL" if answer.get("disk_full") else "START_FAILED"
            raise Refusal(code, f"no runner for {key}: {answer['error']}")
        self._take_up(
            Attempt(
                key=key,
                state=Seen.ALIVE,
                node=str(request["node"]),
                devices=tuple(request.get("devices") or ()),
                pid=answer["pid"],
                version=airyard.__version__,
            )
        )
        # A short run deserves a sample, too.
        self._due_s["samples"] = min(self._due_s["samples"], time.monotonic() + _FIRST_SAMPLE_S)
        return {"pid": answer["pid"], "already": False}

    def _fork(self, request: dict[str, Any]) -> dict[str, Any]:
        request = {**request, "network": asdict(self._offer.network)}
        try:
            return self._zygote.start(request, self._offer.address)
        except ZygoteGone:
            self._new_zygote()
        try:
            return self._zygote.start(request, self._offer.address)
        except ZygoteGone as error:
            return {"error": f"the zygote died twice ({error})"}

    def _kill(self, _: Connection | None, request: dict[str, Any]) -> dict[str, Any]:
        key, reason = str(request["key"]), str(request.get("reason") or "")
        known = self._known.get(key)
        if known is None:
            # Nothing is here: the asker must hear of the end all the same.
            detail = "no such attempt on this machine"
            self._hub.broadcast({"event": "died", "key": key, "cause": "PLATFORM", "detail": detail})
            return {}
        if known.state is not Seen.ALIVE:
            # Whoever asks has not heard of its end, or would not ask.
            self._tell_end(known)
            return {}
        self._known[key] = replace(known, cause="PLATFORM", detail=reason)

        def kill_and_look() -> Attempt:
            self._attempts.kill(key)
            return self._attempts.look(key)

        self._later(kill_and_look, self._settle)
        return {}

    def _ship(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        key = str(request["key"])
        known = self._known.get(key)
        token = str(request["token"])
        servers = Servers(str(request["server_url"]), kept_ca(self._node_folder))
        if key in self._unstarted:
            self._later(lambda: close_unwritten(key, servers, token), lambda _: None)
            return {}
        if known is None or known.state is Seen.ALIVE or key in self._shipping:
            return {}
        self._shipping.add(key)
        folder = self._attempts.folder(key)
        self._later(lambda: ship_rest(folder, servers, token), lambda _: self._shipping.discard(key))
        return {}

    def _forget(self, _: Connection | None, request: dict[str, Any]) -> dict[str, Any]:
        key = str(request["key"])
        known = self._known.get(key)
        self._attempts.folder(key)  # refuses what is no key
        if known is not None and known.state is Seen.ALIVE:
            # All is said and it is about to leave, or else it is left alone until it does.
            self._forgotten.add(key)
            return {}
        self._known.pop(key, None)
        for noted in (self._unstarted, self._forgotten, self._overdue):
            noted.discard(key)
        self._later(lambda: self._attempts.forget(key), lambda _: None)
        return {}

    def _warm(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._later(
            lambda: warm(self._node_folder, request["base"], lambda: self._stopping), lambda result: None
        )
        return {}

    def _has_environment(self, connection: Connection, request: dict[str, Any]) -> None:
        asked = dict(request["environment"])
        self._answer_later(connection, request, lambda: {"ready": has_environment(self._node_folder, asked)})

    def _tidy(self, connection: Connection, request: dict[str, Any]) -> None:
        """Answers when it is done: removing trees takes long."""

        def work() -> dict[str, Any]:
            return tidy(
                self._node_folder,
                age_ms=request.get("age_ms"),
                cap_bytes=request.get("cap_bytes"),
                dry_run=bool(request.get("dry_run")),
            )

        self._answer_later(connection, request, work)

    def _check(self, connection: Connection, request: dict[str, Any]) -> None:
        """Answers when the round is over; it is ended when nobody is there any more to hear of it."""
        name = str(request["node"])
        if self._pair_ops.pairs.is_running:
            raise Refusal("CHECKS_BUSY", "a test of two nodes runs on this machine")
        work = self._checks.begin(
            request, self._node(name), busy=self._is_busy(name), is_wanted=lambda: connection.is_open
        )
        self._answer_later(connection, request, work, self._checks.pool)

    def _node(self, name: str) -> Node | None:
        return next((one for one in self._nodes if one.name == name), None)

    def _is_busy(self, name: str) -> bool:
        return any(one.state is Seen.ALIVE and one.node == name for one in self._known.values())

    def _check_stop(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._checks.stop(str(request["name"]))
        return {}

    def _answer_later(
        self,
        connection: Connection,
        request: dict[str, Any],
        work: Callable[[], dict[str, Any]],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        """Do ``work`` on another thread and answer with what it returns."""

        def answer(result: dict[str, Any] | None) -> None:
            if result is None:
                message = f"{request['op']} failed; the agent's log has the reason"
                error = {"code": "FAILED", "message": message}
                connection.send({"id": request.get("id"), "ok": False, "error": error})
            else:
                connection.send({"id": request.get("id"), "ok": True, "result": result})

        self._later(work, answer, pool)

    def _stop(self, _: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self.stop()
        return {}


def _common_protocol(request: dict[str, Any]) -> int:
    """Return the newest form that this agent and the server speak. Raises: Refusal that says both versions."""
    spoken = AGENT.common(request.get("protocol", AGENT.oldest), request.get("oldest"))
    if spoken is None:
        server = str((request.get("server") or {}).get("version") or "of another version")
        raise Refusal(
            "PROTOCOL_MISMATCH",
            f"the server (Airyard {server}) speaks protocol {request.get('protocol')!r}, this agent (Airyard "
            f"{airyard.__version__}) {AGENT}: {order_of_upgrade(server, airyard.__version__, 'the node')}",
        )
    return spoken


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def main() -> int:
    """Run the agent of one home; exit code 3 when another one already does."""
    parser = argparse.ArgumentParser(prog="airyard.node.agent")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--detach", action="store_true", help="leave the caller's process tree")
    options = parser.parse_args()
    if options.detach and os.fork() != 0:
        return 0
    if options.detach:
        os.setsid()
    node_folder = (options.home / "node").absolute()
    node_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(node_folder / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"an agent already serves {node_folder}\n")
        return _ALREADY_RUNS
    agent = Agent(node_folder.parent, lambda: not _is_same_file(lock, node_folder / "agent.lock"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    write_json_by_rename(
        node_folder / "agent.json",
        {"pid": os.getpid(), "version": airyard.__version__, "started_ms": time.time_ns() // 1_000_000},
    )
    agent.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
