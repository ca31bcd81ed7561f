"""Strikes the simulated yard with the faults of its seed, until it is healed.

Owns: when a fault strikes, whom, and for how long. Must not know: what it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from airyard.app.leases import surely_over_ms
from airyard.core.commands import BeginEpoch
from airyard.core.errors import Conflict
from airyard.sim.chance import INJECTED, Fault
from airyard.sim.clock import SkewedClock
from airyard.sim.machine import SimMachine
from airyard.sim.server import REIGN_MS
from airyard.sim.setting import Broken

if TYPE_CHECKING:
    from airyard.sim.server import SimServer
    from airyard.sim.world import World

FOR_EVER_MS = 10**12
FENCING = (
    Fault.PARTITION,
    Fault.SERVER_UNREACHABLE,
    Fault.ONE_WAY,
    Fault.AGENT_AWAY,
    Fault.SUSPENDED,
    Fault.RUNNER_PAUSED,
    Fault.SERVER_KILLED,
    Fault.SERVER_STOPPED,
    Fault.TAKEOVER,
)
"""All that strikes in a world that is about leases, with the faults of messages and clocks."""
LEADER = (Fault.SERVER_KILLED, Fault.SERVER_STOPPED, Fault.TAKEOVER)
LEADS_FOR_MS = 80_000
"""In such a world: a leader that is soon replaced declares nobody gone, and shows nothing."""


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
            Fault.PARTITION: lambda m: self._cut(m, Fault.PARTITION, ("requests", "answers", "link")),
            Fault.SERVER_UNREACHABLE: lambda m: self._cut(
                m, Fault.SERVER_UNREACHABLE, ("requests", "answers")
            ),
            Fault.ONE_WAY: lambda m: self._cut(
                m, Fault.ONE_WAY, ("link", self._chance.pick(("requests", "answers")))
            ),
            Fault.AGENT_AWAY: lambda m: self._cut(m, Fault.AGENT_AWAY, ("link",)),
            Fault.SUSPENDED: self._suspend,
            Fault.CLOCK_JUMP: self._jump,
            Fault.SERVER_KILLED: lambda _: self._kill_server(),
            Fault.SERVER_AWAY: lambda _: self._kill_server_for_long(),
            Fault.SERVER_STOPPED: lambda _: self._stop_server(),
            Fault.TAKEOVER: lambda _: self._take_over(),
            Fault.KILLED_BEFORE_APPEND: lambda _: self._doom(Fault.KILLED_BEFORE_APPEND),
            Fault.KILLED_AFTER_APPEND: lambda _: self._doom(Fault.KILLED_AFTER_APPEND),
            Fault.STALE_WRITER: lambda _: self._replace_server(),
            Fault.JOURNAL_FULL: lambda _: self._fill_journal(),
            Fault.TRACKER_AWAY: lambda _: self._lose_tracker(),
        }
        known = FENCING if world.fencing else INJECTED
        self._enabled = [fault for fault in known if world.fencing or self._chance.rates[fault]]
        if self._chance.calm:
            self._enabled = []
        self._leads_until_ms = 0

    def begin(self) -> None:
        """Strike from now on."""
        if self._enabled:
            self._setting.later(self._chance.between(100, 2 * self._chance.pace_ms), self._strike)

    def _strike(self) -> None:
        if self._chance.healed:
            return
        fault = self._chance.pick(self._enabled)
        if self._world.fencing and fault in LEADER:
            now_ms = self._setting.time.now_ms()
            if now_ms < self._leads_until_ms:
                self.begin()
                return
            self._leads_until_ms = now_ms + LEADS_FOR_MS
        machines = self._world.machines
        if self._world.fencing:
            machines = [machine for machine in machines if machine.live_folders()] or machines
        machine = self._chance.pick(machines)
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

    def _cut(self, machine: SimMachine, fault: Fault, ways: tuple[str, ...]) -> None:
        """Cut a machine off for a while: mostly shortly, sometimes for longer than a lease."""
        cuts = [getattr(self._world.network.cuts, way) for way in ways]
        if any(machine.name in names for names in cuts):
            return
        self._chance.note(fault)
        low_ms, high_ms = (25_000, 100_000) if self._world.fencing else (500, 60_000)
        lasts_ms = self._chance.between(low_ms, high_ms)

        def strike() -> None:
            self._world.network.lag_ms.pop(machine.name, None)
            if self._chance.healed:
                return
            for names in cuts:
                names.add(machine.name)
            if "link" in ways:
                machine.on_agent()
            self._setting.later(lasts_ms, heal)

        def heal() -> None:
            for names in cuts:
                names.discard(machine.name)

        if self._world.fencing and self._chance.rates[Fault.LAG]:
            self._chance.note(Fault.LAG)
            self._world.network.lag_ms[machine.name] = self._chance.between(1_000, 3_800)
            self._setting.later(self._chance.between(5_000, 20_000), strike)
        else:
            strike()

    def _suspend(self, machine: SimMachine) -> None:
        if machine.up and not machine.asleep:
            self._chance.note(Fault.SUSPENDED)
            machine.suspend(self._chance.between(500, 120_000))

    def _jump(self, machine: SimMachine) -> None:
        self._chance.note(Fault.CLOCK_JUMP)
        machine.clock_offset_ms += self._chance.between(-7_200_000, 7_200_000)

    def _kill_server(self) -> None:
        server = self._world.server
        if server is not None:
            self._chance.note(Fault.SERVER_KILLED)
            server.die()

    def _kill_server_for_long(self) -> None:
        server = self._world.server
        if server is not None:
            self._chance.note(Fault.SERVER_AWAY)
            self._stay_down()
            server.die()

    def _stop_server(self) -> None:
        server = self._world.server
        if server is not None:
            self._chance.note(Fault.SERVER_STOPPED)
            self._stay_down()
            server.stop_as_planned()
            if self._world.lease_s is not None and self._chance.roll(0.7):
                # What was granted for the stop binds the next server too, also for a machine it never sees.
                busy = [machine for machine in self._world.machines if machine.live_folders()]
                if busy:
                    cut = partial(self._acts[Fault.PARTITION], self._chance.pick(busy))
                    self._setting.later(self._chance.between(1_000, 12_000), cut)

    def _stay_down(self) -> None:
        self._world.down_until_ms = self._setting.time.now_ms() + self._chance.between(5_000, 90_000)

    def _take_over(self) -> None:
        """Cut the leader off from its journal and let another one begin, while some machines still reach the old."""
        world, old = self._world, self._world.server
        if old is None or world.lease_s is None:
            return
        self._chance.note(Fault.TAKEOVER)
        old.journal.unreachable = True
        world.truth.server_ends()
        for machine in world.machines:
            if self._chance.roll(0.6):
                # On the old leader's side of the rift: it is all they reach, and the next one reaches them not.
                world.network.sides[machine.name] = old
                world.network.cuts.link.add(machine.name)
        # Whoever takes over counts by a clock of its own, a margin longer.
        clock = SkewedClock(self._setting.time, self._chance.between(-1_000, 1_000))
        waited_ms = surely_over_ms(0, REIGN_MS) - (self._setting.time.now_ms() - old.journal.reign_taken_ms)
        self._setting.later(clock.away_ms(clock.now_ms() + waited_ms), lambda: self._begin_anew(old))

    def _begin_anew(self, old: SimServer) -> None:
        world = self._world
        if world.server is not old or self._chance.healed:
            self._close_the_rift()
            return
        world.start_server()
        self._setting.later(self._chance.between(0, 90_000), lambda: self._reach_again(old))
        self._setting.later(self._chance.between(0, 90_000), self._close_the_rift)

    def _close_the_rift(self) -> None:
        network = self._world.network
        network.cuts.link.difference_update(network.sides)
        network.sides.clear()

    def _reach_again(self, old: SimServer) -> None:
        """The old leader reaches the journal again, and learns from it that it is over."""
        old.journal.unreachable = False

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
        old.journal.doom, old.journal.full, old.journal.unreachable = None, False, False
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
