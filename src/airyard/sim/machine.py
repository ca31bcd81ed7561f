"""A simulated machine with its agent: attempt folders, runners, process trees, reboots.

Owns: what is durable on a node, what an agent says of it, the machine's faults.
Must not know: the server's state. It answers as ``node.agent`` and ``node.attempts`` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airyard.core.actions import StartMember
from airyard.core.cluster import Machine, Node
from airyard.core.commands import MachineSeen, MemberGone, SeenMember, SeenState
from airyard.core.exit_reports import exit_of
from airyard.core.ids import MemberKey
from airyard.core.run import Cause, Exit, LogClose
from airyard.node import lease
from airyard.sim.behaviour import Behaviour
from airyard.sim.clock import SkewedClock
from airyard.sim.network import AWAY, Network
from airyard.sim.process import SimTree
from airyard.sim.runner import OVER, SimRunner
from airyard.sim.setting import Setting
from airyard.sim.truth import Truth

Push = Callable[[MemberGone], None]
LEASES_EVERY_MS = 1_000


@dataclass(slots=True)
class Folder:
    """An attempt folder: what survives of a member when its processes do not."""

    action: StartMember
    boot_id: str
    runner: SimRunner | None = None
    tree: SimTree | None = None
    exit: dict[str, Any] | None = None
    logs: dict[str, Any] | None = None
    killed_for: str = ""
    last_seq: int = -1
    port_refused: bool = False
    lease_until_ms: int | None = None
    """By the machine's clock, as its runner notes it for the agent."""
    shipping: bool = False
    settled: bool = False
    """The agent has seen the runner's end and cleaned up after it."""

    @property
    def alive(self) -> bool:
        """True while the runner holds the lock."""
        return self.runner is not None and not self.runner.dead


