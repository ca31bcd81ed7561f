"""The runner's shell in the fleet's process: carries out what the production machine (``node.machine``) instructs.

Owns: preparation (nothing is prepared), timers, the instructions. Must not know: rules, how its conversations with the
server go (``talk``), what a killed runner leaves to its agent (``machine``).
"""

from __future__ import annotations

import asyncio
import random
import shutil
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogStream
from airyard.node import machine_events as m
from airyard.node.machine import Phase, RunnerState, step
from airyard.node.runner_http import Servers
from airyard.node.runner_threads import closed_output
from airyard.node.spool import LogSpool
from airyard.node.steady_clock import SteadyClock
from airyard.node.verdict import Evidence
from airyard.sim.fleet.command import script_of
from airyard.sim.fleet.network import Network
from airyard.sim.fleet.process import Process
from airyard.sim.fleet.talk import Talk

PREPARING_S = (0.005, 0.03)
_SLOW_S = (20.0, 90.0)
_INTERRUPT_S = 0.02
_MEETING_PORT = 40_000


@dataclass(slots=True, kw_only=True)
class Folder:
    """An attempt folder: what survives of a member when its processes do not."""

    key: MemberKey
    node: str
    boot_id: str
    spool: Path
    epoch: int
    exit: dict[str, Any] | None = None
    killed_for: str = ""
    alive: bool = True
    shipping: bool = False
    forgotten: bool = False


@dataclass(slots=True, kw_only=True)
class Seat:
    """Where a runner sits: its machine, as far as it concerns it."""

    network: Network
    address: str
    run_seconds: float
    clock: SteadyClock = field(default_factory=SteadyClock)


