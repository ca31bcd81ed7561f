"""Tests nodes while nobody needs them, unattended: each by itself, then in pairs, and out of the way when work comes.

Owns: what is under test, how it is asked to make room, what an answer comes to. Must not know: which test is due
(``core/health/idle``), what a failure does to a node, how agents are reached. Nothing is kept here that a server which
is started again would miss: what was finished is in the journal, what was not says nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from airyard.app.control import Control
from airyard.app.idling import edges_in_doubt, idle_nodes, in_the_way, leaves, promised
from airyard.core.cluster import Node
from airyard.core.commands import Command, SweepDone
from airyard.core.decide.idling import suspected_ms
from airyard.core.errors import AiryardError, Unavailable
from airyard.core.health.deep_parts import next_part
from airyard.core.health.idle import (
    MINUTE_MS,
    IdleNode,
    IdlePlan,
    IdleRules,
    IdleTest,
    Ongoing,
    Sweep,
    plan,
)
from airyard.core.health.idle_records import NodeTests, PoolSweeps, SweepNote
from airyard.core.health.tournament import Pair
from airyard.server.idle_checks import IdleChecks, parts_of
from airyard.server.node_rounds import Asks
from airyard.server.sweeps import Measure, SweepAsk, Sweeper

T = TypeVar("T")
EVERY_S = 1.0
SELDOM_S = 5.0
SHARE_OF_TIME = 0.02
"""Of a very large fleet looks are rarer, so as not to take more of this server's time than this."""
MOST_AT_ONCE = 32
"""Nodes under test at a time, however many are idle: each of them costs this server a thread."""
REST_MS = MINUTE_MS
"""A node that could not be asked, or a pool whose sweep was broken off, is let alone for so long; or for as long as a
node has to be idle, if that is shorter."""
REST_LEAST_MS = 5_000
ROOM_S = 12.0
"""An agent that is asked to end a round has ten seconds for it; it needs one."""
LOOK_S = 0.05
LONG_REST_MS = 60 * MINUTE_MS
"""... and one whose agent cannot be asked at all."""
_log = structlog.get_logger("airyard.idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSettings:
    """What a yard may set. ``pair_gb_s``: the least bandwidth of a pair; 0: pairs are only compared."""

    rules: IdleRules = field(default_factory=IdleRules)
    cpu_slots: bool = False
    pair_gb_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Test:
    kind: IdleTest
    began_ms: int
    machine: str = ""
    """Of a node that is tested by itself: its agent does one test at a time."""
    stop: threading.Event = field(default_factory=threading.Event)
    asked_ms: int | None = None


class IdleRounds:
    """Begins tests, watches over them, and reports what they come to. Any thread."""

    def __init__(
        self,
        *,
        read: Callable[[Callable[[Control], Any]], Any],
        tell: Callable[[Command], object],
        check_node: Asks,
        measure: Measure | None,
        now_ms: Callable[[], int],
        python: str,
        settings: IdleSettings,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """``read`` looks at the newest commit; ``tell`` waits for the journal. Without ``measure`` nobody is paired."""
        self._read = read
        self._tell = tell
        self._checks = IdleChecks(check_node, now_ms, python)
        self._now_ms = now_ms
        self._settings = settings
        self._leads = leads
        self._sweeper = Sweeper(measure, self, now_ms) if measure is not None else None
        self._since_ms = now_ms()
        self._rest_ms = max(min(REST_MS, settings.rules.after_ms), REST_LEAST_MS)
        self._lock = threading.Lock()
        self._tests: dict[str, _Test] = {}
        self._rest_until_ms: dict[str, int] = {}
        self._sweep: tuple[Sweep, threading.Event] | None = None
        self._machines_of_sweep: frozenset[str] = frozenset()
        self._pool_rests: dict[str, int] = {}
        self._unfree: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._sweeper is None:
            _log.info("no_sweeps", why="nothing here measures pairs of nodes")
        self._thread.start()

    def stop(self) -> None:
        """Break off all tests; they say nothing."""
        self._stopping.set()
        self._stop_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        wait_s = EVERY_S
        while not self._stopping.wait(wait_s):
            began_s = time.monotonic()
            try:
                self.tick()
            except Exception:  # the next look may go better
                _log.exception("idle_tests_broke")
            wait_s = min(max(EVERY_S, (time.monotonic() - began_s) / SHARE_OF_TIME), SELDOM_S)

    def tick(self) -> None:
        """Look at all nodes once: end what is in the way, begin what is due."""
        if not self._leads():
            self._stop_all()
            return
        facts, made = self._plan()
        self._unfree = frozenset(node.name for node in facts if node.wanted or not node.open)
        with self._lock:
            for name in (*made.ask, *made.kill):
                if (test := self._tests.get(name)) is not None:
                    test.asked_ms = test.asked_ms or self._now_ms()
                    test.stop.set()
        for name, kind in made.begin:
            self._begin(name, kind)
        if made.sweep is not None:
            self._begin_sweep(made.sweep)

    def _plan(self) -> tuple[list[IdleNode], IdlePlan]:
        now_ms, settings = self._now_ms(), self._settings
        with self._lock:
            ongoing = [
                Ongoing(node=name, kind=test.kind, began_ms=test.began_ms, asked_ms=test.asked_ms)
                for name, test in self._tests.items()
            ]
            sweeping = self._sweep[0].nodes if self._sweep is not None else ()
            self._rest_until_ms = {
                name: until for name, until in self._rest_until_ms.items() if until > now_ms
            }
            resting = set(self._rest_until_ms)
            pools = {pool for pool, until_ms in self._pool_rests.items() if until_ms > now_ms}

        def look(control: Control) -> list[IdleNode]:
            return idle_nodes(
                control.state,
                now_ms,
                since_ms=self._since_ms,
                cpu_slots=settings.cpu_slots,
                wanted=promised(control.newest_plan, now_ms),
                resting=resting,
            )

        facts: list[IdleNode] = self._read(look)
        made = plan(facts, ongoing, now_ms, settings.rules, sweeping=sweeping, resting_pools=pools)
        return facts, made

    def _stop_all(self) -> None:
        with self._lock:
            for test in self._tests.values():
                test.stop.set()
            if self._sweep is not None:
                self._sweep[1].set()

    def make_room(self, machine: str, *, for_pair: bool = False) -> None:
        """End tests on a machine for one that somebody waits for, and begin none there for a minute.

        ``for_pair``: pairs stay; they take turns by themselves. Blocks until the machine is free, some seconds at most.
        """

        def look(control: Control) -> list[str]:
            nodes = control.state.nodes.items()
            return [name for name, node in nodes if node.machine == machine and not node.simulated]

        names: list[str] = self._read(look)
        with self._lock:
            mine = [test for name in names if (test := self._tests.get(name)) is not None]
            mine = [test for test in mine if not (for_pair and test.kind is IdleTest.FABRIC)]
            for test in mine:
                test.stop.set()
            until_ms = self._now_ms() + REST_MS
            self._rest_until_ms.update(dict.fromkeys(() if for_pair else names, until_ms))
        deadline_s = time.monotonic() + ROOM_S
        while mine and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
            with self._lock:
                mine = [test for test in mine if any(test is other for other in self._tests.values())]

    # --- one node by itself

    def _begin(self, name: str, kind: IdleTest) -> None:
        node: Node | None = self._read(lambda control: control.state.nodes.get(name))
        if node is None:
            return
        if node.simulated:
            self._test(node, _Test(kind=kind, began_ms=self._now_ms()))
            return
        test = _Test(kind=kind, began_ms=self._now_ms(), machine=node.machine)
        with self._lock:
            taken = {other.machine for other in self._tests.values()} | self._machines_of_sweep
            if node.machine in taken:
                return
            if name in self._tests or len(self._tests) >= MOST_AT_ONCE or self._stopping.is_set():
                return
            self._tests[name] = test
        threading.Thread(target=self._check, args=(node, test), name="idle-test", daemon=True).start()

    def _check(self, node: Node, test: _Test) -> None:
        try:
            self._test(node, test)
        except Exception:  # a bug of ours is no fault of the node
            _log.exception("idle_test_broke", node=node.name)
            self._rest(node.name, LONG_REST_MS)
        finally:
            with self._lock:
                self._tests.pop(node.name, None)

    def _test(self, node: Node, test: _Test) -> None:
        boot_id, part = self._read(lambda control: _part(control, node, test.kind, self._now_ms()))
        try:
            done = self._checks.run(node, test.kind, boot_id, test.began_ms, test.stop.is_set, part)
        except Unavailable as problem:
            _log.debug("idle_test_not_done", node=node.name, why=problem.message)
            self._rest(node.name, LONG_REST_MS if problem.code == "AGENT_TOO_OLD" else self._rest_ms)
            return
        if self.in_the_way((node.name,), test.began_ms):
            self._rest(node.name, self._rest_ms)  # it shared the node with somebody's work
        else:
            self._submit(done)

    def _submit(self, command: Command) -> None:
        try:
            self._tell(command)
        except AiryardError as error:
            _log.warning("idle_test_not_taken", error=error.message)  # it is due still, and done again

    def _rest(self, name: str, span_ms: int) -> None:
        with self._lock:
            self._rest_until_ms[name] = self._now_ms() + span_ms

    # --- pairs

    def _begin_sweep(self, sweep: Sweep) -> None:
        now_ms = self._now_ms()
        if self._sweeper is None or self._pool_rests.get(sweep.pool, 0) > now_ms:
            return
        stop = threading.Event()
        machines = self._read(lambda control: _machines(control, sweep.nodes))
        with self._lock:
            if self._sweep is not None or self._stopping.is_set():
                return
            self._sweep, self._machines_of_sweep = (sweep, stop), machines
        _log.info("sweep_begun", pool=sweep.pool, nodes=len(sweep.nodes))
        threading.Thread(target=self._swept, args=(sweep, stop), name="sweep", daemon=True).start()

    def _swept(self, sweep: Sweep, stop: threading.Event) -> None:
        try:
            note = self._run_sweep(sweep, stop)
            if note is not None:
                _log.info("swept", pool=sweep.pool, found=note.in_words())
                self._submit(SweepDone(pool=sweep.pool, sweep=note))
            else:
                self._pool_rests[sweep.pool] = self._now_ms() + self._rest_ms
        except Exception:  # a bug of ours is no fault of a node
            _log.exception("sweep_broke", pool=sweep.pool)
            self._pool_rests[sweep.pool] = self._now_ms() + LONG_REST_MS
        finally:
            with self._lock:
                self._sweep, self._machines_of_sweep = None, frozenset()

    def _run_sweep(self, sweep: Sweep, stop: threading.Event) -> SweepNote | None:
        assert self._sweeper is not None

        def look(
            control: Control,
        ) -> tuple[PoolSweeps, Mapping[str, str], bool, tuple[tuple[str, str], ...]]:
            state = control.state
            known = state.sweeps.get(sweep.pool, PoolSweeps())
            has_gpus = all(name in state.nodes and state.nodes[name].model for name in sweep.nodes)
            return known, leaves(state, sweep.pool), has_gpus, edges_in_doubt(state, sweep.nodes)

        known, leaf_of, has_gpus, doubted_edges = self._read(look)
        asked = SweepAsk(
            sweep=Sweep(pool=sweep.pool, nodes=sweep.nodes, at_once=min(sweep.at_once, MOST_AT_ONCE)),
            number=known.number,
            leaf_of=leaf_of,
            floor_gb_s=self._settings.pair_gb_s,
            compare=has_gpus,
            least=self._settings.rules.sweep_from,
            standing=tuple(one.fault for one in known.standing),
            doubted_edges=doubted_edges,
        )
        return self._sweeper.run(asked, stop.is_set)

    def claim(self, pair: Pair) -> Callable[[], bool] | None:
        """See ``Ground``."""
        test = _Test(kind=IdleTest.FABRIC, began_ms=self._now_ms())
        with self._lock:
            taken = any(name in self._tests or name in self._unfree for name in pair.edge)
            if taken or self._stopping.is_set():
                return None
            self._tests.update(dict.fromkeys(pair.edge, test))
        return test.stop.is_set

    def release(self, pair: Pair) -> None:
        """See ``Ground``."""
        with self._lock:
            for name in pair.edge:
                self._tests.pop(name, None)

    def in_the_way(self, names: Iterable[str], began_ms: int) -> bool:
        """See ``Ground``."""
        asked = tuple(names)
        return bool(self._read(lambda control: in_the_way(control.state, asked, began_ms)))


def _machines(control: Control, names: Iterable[str]) -> frozenset[str]:
    nodes = control.state.nodes
    return frozenset(nodes[name].machine for name in names if name in nodes)


def _part(control: Control, node: Node, kind: IdleTest, now_ms: int) -> tuple[str, str]:
    """Return the boot of a node's machine, and which part of a deep test comes next."""
    state = control.state
    machine = state.machines.get(node.machine)
    boot_id = machine.boot_id if machine is not None else ""
    if kind is not IdleTest.DEEP or node.simulated:
        return boot_id, ""
    done, since_ms = state.tests.get(node.name, NodeTests()).parts, suspected_ms(state, node.name)
    return boot_id, next_part(tuple(parts_of(node)), done, boot_id, now_ms, since_ms=since_ms)
