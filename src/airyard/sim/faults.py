"""Strikes the simulated yard with the faults of its seed, until it is healed.

Owns: when a fault strikes, whom, and for how long. Must not know: what it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airyard.core.commands import BeginEpoch
from airyard.core.errors import Conflict
from airyard.sim.chance import INJECTED, Fault
from airyard.sim.machine import SimMachine
from airyard.sim.setting import Broken

if TYPE_CHECKING:
    from airyard.sim.server import SimServer
    from airyard.sim.world import World

FOR_EVER_MS = 10**12


class Injector:
    """One world's bad luck."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._setting = world.setting
        self._chance = world.setting.chance
        self._acts: dict[Fault, Callable[[SimMachine], None]] = {
            Fault.RUNNER_KILLED: self._kill_runner,
            Fault.RUNNER_PAUSED: self._pause_runner,
            Fault.RUNNER_HUNG: self._hang_runner,
            Fault.MACHINE_CRASH: self._crash,
            Fault.AGENT_RESTART: self._restart_agent,
            Fault.LINK_CUT: self._cut_link,
            Fault.HELLO_AGAIN: self._renew,
            Fault.PARTITION: self._partition,
            Fault.CLOCK_JUMP: self._jump,
            Fault.SERVER_KILLED: lambda _: self._kill_server(),
            Fault.KILLED_BEFORE_APPEND: lambda _: self._doom(Fault.KILLED_BEFORE_APPEND),
            Fault.KILLED_AFTER_APPEND: lambda _: self._doom(Fault.KILLED_AFTER_APPEND),
            Fault.STALE_WRITER: lambda _: self._replace_server(),
            Fault.JOURNAL_FULL: lambda _: self._fill_journal(),
            Fault.TRACKER_AWAY: lambda _: self._lose_tracker(),
        }
        self._enabled = [fault for fault in INJECTED if self._chance.rates[fault]]

    def begin(self) -> None:
        """Strike from now on."""
        if self._enabled:
            self._setting.later(self._chance.between(100, 2 * self._chance.pace_ms), self._strike)

    def _strike(self) -> None:
        if self._chance.healed:
            return
        fault = self._chance.pick(self._enabled)
        machine = self._chance.pick(self._world.machines)
        self._setting.trace("fault", f"{fault.value} ({machine.name})")
        self._acts[fault](machine)
        self.begin()

    def _kill_runner(self, machine: SimMachine) -> None:
        living = machine.live_folders()
        if living:
            self._chance.note(Fault.RUNNER_KILLED)
            machine.kill_runner(self._chance.pick(living))

    def _pause_runner(self, machine: SimMachine) -> None:
        living = machine.live_folders()
        if living:
            self._chance.note(Fault.RUNNER_PAUSED)
            runner = self._chance.pick(living).runner
            assert runner is not None
            runner.pause(self._chance.between(100, 90_000))

    def _hang_runner(self, machine: SimMachine) -> None:
        living = machine.live_folders()
        if living and self._chance.roll(0.5):
            self._chance.note(Fault.RUNNER_HUNG)
            folder = self._chance.pick(living)
            assert folder.runner is not None
            folder.runner.pause(FOR_EVER_MS)
            self._world.people.hung.add(folder.action.key.run_id)

    def _crash(self, machine: SimMachine) -> None:
        if machine.up:
            self._chance.note(Fault.MACHINE_CRASH)
            machine.crash()
            self._setting.later(self._chance.between(3_000, 40_000), machine.restart)

    def _restart_agent(self, machine: SimMachine) -> None:
        if machine.agent_up:
            self._chance.note(Fault.AGENT_RESTART)
            machine.stop_agent()
            self._setting.later(self._chance.between(50, 20_000), machine.start_agent)

    def _cut_link(self, machine: SimMachine) -> None:
        self._chance.note(Fault.LINK_CUT)
        machine.on_agent()

    def _renew(self, machine: SimMachine) -> None:
        server = self._world.server
        if server is not None:
            self._chance.note(Fault.HELLO_AGAIN)
            server.links[machine.name].renew()

    def _partition(self, machine: SimMachine) -> None:
        cut = self._world.network.cut
        if machine.name not in cut:
            self._chance.note(Fault.PARTITION)
            cut.add(machine.name)
            machine.on_agent()
            self._setting.later(self._chance.between(500, 60_000), lambda: cut.discard(machine.name))

    def _jump(self, machine: SimMachine) -> None:
        self._chance.note(Fault.CLOCK_JUMP)
        machine.clock_offset_ms += self._chance.between(-7_200_000, 7_200_000)

    def _kill_server(self) -> None:
        server = self._world.server
        if server is not None:
            self._chance.note(Fault.SERVER_KILLED)
            server.die()

    def _doom(self, how: Fault) -> None:
        server = self._world.server
        if server is not None:
            server.journal.doom = how

    def _replace_server(self) -> None:
        """Start another server while the old one still believes in itself; what it writes must be refused."""
        old = self._world.server
        if old is not None:
            old.die()
            self._world.start_server()
            self._setting.later(self._chance.between(0, 5_000), lambda: self._speak_up(old))

    def _speak_up(self, old: SimServer) -> None:
        disk = self._world.disk
        if self._world.server is None or disk.events[-1].epoch <= old.control.state.epoch:
            return
        self._chance.note(Fault.STALE_WRITER)
        length = len(disk.events)
        old.journal.doom, old.journal.full = None, False
        answers = old.control.commit([BeginEpoch(version="old")]).answers
        if len(disk.events) != length or not isinstance(answers[0], Conflict):
            raise Broken(f"a stale server wrote into the journal: {answers}")

    def _fill_journal(self) -> None:
        self._world.set_disk(full=True)
        self._setting.later(self._chance.between(200, 25_000), lambda: self._world.set_disk(full=False))

    def _lose_tracker(self) -> None:
        switch = self._world.switch
        if not switch.away:
            switch.away = True

            def back() -> None:
                switch.away = False

            self._setting.later(self._chance.between(1_000, 90_000), back)
