"""The state of the yard and its only mutation, ``apply``.

Owns: what is live: machines, nodes, runs that still owe something, idempotency keys.
Must not know: how facts come about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from airyard.core import codec, events
from airyard.core.access.tokens import Spent, Token
from airyard.core.cluster import Cordon, Drain, Machine, Node
from airyard.core.deadlines import wait_end
from airyard.core.errors import InvariantBroken
from airyard.core.evolve import evolve
from airyard.core.health.facility import Facility, with_end, with_incident, with_slowdown
from airyard.core.health.idle_records import NodeTests, PoolSweeps, notes_of, with_sweep, with_test
from airyard.core.health.states import HEALTH_MOVES, Breaker, NodeHealth, Step
from airyard.core.ids import MemberKey
from airyard.core.lifecycle import check_move
from airyard.core.policy import Policy, Reservation
from airyard.core.run import Attempt, Member, Run, RunState
from airyard.core.usage import Usage, rehomed

STATE_FORMAT = 1
STORY_STEPS = 50
"""So many steps of a node's health are remembered; the journal has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedKey:
    """An idempotency key: which run it made, from which workload, when."""

    run_id: int
    spec_hash: str
    at_ms: int


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """Everything a decision may look at. Records are frozen; only ``apply`` replaces them."""

    seq: int = 0
    epoch: int = 0
    version: str = ""
    """The release of the server that began this epoch."""
    next_run_id: int = 1
    machines: dict[str, Machine] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    cordons: dict[str, Cordon] = field(default_factory=dict)
    """By the node's name, also of nodes that are not there at the moment."""
    runs: dict[int, Run] = field(default_factory=dict)
    keys: dict[tuple[str, str], NotedKey] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    policy_digest: str = ""
    """Of the configured policy that was declared last."""
    reservations: dict[int, Reservation] = field(default_factory=dict)
    next_reservation_id: int = 1
    usage: dict[tuple[str, str], Usage] = field(default_factory=dict)
    """(project, pool) → what it has used, and holds now."""
    tokens: dict[str, Token] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)
    """Token id → what GPU runs submitted with it have used, and hold now."""
    health: dict[str, NodeHealth] = field(default_factory=dict)
    """By the node's name; a node that is not here was always healthy."""
    stories: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    """How each node's health changed, the newest last."""
    breakers: dict[str, Breaker] = field(default_factory=dict)
    """By the pool in which no node is taken out any more."""
    tests: dict[str, NodeTests] = field(default_factory=dict)
    """By the node's name: what tests of it came to while it was idle."""
    sweeps: dict[str, PoolSweeps] = field(default_factory=dict)
    """By pool: its idle nodes tested in pairs."""
    facility: Facility = field(default_factory=Facility)
    """What power and cooling do to nodes, and to places."""
    left_ms: dict[str, int] = field(default_factory=dict)
    """By the node's name: when a run or a stranger gave devices of it back last, or it came."""
    lease_longest_ms: int = 0
    """The longest lease that any runner may count; 0: none was ever granted."""
    verdict_wait_ms: int | None = None
    """So long the end of an attempt waits for the verdict on it; None: nobody judges attempts."""
    offers: tuple[tuple[Node, int], ...] | None = field(default=None, compare=False)
    """Nodes that differ in what they offer, and how many there are of each; None until somebody asks."""
    departed: dict[int, Run] = field(default_factory=dict, compare=False)
    """Runs that left memory since this state was copied, as they left: the read tables still have to learn of them."""
    begun: set[int] = field(default_factory=set, compare=False)
    """The ids of runs that have had an attempt: most questions are about them, and the queue may be long."""
    wait_ends_ms: int | None = field(default=None, compare=False)
    """Before this time no queued run has waited beyond a limit of its own; None: none has one."""
    queued: dict[tuple[str, str], int] = field(default_factory=dict, compare=False)
    """(owner, project) → how many of its runs are QUEUED."""
    shares_keys: bool = field(default=False, compare=False)
    """True while ``keys`` may also be another state's: it is copied before it is written."""

    def copy(self) -> ClusterState:
        """Return an independent state; records are shared. Cost: one copy of each map, of the keys when written."""
        self.shares_keys = True
        return ClusterState(
            seq=self.seq,
            epoch=self.epoch,
            version=self.version,
            next_run_id=self.next_run_id,
            machines=dict(self.machines),
            nodes=dict(self.nodes),
            cordons=dict(self.cordons),
            runs=dict(self.runs),
            keys=self.keys,
            shares_keys=True,
            policy=self.policy,
            policy_digest=self.policy_digest,
            reservations=dict(self.reservations),
            next_reservation_id=self.next_reservation_id,
            usage=dict(self.usage),
            health=dict(self.health),
            stories=dict(self.stories),
            breakers=dict(self.breakers),
            tests=dict(self.tests),
            sweeps=dict(self.sweeps),
            facility=self.facility,
            left_ms=dict(self.left_ms),
            lease_longest_ms=self.lease_longest_ms,
            verdict_wait_ms=self.verdict_wait_ms,
            tokens=dict(self.tokens),
            spent=dict(self.spent),
            offers=self.offers,
            begun=set(self.begun),
            wait_ends_ms=self.wait_ends_ms,
            queued=dict(self.queued),
        )

    def apply(self, recorded: events.Recorded) -> None:
        """Take one journalled fact in. Raises: IllegalTransition, InvariantBroken; then nothing has changed."""
        if recorded.seq != self.seq + 1:
            raise InvariantBroken(f"event {recorded.seq} cannot follow {self.seq}", code="JOURNAL_GAP")
        self._take(recorded.event, recorded)
        self.seq = recorded.seq

    def _take(self, event: events.Event, recorded: events.Recorded) -> None:
        match event:
            case events.RunSubmitted() | events.RunResumed():
                self._arrive(event, recorded)
            case events.RunArchived():
                if (run := self._drop(event.run_id)) is not None:
                    self.departed[event.run_id] = run
            case events.RunRemoved():
                self._drop(event.run_id)
                self.departed.pop(event.run_id, None)
            case events.EpochBegan() | events.LeadBegan():  # the second says the same again, to be told
                self.epoch, self.version = event.epoch, event.version
            case events.MachineJoined():
                self.offers = None
                self._join(event, recorded.at_ms)
                self._move_attempts(recorded, event.machine.name)
            case events.MachineLeft():
                self._leave(event.machine, recorded.at_ms)
            case events.NodeCordoned():
                self._close(event.node, Cordon(by=event.by, at_ms=recorded.at_ms, reason=event.reason))
            case events.NodeUncordoned():
                self._close(event.node, None)
            case events.NodeDrainOrdered():
                self._drain(event, recorded.at_ms)
            case events.MachineConfirmedDead():
                pass  # what it means for each member is a fact of its own; this one says on whose word
            case events.NodeHealthChanged():
                self._take_health(event, recorded.at_ms)
            case events.IdleTested():
                self.tests[event.node] = with_test(self.tests.get(event.node), event.test)
            case events.FabricTested():
                self.sweeps[event.pool] = with_sweep(self.sweeps.get(event.pool), event.sweep)
                for name, note in notes_of(event.sweep).items():
                    self.tests[name] = with_test(self.tests.get(name), note)
            case events.BreakerOpened():
                self.breakers[event.pool] = Breaker(at_ms=recorded.at_ms, why=event.why)
            case events.BreakerReset():
                self.breakers.pop(event.pool, None)
            case events.SlowdownSeen():
                self.facility = with_slowdown(self.facility, event.slowdown)
            case events.FacilityIncidentBegan():
                self.facility = with_incident(self.facility, event.incident)
            case events.FacilityIncidentEnded():
                self.facility = with_end(self.facility, event.incident)
            case events.LeaseDeclared():
                self.lease_longest_ms = event.longest_ms
            case events.JudgingDeclared():
                self.verdict_wait_ms = event.wait_ms
            case events.KeysExpired():
                self.keys = {key: noted for key, noted in self.keys.items() if noted.at_ms >= event.before_ms}
                self.shares_keys = False
            case events.PolicyDeclared():
                self._declare(event, recorded)
            case events.ReservationMade():
                made = event.reservation
                self.reservations[made.reservation_id] = made
                self.next_reservation_id = max(self.next_reservation_id, made.reservation_id + 1)
            case events.ReservationEnded():
                self.reservations.pop(event.reservation_id, None)
            case events.TokenCreated():
                self._forget_tokens(recorded.at_ms)
                self.tokens[event.token.token_id] = event.token
            case events.TokenRevoked():
                gone = replace(self.tokens[event.token_id], revoked_ms=recorded.at_ms, revoked_by=event.by)
                self.tokens[event.token_id] = gone
            case _:
                before = self.runs[event.run_id]
                run = evolve(before, event, recorded.at_ms)
                self._account(before, event, recorded.at_ms)
                self._put(replace(run, version=recorded.seq))

    def _take_health(self, event: events.NodeHealthChanged, at_ms: int) -> None:
        before = self.health.get(event.node, NodeHealth()).state
        after = event.health.state
        if after is not before:
            check_move(HEALTH_MOVES, before, after, f"node {event.node}")
        step = Step(
            at_ms=at_ms,
            before=before,
            after=after,
            why=event.why,
            by=event.by,
            rule=event.rule or event.health.rule,
            score=event.health.score,
            attempt=event.health.attempt,
            evidence=event.evidence,
            budget=event.budget,
        )
        self.health[event.node] = event.health
        self.stories[event.node] = (*self.stories.get(event.node, ()), step)[-STORY_STEPS:]

    def _close(self, name: str, cordon: Cordon | None) -> None:
        if cordon is not None:
            there = self.cordons.get(name)
            # Whoever takes a cordon over leaves its drain as it is.
            self.cordons[name] = replace(cordon, drain=there.drain) if there is not None else cordon
        else:
            self.cordons.pop(name, None)
        if (node := self.nodes.get(name)) is not None:
            self.nodes[name] = replace(node, cordoned=cordon is not None)

    def _drain(self, event: events.NodeDrainOrdered, at_ms: int) -> None:
        drain = Drain(by=event.by, at_ms=at_ms, reason=event.reason, deadline_ms=event.deadline_ms)
        self.cordons[event.node] = replace(self.cordons[event.node], drain=drain)

    def _put(self, run: Run) -> None:
        self._drop_from_indexes(self.runs.get(run.run_id))
        self.runs[run.run_id] = run
        self._add_to_indexes(run)

    def _add_to_indexes(self, run: Run) -> None:
        if run.attempts:
            self.begun.add(run.run_id)
        if run.state is RunState.QUEUED:
            key = run.owner, run.project
            self.queued[key] = self.queued.get(key, 0) + 1
            end = wait_end(run)
            if end is not None and (self.wait_ends_ms is None or end[0] < self.wait_ends_ms):
                self.wait_ends_ms = end[0]

    def _drop(self, run_id: int) -> Run | None:
        run = self.runs.pop(run_id, None)
        self._drop_from_indexes(run)
        return run

    def _drop_from_indexes(self, run: Run | None) -> None:
        if run is None:
            return
        self.begun.discard(run.run_id)
        if run.state is RunState.QUEUED:
            key = run.owner, run.project
            self.queued[key] -= 1
            if not self.queued[key]:
                del self.queued[key]

    def _declare(self, event: events.PolicyDeclared, recorded: events.Recorded) -> None:
        """Take a policy over; usage so far is settled by the old half-life.

        The past usage of a pool that is taken back goes where its nodes go: to the pool named after their type.
        """
        half_life_ms, pools = self.policy.half_life_ms, self.policy.pools
        self.usage = {key: used.settled(recorded.at_ms, half_life_ms) for key, used in self.usage.items()}
        self.policy = event.policy
        self.offers = None
        if event.source == "config":
            self.policy_digest = event.digest
        self._move_attempts(recorded)
        kept = {pool.name for pool in event.policy.pools}
        gone = {pool.name: pool.accelerator for pool in pools if pool.name not in kept}
        self.usage = rehomed(self.usage, gone, event.policy.half_life_ms)

    def _move_attempts(self, recorded: events.Recorded, machine: str | None = None) -> None:
        """Count live attempts (on one machine) in the pool that their first node is in now. Cost: live attempts."""
        for run, attempt in list(self.live_attempts()):
            first = attempt.members[0]
            if machine not in (None, first.machine) or first.node not in self.nodes:
                continue
            pool, was = self.policy.pool_of(self.nodes[first.node]), _pool_of(run, attempt)
            if pool != was:
                held = _held(attempt)
                self._charge(run.project, was, -held, recorded.at_ms)
                self._charge(run.project, pool, held, recorded.at_ms)
                attempts = (*run.attempts[:-1], replace(attempt, pool=pool))
                self._put(replace(run, attempts=attempts, version=recorded.seq))

    def _account(self, run: Run, event: events.RunEvent, at_ms: int) -> None:
        """Note devices taken and given back in the project's ledger, or taken along to another project."""
        if isinstance(event, events.AttemptPlaced):
            self._charge(run.project, _pool_of(run, event.attempt), _held(event.attempt), at_ms)
            self._charge_token(run, _held(event.attempt), at_ms)
        elif isinstance(event, events.MemberExited | events.MemberLost):
            attempt = run.attempts[event.attempt]
            member = attempt.members[event.member]
            held = len(member.devices)
            self.left_ms[member.node] = at_ms
            self._charge(run.project, _pool_of(run, attempt), -held, at_ms)
            self._charge_token(run, -held, at_ms)
        elif isinstance(event, events.RunUpdated) and event.project is not None and run.attempt is not None:
            pool, held = _pool_of(run, run.attempt), _held(run.attempt)
            self._charge(run.project, pool, -held, at_ms)
            self._charge(event.project, pool, held, at_ms)

    def _charge(self, project: str, pool: str, devices: int, at_ms: int) -> None:
        if devices:
            before = self.usage.get((project, pool), Usage(at_ms=at_ms))
            self.usage[project, pool] = before.changed(at_ms, self.policy.half_life_ms, devices)

    def _charge_token(self, run: Run, devices: int, at_ms: int) -> None:
        """Note GPUs taken and given back in the account of the run's token; CPU slots cost nothing."""
        if run.token_id and devices and not run.workload.compute.is_cpu:
            before = self.spent.get(run.token_id, Spent(at_ms=at_ms))
            self.spent[run.token_id] = before.changed(at_ms, devices)

    def _forget_tokens(self, at_ms: int) -> None:
        """Drop tokens that have not counted for long; what their runs still hold is charged to nobody."""
        for token_id in [key for key, token in self.tokens.items() if token.forgettable(at_ms)]:
            del self.tokens[token_id]
            self.spent.pop(token_id, None)

    def _arrive(self, event: events.ArrivalEvent, recorded: events.Recorded) -> None:
        run = replace(event.run, version=recorded.seq)
        self._put(run)
        if isinstance(event, events.RunSubmitted):
            self.next_run_id = max(self.next_run_id, run.run_id + 1)
            noted = NotedKey(run_id=run.run_id, spec_hash=run.spec_hash, at_ms=recorded.at_ms)
            if self.shares_keys:
                self.keys, self.shares_keys = dict(self.keys), False
            self.keys[run.owner, run.idempotency_key] = noted

    def _join(self, event: events.MachineJoined, at_ms: int) -> None:
        kept = {name: node for name, node in self.nodes.items() if node.machine != event.machine.name}
        for node in event.nodes:
            before = self.nodes.get(node.name)
            if before is None or any(device.owner for device in before.devices):
                self.left_ms[node.name] = at_ms
            kept[node.name] = replace(node, cordoned=node.name in self.cordons)
        self.nodes = kept
        self.machines[event.machine.name] = event.machine

    def _leave(self, machine: str, at_ms: int) -> None:
        self.machines[machine] = replace(self.machines[machine], alive=False, away_ms=at_ms)

    def live_attempts(self) -> Iterator[tuple[Run, Attempt]]:
        """Yield every attempt that has not ended, by run id. Cost: runs that have had an attempt."""
        for run_id in sorted(self.begun):
            run = self.runs[run_id]
            attempt = run.attempt
            if attempt is not None and attempt.live:
                yield run, attempt

    def member(self, key: MemberKey) -> tuple[Run, Attempt, Member] | None:
        """Find a member that is still remembered."""
        run = self.runs.get(key.run_id)
        if run is None or key.attempt >= len(run.attempts):
            return None
        attempt = run.attempts[key.attempt]
        if key.member >= len(attempt.members):
            return None
        return run, attempt, attempt.members[key.member]

    def bookings(self) -> dict[str, dict[int, int]]:
        """Return node → device index → run id, for every device that is not proved free. Cost: live members."""
        booked: dict[str, dict[int, int]] = {}
        for run, attempt in self.live_attempts():
            for member in attempt.members:
                if not member.released:
                    booked.setdefault(member.node, {}).update(dict.fromkeys(member.devices, run.run_id))
        return booked

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot that ``from_json`` reads."""
        return {
            name: list(part) if isinstance(part, Iterator) else part for name, part in self.parts().items()
        }

    def parts(self) -> dict[str, Any]:
        """Return the snapshot with an iterator for each list: a long queue need not be there twice at once."""
        return {
            "format": STATE_FORMAT,
            "seq": self.seq,
            "epoch": self.epoch,
            "version": self.version,
            "next_run_id": self.next_run_id,
            "machines": map(codec.encode, self.machines.values()),
            "nodes": map(codec.encode, self.nodes.values()),
            "cordons": ([name, codec.encode(cordon)] for name, cordon in self.cordons.items()),
            "runs": map(codec.encode, self.runs.values()),
            "keys": ([*key, codec.encode(noted)] for key, noted in self.keys.items()),
            "policy": codec.encode(self.policy),
            "policy_digest": self.policy_digest,
            "reservations": map(codec.encode, self.reservations.values()),
            "next_reservation_id": self.next_reservation_id,
            "usage": ([*key, codec.encode(used)] for key, used in self.usage.items()),
            "health": ([name, codec.encode(one)] for name, one in self.health.items()),
            "stories": ([name, codec.encode(steps)] for name, steps in self.stories.items()),
            "breakers": ([pool, codec.encode(one)] for pool, one in self.breakers.items()),
            "tests": ([name, codec.encode(one)] for name, one in self.tests.items()),
            "sweeps": ([pool, codec.encode(one)] for pool, one in self.sweeps.items()),
            "facility": codec.encode(self.facility),
            "left_ms": dict(self.left_ms),
            "lease_longest_ms": self.lease_longest_ms,
            "verdict_wait_ms": self.verdict_wait_ms,
            "tokens": map(codec.encode, self.tokens.values()),
            "spent": ([key, codec.encode(used)] for key, used in self.spent.items()),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ClusterState:
        """Rebuild a state. Raises: InvariantBroken for another format or a broken tree."""
        if data.get("format") != STATE_FORMAT:
            raise InvariantBroken(
                f"state snapshot of format {data.get('format')!r}; this version reads {STATE_FORMAT}"
            )
        machines = [codec.decode(Machine, item) for item in data["machines"]]
        nodes = [codec.decode(Node, item) for item in data["nodes"]]
        runs = [codec.decode(Run, item) for item in data["runs"]]
        cordons = {name: codec.decode(Cordon, item) for name, item in data.get("cordons", ())}
        if "cordons" not in data:  # a snapshot of before they were kept: it says only which nodes have one
            cordons = {node.name: Cordon(by="", at_ms=0) for node in nodes if node.cordoned}
        reservations = [codec.decode(Reservation, item) for item in data.get("reservations", ())]
        state = cls(
            seq=data["seq"],
            epoch=data["epoch"],
            version=data.get("version", ""),
            next_run_id=data["next_run_id"],
            machines={machine.name: machine for machine in machines},
            nodes={node.name: node for node in nodes},
            cordons=cordons,
            runs={run.run_id: run for run in runs},
            keys={(owner, key): codec.decode(NotedKey, noted) for owner, key, noted in data["keys"]},
            policy=codec.decode(Policy, data.get("policy", {})),
            policy_digest=data.get("policy_digest", ""),
            reservations={item.reservation_id: item for item in reservations},
            next_reservation_id=data.get("next_reservation_id", 1),
            usage={
                (project, pool): codec.decode(Usage, used) for project, pool, used in data.get("usage", ())
            },
            health={name: codec.decode(NodeHealth, one) for name, one in data.get("health", ())},
            stories={
                name: tuple(codec.decode(Step, step) for step in steps)
                for name, steps in data.get("stories", ())
            },
            breakers={pool: codec.decode(Breaker, one) for pool, one in data.get("breakers", ())},
            tests={name: codec.decode(NodeTests, one) for name, one in data.get("tests", ())},
            sweeps={pool: codec.decode(PoolSweeps, one) for pool, one in data.get("sweeps", ())},
            facility=codec.decode(Facility, data.get("facility", {})),
            left_ms=dict(data.get("left_ms", {})),
            lease_longest_ms=data.get("lease_longest_ms", 0),
            verdict_wait_ms=data.get("verdict_wait_ms"),
            tokens={item["token_id"]: codec.decode(Token, item) for item in data.get("tokens", ())},
            spent={key: codec.decode(Spent, used) for key, used in data.get("spent", ())},
        )
        for run in runs:
            state._add_to_indexes(run)
        return state


def _pool_of(run: Run, attempt: Attempt) -> str:
    return attempt.pool or run.workload.compute.accelerator


def _held(attempt: Attempt) -> int:
    """Return how many devices the attempt has not given back."""
    return sum(len(member.devices) for member in attempt.members if not member.released)
