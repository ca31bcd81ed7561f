"""The discrete-event simulation of a trace: arrivals, ends, evictions and failures, planned by the production planner.

Owns: virtual time, the life of each job, what is put into the planner's book. Must not know: how a plan is made, which
policy it is, how results are summed up.
Everything that happens at one time is taken in before one plan is made. Times are ms.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from airyard.core.placement import Seat
from airyard.core.policy import Policy, PoolOrder
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import Plan, Refusal, Running, Shape
from airyard.core.scheduling.planner import plan as make_plan
from airyard.core.scheduling.snapshot import used_of
from airyard.core.scheduling.waits import refusal_of
from airyard.core.usage import Usage
from airyard.core.workload import Priority
from airyard.sim.trace.demand import Demand, Job
from airyard.sim.trace.durations import Durations, Judge
from airyard.sim.trace.lives import Life
from airyard.sim.trace.outages import Outage

HOUR_MS = 3_600_000
PROGRESS_EVERY = 2_000

Watch = Callable[[Book, Plan, int], None]
"""Is shown every plan, before it is carried out, with the book that it was made from."""


class _Kind(IntEnum):
    """What happens, in the order in which things at one time are taken in."""

    END = 0
    LEFT = 1
    CHECKPOINT = 2
    DOWN = 3
    UP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How jobs behave, and what is asked of the planner.

    ``head_only`` offers the planner only the first waiting job of each pool: nothing starts before an earlier one.
    ``one_class`` makes every job NORMAL. ``stretch`` multiplies expected durations as the queue's order sees them: so
    large that time in the queue does not count, the shortest goes first.
    ``eviction_ms`` is how long an evicted job holds its devices to write its last checkpoint; with ``last_checkpoint``
    it loses nothing but that time. ``checkpoint_ms`` is the work between two checkpoints, all that a failure leaves;
    None: jobs write none, and lose everything. A job that is known to write none never does.
    """

    head_only: bool = False
    one_class: bool = False
    stretch: int = 1
    eviction_ms: int = 60_000
    last_checkpoint: bool = True
    checkpoint_ms: int | None = HOUR_MS


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What came of a replay. ``idle_placeable`` is in device-milliseconds, ``plans_s`` the wall time of each plan."""

    lives: list[Life]
    from_ms: int
    to_ms: int
    """First and last arrival."""
    last_ms: int = 0
    idle_placeable: int = 0
    down: int = 0
    """Device-milliseconds that failures took between first and last arrival."""
    plans_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    events: int = 0
    most_waiting: int = 0
    judge: Judge = field(default_factory=Judge)
    held: dict[str, int] = field(default_factory=dict)
    """Project → device-milliseconds held between first and last arrival."""
    stuck: dict[int, Refusal | None] = field(default_factory=dict)
    """Run id → the planner's last reason, for jobs that never ended."""