@dataclass(slots=True)
class SimMachine:
    """One machine. ``listeners`` are the links over which the agent tells servers what happens."""

    setting: Setting
    network: Network
    truth: Truth
    name: str
    nodes: tuple[Node, ...]
    clock: SkewedClock
    listeners: dict[object, Push] = field(default_factory=dict)
    on_agent: Callable[[], None] = lambda: None
    boot: int = 1
    up: bool = True
    agent_up: bool = True
    agent_life: int = 0
    clock_offset_ms: int = 0
    asleep_until_ms: int = 0
    agent_since_ms: int = 0
    folders: dict[MemberKey, Folder] = field(default_factory=dict)

    @property
    def boot_id(self) -> str:
        """The id of the running system."""
        return f"{self.name}-boot-{self.boot}"

    @property
    def asleep(self) -> bool:
        """True while the machine is suspended: nothing on it moves but its clock."""
        return self.setting.time.now_ms() < self.asleep_until_ms

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Have the agent do something after a while, unless it is another one by then."""
        life = self.agent_life

        def when_awake() -> None:
            if self.asleep:
                self.setting.time.at(self.asleep_until_ms, when_awake)
            elif self.agent_up and self.agent_life == life:
                act()

        self.setting.later(delay_ms, when_awake)

    def push(self, fact: MemberGone) -> None:
        """Tell everybody who is connected."""
        for listener in list(self.listeners.values()):
            listener(fact)

    # --- what the agent does for the server

    def hello(self) -> MachineSeen:
        """List everything. Dead runners are cleaned up after first."""
        for folder in list(self.folders.values()):
            self._settle(folder)
        return MachineSeen(
            machine=Machine(name=self.name, boot_id=self.boot_id, address=self.name),
            nodes=self.nodes,
            members=tuple(self._seen(folder) for folder in self.folders.values()),
        )

    def start(self, action: StartMember) -> None:
        """Start a runner, unless the folder is there already."""
        if action.key in self.folders:
            return
        folder = Folder(action=action, boot_id=self.boot_id)
        self.folders[action.key] = folder
        folder.runner = SimRunner(self.setting, self.network, self, folder)

    def kill(self, key: MemberKey, reason: str) -> None:
        """Kill a member's runner, then its tree; its end is pushed, again if it was; who is not here is dead."""
        folder = self.folders.get(key)
        if folder is None:
            self.push(MemberGone(seen=self._died(key, Cause.PLATFORM, "no such attempt on this machine")))
        elif folder.alive:
            assert folder.runner is not None
            folder.killed_for = reason
            folder.runner.die()
            self.runner_ended(folder)
        elif folder.settled:
            self.push(MemberGone(seen=self._seen(folder)))

    def forget(self, key: MemberKey) -> None:
        """Remove the folder of a dead runner."""
        folder = self.folders.get(key)
        if folder is not None and folder.settled:
            del self.folders[key]

    def ship(self, key: MemberKey) -> None:
        """Send what a dead runner left of its log, then close it."""
        folder = self.folders.get(key)
        if folder is None or not folder.settled or folder.shipping:
            return
        folder.shipping = True
        self.network.call(
            self.name,
            lambda server, answer: server.logs(key, folder.last_seq, answer),
            lambda answer: self._shipped(folder, answer),
            timeout_ms=60_000,
        )

    def _shipped(self, folder: Folder, answer: Any) -> None:
        if answer is AWAY or answer == OVER:
            folder.shipping = False
            return
        stated = folder.logs or {}
        closed = {
            "number": stated.get("number", 1 << 30),
            "kind": "LOGS_CLOSED",
            "at_ns": 0,
            "last_seq": folder.last_seq,
            "sha256": "0",
        }
        body = {"epoch": folder.action.epoch, "sent_ns": 0, "reports": [closed]}

        def done(_: Any) -> None:
            folder.shipping = False

        key = folder.action.key
        self.network.call(
            self.name, lambda server, reply: server.reports(key, body, reply), done, timeout_ms=30_000
        )

    # --- what happens on the machine

    def launch(self, folder: Folder, behaviour: Behaviour, stop_heard: bool) -> SimTree:
        """Start a member's command."""
        key = folder.action.key

        def on_exit(code: int | None, signal: int | None) -> None:
            self.truth.exited(key, code, signal, touched=tree.touched)
            folder.last_seq += 3
            if folder.runner is not None:
                folder.runner.process_exited(code, signal)

        def on_gone() -> None:
            self.truth.tree_gone(key)

        tree = SimTree(self.setting, key, behaviour, on_exit, on_gone)
        folder.tree = tree
        self.truth.launched(folder.action, tree, lambda: self.is_guarded(folder), stop_heard=stop_heard)
        return tree

    def is_guarded(self, folder: Folder) -> bool:
        """True while anything of ours is there to end a member whose lease is over: its runner, or the agent."""
        if folder.runner is not None and folder.runner.works:
            return True
        up_ms = self.setting.time.now_ms() - self.agent_since_ms
        return self.agent_up and up_ms > lease.OVERDUE_MS + 2 * LEASES_EVERY_MS

    def look_at_leases(self) -> None:
        """End members whose runner should have done so, as the agent does every second."""
        if not self.agent_up:
            return
        now_ms = self.clock.now_ms()
        for folder in self.live_folders():
            until_ms = folder.lease_until_ms
            if until_ms is not None and folder.exit is None and lease.is_overdue(until_ms, now_ms):
                self.truth.note("agent: ended a member of a hanging runner")
                self.kill(folder.action.key, "its lease ran out and its runner did not end it")
        self._later(LEASES_EVERY_MS, self.look_at_leases)

    def runner_ended(self, folder: Folder) -> None:
        """A runner is gone: the agent sees it, when it is there."""
        self._later(self.setting.chance.between(1, 30), lambda: self._settle(folder))

    def _settle(self, folder: Folder) -> None:
        """Kill what a dead runner left; when nothing is left, its end is known, and said."""
        if folder.alive or folder.settled:
            return
        if folder.tree is not None and folder.tree.alive:
            folder.tree.kill()
            self._later(25, lambda: self._settle(folder))
            return
        folder.settled = True
        self.push(MemberGone(seen=self._seen(folder)))

    def _seen(self, folder: Folder) -> SeenMember:
        key = folder.action.key
        if not folder.settled:
            # Alive, or dead with processes that are still being killed: its devices are not free.
            return SeenMember(key=key, state=SeenState.ALIVE)
        if folder.exit is not None:
            at_ms = folder.exit["at_ns"] // 1_000_000
            closed = folder.logs
            return SeenMember(
                key=key,
                state=SeenState.EXITED,
                exit=exit_of(folder.exit, at_ms),
                logs=LogClose(last_seq=closed["last_seq"], sha256=closed["sha256"]) if closed else None,
            )
        if folder.boot_id != self.boot_id:
            return self._died(key, Cause.NODE, "the machine was restarted while the member ran")
        why = folder.killed_for or "the runner died without an exit record; its processes were killed"
        return self._died(key, Cause.PLATFORM, why)

    def _died(self, key: MemberKey, cause: Cause, message: str) -> SeenMember:
        exit_ = Exit(
            code=None,
            signal=None,
            started=False,
            cause=cause,
            message=message,
            at_ms=self.setting.time.now_ms() + self.clock_offset_ms,
        )
        return SeenMember(key=key, state=SeenState.DIED, exit=exit_)

    # --- faults

    def live_folders(self) -> list[Folder]:
        """Return the folders whose runner lives."""
        return [folder for folder in self.folders.values() if folder.alive]

    def kill_runner(self, folder: Folder) -> None:
        """Kill -9 of one runner."""
        assert folder.runner is not None
        folder.runner.die()
        self.runner_ended(folder)

    def stop_agent(self) -> None:
        """End the agent; runners live on."""
        self.agent_up = False
        self.agent_life += 1
        self.on_agent()

    def start_agent(self) -> None:
        """Start an agent: it looks at every folder."""
        if not self.up or self.agent_up:
            return
        self.agent_up = True
        self.agent_since_ms = self.setting.time.now_ms()
        self.look_at_leases()
        for folder in list(self.folders.values()):
            self._settle(folder)
        self.on_agent()

    def suspend(self, duration_ms: int) -> None:
        """Sleep for a while; the clock goes on, and everything else goes on after it."""
        self.asleep_until_ms = self.setting.time.now_ms() + duration_ms
        for folder in self.folders.values():
            if folder.tree is not None:
                folder.tree.asleep_until_ms = self.asleep_until_ms
        self.on_agent()

    def crash(self) -> None:
        """End everything on the machine at once."""
        self.up = False
        self.asleep_until_ms = 0
        for folder in self.folders.values():
            if folder.runner is not None:
                folder.runner.die()
            if folder.tree is not None:
                folder.tree.vanish()
        self.stop_agent()

    def restart(self) -> None:
        """Come back with a new boot id; the agent follows."""
        self.up = True
        self.boot += 1
        self.start_agent()
