"""A whole simulated yard: server, machines, people and faults, from one seed to its rest.

Owns: composition, the phases (trouble, healing, rest), what a finished simulation must look like.
Must not know: threads, real time, anything outside the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airyard.adapters.memory import MemoryDisk
from airyard.core.cluster import Device, Node
from airyard.core.codec import encode
from airyard.core.events import Recorded
from airyard.sim.chance import Chance
from airyard.sim.changes import Changes
from airyard.sim.clock import SkewedClock, VirtualTime
from airyard.sim.faults import Injector
from airyard.sim.gangs import GangJudges
from airyard.sim.journal import SimJournal
from airyard.sim.machine import SimMachine
from airyard.sim.monitors import Monitors
from airyard.sim.network import Network
from airyard.sim.operators import Operators
from airyard.sim.people import People
from airyard.sim.server import SimServer
from airyard.sim.setting import Broken, Setting
from airyard.sim.token_holders import TokenHolders
from airyard.sim.tracker import TrackerSwitch
from airyard.sim.truth import Truth

TROUBLE_MS = 240_000
REST_LIMIT_MS = 4 * 3_600_000
NAG_MS = 60_000
STEP_LIMIT = 400_000
LEASES_S = (None, None, 24.0, 24.0, 24.0, 600.0)
"""One machine has none; a fleet has, with a standby or without."""
FENCING_LEASE_S = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a simulation went. ``problem`` is empty when every promise was kept."""

    seed: int
    steps: int
    virtual_ms: int
    events: int
    journal_hash: str
    seen: Counter[str]
    problem: str = ""
    tail: tuple[str, ...] = ()


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, echo: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.setting = Setting(VirtualTime(), Chance.of(seed), echo)
        self.truth = Truth(self.setting)
        self.disk = MemoryDisk()
        self.disk_full = False
        self.switch = TrackerSwitch()
        self.lease_s = self.setting.chance.pick(LEASES_S)
        self.fencing = self.lease_s == FENCING_LEASE_S and self.setting.chance.roll(0.6)
        """Nearly all trouble of this world is of the kind that ends leases."""
        self.down_until_ms = 0
        self._server: SimServer | None = None
        self.network = Network(self.setting, lambda: self.server)
        self.people = People(self.setting, self.network, lasting=self.fencing)
        self.truth.hung = self.people.hung
        self.machines = [self._machine(name, nodes) for name, nodes in _yard(self.setting.chance)]
        names = [node.name for machine in self.machines for node in machine.nodes]
        self.changes = Changes(self.setting, self.people, self.truth, names)
        nodes = [node for machine in self.machines for node in machine.nodes]
        self.monitors = Monitors(self.setting, self.people, self.truth, nodes)
        self.operators = Operators(self.setting, self.people, self.truth, self.machines, self.monitors)
        self.gang_judges = GangJudges(self.setting, self.people, self.truth, seed)
        self._closing = False

    def _machine(self, name: str, nodes: tuple[Node, ...]) -> SimMachine:
        clock = SkewedClock(self.setting.time, self.setting.chance.clock_rate_ppm())
        machine = SimMachine(self.setting, self.network, self.truth, name, nodes, clock)
        if self.lease_s is not None:
            machine.look_at_leases()
        machine.on_agent = lambda: self._agent_changed(name)
        return machine

    def _agent_changed(self, name: str) -> None:
        if self.server is not None:
            self.server.links[name].broken()

    # --- the server's lives

    @property
    def server(self) -> SimServer | None:
        """The server that is up, if one is."""
        return self._server if self._server is not None and not self._server.dead else None

    def start_server(self) -> None:
        """Begin a new life of the server."""
        journal = SimJournal(self.disk, self.truth, self.setting.chance)
        journal.full = self.disk_full
        journal.on_events = self._witness
        self._server = SimServer(
            self.setting,
            journal,
            self.truth,
            self.machines,
            self.network.cuts.link,
            self.switch,
            self.lease_s,
        )
        self.truth.server_begins()
        self._server.start()

    def _watch_server(self) -> None:
        """Whoever looks after the server starts it again a while after it died."""
        if self.server is None:
            self.truth.server_ends()
        if self.server is None and self.setting.time.now_ms() >= self.down_until_ms:
            self.start_server()
        self.setting.later(self.setting.chance.between(300, 6_000), self._watch_server)

    def _witness(self, batch: Sequence[Recorded]) -> None:
        for recorded in batch:
            self.people.witness(recorded.event)
            self.changes.witness(recorded.event)

    def set_disk(self, *, full: bool) -> None:
        """Fill or empty the disk under the journal."""
        self.disk_full = full
        if self._server is not None:
            self._server.journal.full = full

    # --- from beginning to rest

    def run(self, step_limit: int = STEP_LIMIT) -> Outcome:
        """Live through trouble and healing until nothing is owed."""
        chance = self.setting.chance
        self.start_server()
        self._watch_server()
        self.people.arrive(chance.between(4, 12), TROUBLE_MS)
        Injector(self).begin()
        self.changes.begin()
        self.operators.begin(TROUBLE_MS)
        self.monitors.begin(TROUBLE_MS)
        self.gang_judges.begin()
        TokenHolders(self.setting, self.people).begin(TROUBLE_MS)
        self.setting.later(TROUBLE_MS, self._heal)
        steps = 0
        problem = ""
        try:
            while not self._at_rest():
                if steps >= step_limit or not self.setting.time.step():
                    raise Broken(f"no rest after {steps} steps: {'; '.join(self._owed())}")
                self.truth.look()
                steps += 1
            self._last_look()
        except Broken as broken:
            problem = str(broken)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if not self.setting.tail:
                raise
        return Outcome(
            seed=self.seed,
            steps=steps,
            virtual_ms=self.setting.time.elapsed_ms,
            events=self.truth.state.seq,
            journal_hash=self.truth.journal_hash,
            seen=chance.seen,
            problem=problem,
            tail=tuple(self.setting.tail),
        )

    def _heal(self) -> None:
        """End all faults: from here on everything must come to its end within a bounded time."""
        self.setting.trace("world", "all faults end")
        self.setting.chance.healed = True
        self.network.cuts.clear()
        self.network.sides.clear()
        self.down_until_ms = 0
        self.switch.away = False
        self.set_disk(full=False)
        if self._server is not None:
            self._server.journal.doom = None
            self._server.journal.unreachable = False
        for machine in self.machines:
            if not machine.up:
                machine.restart()
            machine.start_agent()
        self._nag()

    def _nag(self) -> None:
        """People end what would never end by itself."""
        for run_id in sorted(self.people.endless | self.people.hung):
            if run_id in self.truth.state.runs:
                self.people.cancel(run_id)
        self.changes.release_all()
        self.monitors.mend()
        self.operators.open_all()
        self.setting.later(NAG_MS, self._nag)

    def _at_rest(self) -> bool:
        if not self.setting.chance.healed or self.people.busy or self.truth.state.runs:
            if self.setting.time.elapsed_ms > REST_LIMIT_MS:
                raise Broken(f"no rest within {REST_LIMIT_MS // 1000} s: {'; '.join(self._owed())}")
            return False
        return not self.truth.live_trees

    def _owed(self) -> list[str]:
        return [*self.truth.unfinished(), f"{self.people.busy} requests of people are open"]

    def _last_look(self) -> None:
        """Compare memory, journal and read tables; nothing may be booked, running or unarchived."""
        server = self.server
        if server is None:
            self.start_server()
            server = self.server
        assert server is not None
        self.truth.replayed(server.control.state)
        if server.control.state.bookings():
            raise Broken(f"devices are still booked: {server.control.state.bookings()}")
        for run_id, row in self.disk.runs.items():
            if row.state != "ENDED":
                raise Broken(f"the read tables show run {run_id} as {row.state}")
            last = self.truth.ended.get(run_id)
            if last is not None and encode(last) != row.record:
                raise Broken(f"the read tables hold another record of run {run_id} than the journal")