class Runner:
    """One runner. ``on_end`` hears when it has left; ``die`` is kill -9, of which nobody hears."""

    def __init__(
        self, seat: Seat, folder: Folder, *, server_urls: str, token: str, on_end: Callable[[], None]
    ) -> None:
        self._seat = seat
        self._folder = folder
        self._on_end = on_end
        self._state = RunnerState()
        self._events: deque[m.Event] = deque()
        self._stepping = False
        self._timers: dict[m.Timer, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._order: dict[str, Any] = {}
        self._interrupt = asyncio.Event()
        self._process: Process | None = None
        self._port_refused = False
        self._spool = LogSpool(folder.spool)
        self._talk = Talk(seat.network, Servers(server_urls), token, folder.epoch, self._spool, self.tell)
        for conversation in (self._talk.poll, self._talk.report, self._talk.ship):
            self._begin(conversation(seat.clock))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Be dead when a part of it broke: a dead runner is noticed, half a runner is not."""
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            traceback.print_exception(problem)
            self.die()
            self._on_end()

    def die(self) -> None:
        """End at once, leaving everything as it is."""
        self._stop()
        if self._process is not None:
            self._process.vanish()
        self._spool.close()

    def _stop(self) -> None:
        for handle in self._timers.values():
            handle.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._talk.close()

    def tell(self, event: m.Event) -> None:
        """Take an event and do what the machine says, in order."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._feed(self._events.popleft())
        finally:
            self._stepping = False

    def _feed(self, event: m.Event) -> None:
        before = self._state.outbox
        self._state, instructions = step(self._state, event, self._seat.clock.now_ms())
        if self._state.outbox is not before:
            self._talk.offer(self._state.outbox)
        for instruction in instructions:
            self._do(instruction)
        if self._state.over is not None and self._state.phase is Phase.CLOSING:
            self._events.append(closed_output(self._spool))

    def _do(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.Prepare():
                self._begin(self._prepare(dict(instruction.order)))
            case m.InterruptPreparation():
                self._interrupt.set()
            case m.CheckPort():
                self._check_port(instruction.port)
            case m.Launch():
                self._launch()
            case m.Signal() if self._process is not None:
                self._process.signal()
            case m.KillTree() if self._process is not None:
                self._process.kill()
            case m.ReapTree():
                self._reap()
            case m.CloseLogs():
                self._talk.seal()
            case m.SetTimer():
                self._set_timer(instruction)
            case m.WriteExitRecord():
                self._folder.exit = {
                    "exited": dict(instruction.exited),
                    "logs": dict(instruction.logs) if instruction.logs else None,
                    "delivered": instruction.delivered,
                    "boot_id": self._folder.boot_id,
                }
            case m.Leave():
                self._leave()
            case _:
                pass  # the outbox is posted as a whole; a simulated command reads no stop file

    # --- the member

    async def _prepare(self, order: dict[str, Any]) -> None:
        self._order = order
        kind = self._script().behaviour.prepare
        try:
            async with asyncio.timeout(random.uniform(*(_SLOW_S if kind == "slow" else PREPARING_S))):
                await self._interrupt.wait()
            await asyncio.sleep(_INTERRUPT_S)
            self.tell(m.PrepareFailed(cause="CANCELLED", message="interrupted"))
        except TimeoutError:
            self.tell(self._prepared(kind))

    def _script(self) -> Any:
        key = self._folder.key
        return script_of(str(self._order["command"]), key.member, key.attempt, self._seat.run_seconds)

    def _prepared(self, kind: str) -> m.Event:
        if kind == "broken":
            return m.PrepareFailed(cause="ENVIRONMENT", message="no version of nonsense", permanent=True)
        if kind == "download":
            return m.PrepareFailed(cause="ENVIRONMENT", message="the index did not answer")
        if kind == "unfit" and self._order.get("prolog"):
            return m.PrepareFailed(cause="NODE", message="the prolog exited with 1", fault="prolog")
        meeting = {
            "addresses": [f"{self._seat.address}/8"],
            "port": _MEETING_PORT,
            "rdma": False,
            "network": "simulated",
        }
        together = int(self._order.get("members") or 1) > 1
        return m.Prepared(address=self._seat.address, meeting=meeting if together else None, environment_ms=1)

    def _check_port(self, port: int) -> None:
        taken = self._script().behaviour.port == "taken" and not self._port_refused
        self._port_refused |= taken
        self.tell(m.PortChecked(port=port, ok=not taken))

    def _launch(self) -> None:
        script = self._script()
        key, node = self._folder.key, self._folder.node
        self._process = Process(script, self._spool, self._talk.output, self._exited)
        self.tell(m.ProcessStarted(pid=1))
        self._process.say(f"run {key.run_id} attempt {key.attempt} member {key.member} on {node} (simulated)")
        saves_ms = script.behaviour.saves_ms
        if saves_ms is not None and key.member == 0:
            self._begin(self._save(saves_ms / 1000))

    async def _save(self, every_s: float) -> None:
        number = 0
        while self._process is not None and self._process.alive:
            await asyncio.sleep(every_s)
            number += 1
            self.tell(m.CheckpointSeen(step=number, path=f"step-{number}"))

    def _exited(self, code: int | None, signal: int | None) -> None:
        self.tell(m.ProcessExited(code=code, signal=signal))

    def _reap(self) -> None:
        behaviour = self._script().behaviour if self._order else None
        started = self._process is not None
        if self._process is not None and self._process.alive:
            self._process.vanish()
        clash = behaviour is not None and behaviour.port == "clash" and started
        tail = f"RuntimeError: address already in use: port {self._state.port}" if clash else ""
        out_of_memory = behaviour is not None and behaviour.out_of_memory and started
        dirty = behaviour is not None and behaviour.prepare == "dirty" and self._order.get("epilog")
        self.tell(
            m.TreeGone(
                evidence=Evidence(stderr_tail=tail, oom_kills=1 if out_of_memory else 0),
                fault="epilog" if dirty else "",
                fault_message="the epilog exited with 1" if dirty else "",
            )
        )

    def note(self, text: str) -> None:
        """Put a line of Airyard's own into the member's log."""
        self._spool.append(LogStream.AIRYARD, f"airyard: {text}\n".encode(), self._seat.clock.now_ns())
        self._talk.output()

    def _set_timer(self, timer: m.SetTimer) -> None:
        if (before := self._timers.get(timer.timer)) is not None:
            before.cancel()
        away_s = max(0, timer.at_ms - self._seat.clock.now_ms()) / 1000
        loop = asyncio.get_running_loop()
        self._timers[timer.timer] = loop.call_later(away_s, self.tell, m.TimerFired(timer=timer.timer))

    def _leave(self) -> None:
        self._stop()
        drained = self._spool.is_drained
        self._spool.close()
        if drained:
            shutil.rmtree(self._folder.spool, ignore_errors=True)
        asyncio.get_running_loop().call_soon(self._on_end)