class Replay:
    """One simulation. ``stopwatch`` returns seconds of real time; ``progress`` is told (arrived, waiting) at times."""

    def __init__(
        self,
        demand: Demand,
        policy: Policy,
        rules: Rules,
        durations: Durations,
        *,
        stopwatch: Callable[[], float],
        outages: Sequence[Outage] = (),
        watch: Watch | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.rules = rules
        self.durations = durations
        self.policy = policy
        self.book = Book(policy)
        for view in demand.nodes:
            self.book.put_node(view)
        self._stopwatch, self._watch, self._progress = stopwatch, watch, progress
        self._jobs = demand.jobs
        self._outages = outages
        self._arrived = 0
        self._events: list[tuple[int, int, int, int]] = []
        self._lives: dict[int, Life] = {}
        self._pool_of = {view.name: view.pool for view in demand.nodes}
        self._open = {pool: demand.devices(pool) for pool in demand.pools}
        self._busy = dict.fromkeys(self._open, 0)
        self._waiting: dict[Shape, int] = {}
        self._queued = 0
        self._heads: dict[str, deque[int]] = {}
        self._ends: list[tuple[int, int]] = []
        self._ledger: dict[tuple[str, str], Usage] = {}
        self._wake_ms: int | None = None
        self._last_plan: Plan | None = None
        pools = [policy.pool(pool) for pool in demand.pools]
        self._fair = bool(policy.projects) or any(pool.order is PoolOrder.FAIR for pool in pools)
        self._promises = any(pool.reservations for pool in pools)
        self._evicts = (
            any(pool.slicing is not None for pool in pools)
            or any(project.slicing or project.shares for project in policy.projects)
            or len({self._rank(job) for job in demand.jobs}) > 1
        )
        first = demand.jobs[0].arrives_ms if demand.jobs else 0
        last = demand.jobs[-1].arrives_ms if demand.jobs else 0
        self.result = Replayed(lives=[], from_ms=first, to_ms=last, last_ms=first)
        for number, outage in enumerate(outages):
            self._at(outage.from_ms, _Kind.DOWN, number)
            self._at(outage.to_ms, _Kind.UP, number)

    # Time.

    def run(self) -> Replayed:
        """Simulate to the end: until nothing more can happen."""
        begun_s, last_ms, idle = self._stopwatch(), self.result.from_ms, 0
        while (now_ms := self._next_ms()) is not None:
            self.result.idle_placeable += idle * (now_ms - last_ms)
            last_ms = now_ms
            if self._take_in(now_ms):
                self._settle(now_ms)
                idle = self._idle_placeable()
            if self.result.events % PROGRESS_EVERY == 0 and self._progress is not None:
                self._progress(self._arrived, self._queued)
        self.result.wall_s = self._stopwatch() - begun_s
        self.result.lives = list(self._lives.values())
        for run_id, want in self.book.queue.runs.items():
            self.result.stuck[run_id] = refusal_of(self._last_plan, want, last_ms)
        return self.result

    def _next_ms(self) -> int | None:
        """Return when something happens next; None when all jobs have ended, or none ever will."""
        times = [self._jobs[self._arrived].arrives_ms] if self._arrived < len(self._jobs) else []
        if self._events and (times or self._waiting or self.book.running):
            times.append(self._events[0][0])
        if self._wake_ms is not None and self._waiting:
            times.append(self._wake_ms)
        return min(times, default=None)

    def _take_in(self, now_ms: int) -> bool:
        """Let everything happen that happens now. True when a plan is due."""
        due = self._wake_ms is not None and self._wake_ms <= now_ms
        events, lives = self._events, self._lives
        while events and events[0][0] <= now_ms:
            _, kind, key, version = heapq.heappop(events)
            self.result.events += 1
            if kind == _Kind.DOWN:
                self._down(self._outages[key], now_ms)
            elif kind == _Kind.UP:
                self._up(self._outages[key])
            else:
                life = lives[key]
                if life.version != version:
                    continue
                if kind == _Kind.CHECKPOINT:
                    due |= self._checkpoint(life, now_ms)
                    continue
                if kind == _Kind.END:
                    self._end(life, now_ms)
                else:
                    self._left(life, now_ms)
            due = True
        while self._arrived < len(self._jobs) and self._jobs[self._arrived].arrives_ms <= now_ms:
            self._arrive(self._jobs[self._arrived], now_ms)
            due = True
        return due

    def _at(self, at_ms: int, kind: _Kind, key: int, version: int = 0) -> None:
        heapq.heappush(self._events, (at_ms, kind, key, version))

    # The life of a job.

    def _arrive(self, job: Job, now_ms: int) -> None:
        self._arrived += 1
        self.result.events += 1
        life = self._lives[job.run.run_id] = Life(job)
        self._enqueue(life, now_ms)

    def _enqueue(self, life: Life, now_ms: int) -> None:
        job, shape = life.job, life.shape
        self._queued += 1
        self.durations.wait(job)
        self.result.most_waiting = max(self.result.most_waiting, self._queued)
        self._waiting[shape] = self._waiting.get(shape, 0) + 1
        if self.rules.head_only:
            heads = self._heads.setdefault(job.pool or "", deque())
            if life.attempt < 0:
                heads.append(job.run.run_id)
            else:
                self._put_back(heads, life)
            return
        self._offer(life, now_ms)

    def _put_back(self, heads: deque[int], life: Life) -> None:
        """Keep the place of a job that comes back: before everybody who came later; the head is offered anew."""
        if heads:
            self.book.drop(heads[0])
        key = life.job.arrives_ms, life.job.run.run_id
        rows = [(self._lives[run_id].job.arrives_ms, run_id) for run_id in heads]
        heads.insert(sum(row < key for row in rows), life.job.run.run_id)

    def _offer(self, life: Life, now_ms: int) -> None:
        expected_ms, likely_ms = self.durations.remaining(life.job, life.served_ms, life.saved_ms)
        want = life.job.waiting(
            queued_ms=life.job.arrives_ms,
            expected_ms=expected_ms * self.rules.stretch,
            likely_ms=likely_ms,
            served_ms=life.served_ms,
            acknowledges=life.checkpointed,
            evicted_ms=life.evicted_ms,
            rank=self._rank(life.job),
        )
        self.book.put_waiting(want, now_ms)

    def _rank(self, job: Job) -> int:
        return Priority.NORMAL.rank if self.rules.one_class else job.run.priority_class.rank

    def _checkpoint_ms(self, job: Job) -> int | None:
        return self.rules.checkpoint_ms if job.checkpoints else None

    def _start(self, life: Life, seats: tuple[Seat, ...], now_ms: int) -> None:
        job = life.job
        predicted = self.durations.remaining(job, life.served_ms, life.saved_ms)
        if life.first_ms is None:
            life.predicted = predicted
        life.begin(now_ms)
        self._no_longer_waiting(life)
        pool = self._pool_of[seats[0].node]
        limit_end_ms = now_ms + job.run.limit_ms if job.run.limit_ms is not None else None
        life.running = Running(
            run_id=job.run.run_id,
            attempt=life.attempt,
            rank=self._rank(job),
            placed_ms=now_ms,
            seats=seats,
            stopping=False,
            project=job.run.project,
            owner=job.run.user,
            pool=pool,
            end_ms=_within(now_ms + predicted[0], limit_end_ms),
            late_end_ms=_within(now_ms + predicted[1], limit_end_ms),
            limit_end_ms=limit_end_ms,
            safe_ms=now_ms,
            acknowledges=life.checkpointed,
            served_ms=life.served_ms,
            evicted_ms=life.evicted_ms,
        )
        self.book.put_running(life.running)
        self._count(life, job.run.devices, now_ms)
        self._at(now_ms + life.rest_ms, _Kind.END, job.run.run_id, life.version)
        if self._promises:
            heapq.heappush(self._ends, (life.running.end_ms, job.run.run_id))
        every_ms = self._checkpoint_ms(job)
        if self._evicts and every_ms is not None and every_ms < life.rest_ms:
            self._at(now_ms + every_ms, _Kind.CHECKPOINT, job.run.run_id, life.version)

    def _no_longer_waiting(self, life: Life) -> None:
        self._queued -= 1
        self.durations.leave(life.job)
        left = self._waiting[life.shape] - 1
        if left:
            self._waiting[life.shape] = left
        else:
            del self._waiting[life.shape]
        if self.rules.head_only:
            self._heads[life.job.pool or ""].popleft()

    def _checkpoint(self, life: Life, now_ms: int) -> bool:
        """Note a checkpoint. True when it is the job's first: from now on it may be sliced."""
        every_ms = self._checkpoint_ms(life.job)
        if life.running is None or every_ms is None:
            return False
        first, life.checkpointed = not life.checkpointed, True
        life.running = replace(life.running, safe_ms=now_ms, acknowledges=True)
        self.book.put_running(life.running)
        if now_ms + every_ms < life.started_ms + life.rest_ms:
            self._at(now_ms + every_ms, _Kind.CHECKPOINT, life.job.run.run_id, life.version)
        return first

    def _end(self, life: Life, now_ms: int) -> None:
        self._vacate(life, now_ms)
        life.end(now_ms)
        self.result.last_ms = now_ms
        self.result.judge.note(life.predicted, life.job.run.duration_ms)
        self.book.drop(life.job.run.run_id)
        for run_id in self.durations.ended(life.job, life.served_ms):
            if run_id in self.book.queue.runs:
                self._offer(self._lives[run_id], now_ms)

    def _evict(self, life: Life, now_ms: int) -> None:
        assert life.running is not None
        life.save(now_ms, self._checkpoint_ms(life.job), all_of_it=self.rules.last_checkpoint)
        life.evictions += 1
        life.evicted_ms = now_ms
        life.paid += self.rules.eviction_ms * life.job.run.devices
        life.version += 1
        gone_ms = now_ms + self.rules.eviction_ms
        life.running = replace(
            life.running, stopping=True, evicted=True, evicted_ms=now_ms, end_ms=gone_ms, late_end_ms=gone_ms
        )
        self.book.put_running(life.running)
        self._at(gone_ms, _Kind.LEFT, life.job.run.run_id, life.version)

    def _left(self, life: Life, now_ms: int) -> None:
        self._vacate(life, now_ms)
        life.leave(now_ms)
        self.book.drop(life.job.run.run_id)
        self._enqueue(life, now_ms)

    def _vacate(self, life: Life, now_ms: int) -> None:
        """Count what a stint held."""
        result = self.result
        devices = life.job.run.devices
        project, inside_ms = life.job.run.project, min(now_ms, result.to_ms) - life.started_ms
        if inside_ms > 0:
            result.held[project] = result.held.get(project, 0) + devices * inside_ms
        self._count(life, -devices, now_ms)

    def _count(self, life: Life, devices: int, now_ms: int) -> None:
        assert life.running is not None
        pool = life.running.pool
        self._busy[pool] += devices
        if self._fair:
            key = life.job.run.project, pool
            used = self._ledger.get(key) or Usage(at_ms=now_ms)
            self._ledger[key] = used.changed(now_ms, self.policy.half_life_ms, devices)

    # Nodes that fail.

    def _down(self, outage: Outage, now_ms: int) -> None:
        slot = self.book.nodes.slots[outage.node]
        for run_id in list(slot.residents):
            life = self._lives[run_id]
            assert life.running is not None
            if not life.running.stopping:
                life.save(now_ms, self._checkpoint_ms(life.job), all_of_it=False)
            life.failures += 1
            self._left(life, now_ms)
        self.book.put_node(replace(slot.view, alive=False))
        self._open[slot.view.pool] -= len(slot.view.devices)
        inside_ms = min(outage.to_ms, self.result.to_ms) - outage.from_ms
        self.result.down += max(inside_ms, 0) * len(slot.view.devices)

    def _up(self, outage: Outage) -> None:
        view = self.book.nodes.slots[outage.node].view
        self.book.put_node(replace(view, alive=True))
        self._open[view.pool] += len(view.devices)

    # Plans.

    def _settle(self, now_ms: int) -> None:
        """Plan, and plan again while that changes what the next plan may do."""
        self._wake_ms = None
        while self._waiting:
            if self.rules.head_only:
                self._offer_heads(now_ms)
            acted = self._plan(now_ms)
            if not acted or not (self.rules.head_only or self._evicts):
                return

    def _offer_heads(self, now_ms: int) -> None:
        for heads in self._heads.values():
            if heads and heads[0] not in self.book.queue.runs:
                self._offer(self._lives[heads[0]], now_ms)

    def _plan(self, now_ms: int) -> bool:
        """Make one plan and carry it out. True when it started or evicted anybody."""
        book = self.book
        self._outlived(now_ms)
        if self._fair:
            book.account(used_of(self._ledger.items(), now_ms, self.policy.half_life_ms), frozenset())
        begun_s = self._stopwatch()
        plan = make_plan(book, now_ms)
        self.result.plans_s.append(self._stopwatch() - begun_s)
        if self._watch is not None:
            self._watch(book, plan, now_ms)
        lives = self._lives
        for start in plan.starts:
            self._start(lives[start.run_id], start.seats, now_ms)
        for eviction in plan.evictions:
            self._evict(lives[eviction.run_id], now_ms)
        self._wake_ms, self._last_plan = plan.wake_ms, plan
        if plan.refusals and (next_ms := self._next_expected_end_ms()) is not None:
            # Promises rest on expected ends: when one has passed, another end is expected, and more may start.
            self._wake_ms = min(next_ms, self._wake_ms) if self._wake_ms is not None else next_ms
        return bool(plan.starts or plan.evictions)

    def _next_expected_end_ms(self) -> int | None:
        while self._ends:
            end_ms, run_id = self._ends[0]
            running = self._lives[run_id].running
            if running is not None and running.end_ms == end_ms and not running.stopping:
                return end_ms
            heapq.heappop(self._ends)
        return None

    def _outlived(self, now_ms: int) -> None:
        """Give those that should have ended by now another expected end, as the live planning side does."""
        while self._ends and self._ends[0][0] <= now_ms:
            end_ms, run_id = heapq.heappop(self._ends)
            life = self._lives[run_id]
            running = life.running
            if running is None or running.end_ms != end_ms or running.stopping:
                continue
            elapsed_ms = now_ms - running.placed_ms + running.served_ms
            expected_ms, likely_ms = self.durations.remaining(life.job, elapsed_ms, life.saved_ms)
            later_ms = now_ms + max(expected_ms, elapsed_ms // 10, 60_000)
            late_ms = max(later_ms, now_ms + likely_ms)
            later_ms = _within(later_ms, running.limit_end_ms)
            if later_ms <= end_ms:
                continue
            late_ms = _within(late_ms, running.limit_end_ms)
            life.running = replace(running, end_ms=later_ms, late_end_ms=late_ms)
            self.book.put_running(life.running)
            heapq.heappush(self._ends, (later_ms, run_id))

    def _idle_placeable(self) -> int:
        """Return how many devices are free that waiting jobs which fit there could use, whatever the rules say."""
        idle = 0
        if self._waiting:
            for pool, devices in self._open.items():
                free = devices - self._busy[pool]
                if free > 0:
                    idle += min(free, self._asked(pool))
        return idle

    def _asked(self, pool: str) -> int:
        index, asked = self.book.nodes, 0
        for shape, count in self._waiting.items():
            kinds = index.fitting(shape).get(pool)
            if kinds and index.ready(kinds, shape.devices) >= shape.nodes:
                asked += count * shape.devices * shape.nodes
        return asked


def _within(at_ms: int, limit_ms: int | None) -> int:
    return at_ms if limit_ms is None else min(at_ms, limit_ms)