def _yard(chance: Chance) -> list[tuple[str, tuple[Node, ...]]]:
    """Draw the machines of a world; every one of ``people.SHAPES`` fits on all of them together."""
    yard = [
        ("alpha", (_node("alpha", "alpha", "H100", 8), _node("alpha-cpu-0", "alpha", None, 1))),
        ("beta", (_node("beta", "beta", "H100", 8), _node("beta-cpu-0", "beta", None, 1))),
        ("gamma", tuple(_node(f"gamma-{i}", "gamma", "A10", 1) for i in range(2))),
    ]
    if chance.roll(0.3):
        yard.append(("delta", tuple(_node(f"delta-{i}", "delta", "H100", 8) for i in range(2))))
    return yard


def _node(name: str, machine: str, model: str | None, count: int) -> Node:
    return Node(
        name=name,
        machine=machine,
        accelerator=f"GPU_{count}x{model}" if model else "CPU",
        model=model,
        devices=tuple(Device(index=index, uuid=f"{name}-{index}") for index in range(count)),
        cpus=16.0,
        memory_bytes=64 << 30,
        simulated=True,
    )


def simulate(seed: int, echo: Callable[[str], None] | None = None, step_limit: int = STEP_LIMIT) -> Outcome:
    """Run one seed to its rest, or to its first broken promise."""
    return World(seed, echo).run(step_limit)
