"""The simulated server process: the production control plane between a simulated network and simulated agents.

Owns: the inbox, batches, the planner's delay, parked polls: what the real loop does with threads.
Must not know: decisions. When it dies, everything here is lost; only the journal's disk stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airyard.app.control import Control
from airyard.app.leases import HOLD_S, Leases, Reign
from airyard.app.orders import BaseEnvironment, OrderDesk, lease_order
from airyard.app.planning import Planning
from airyard.app.reports import report_of
from airyard.core.actions import Action, CloseTracking, JudgeAttempt, OpenTracking, RunRemedy, RunRetest
from airyard.core.codec import decode
from airyard.core.commands import (
    CancelRun,
    Command,
    CommitPlan,
    DeclareJudging,
    DeclareLease,
    MachineAway,
    MachineSeen,
    MemberGone,
    MemberReports,
    ResumeRun,
    Tick,
)
from airyard.core.decide import Acknowledged, Cancelled, Reply, outstanding
from airyard.core.errors import AiryardError, Conflict, InvariantBroken, NotFound
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, MemberPhase, Run
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.invariants import drift, violations
from airyard.core.scheduling.plan import Plan
from airyard.core.scheduling.snapshot import take_snapshot
from airyard.core.workload import DEFAULT_ENVIRONMENT_VERSION
from airyard.sim.clock import SkewedClock
from airyard.sim.journal import ServerDied, SimJournal
from airyard.sim.judges import WAIT_MS, SimJudges
from airyard.sim.link import Link
from airyard.sim.machine import SimMachine
from airyard.sim.monitors import outcome_of
from airyard.sim.network import AWAY, Answer
from airyard.sim.runner import OVER, Orders, Poll
from airyard.sim.setting import Broken, Setting
from airyard.sim.tracker import SimTracking, TrackerSwitch
from airyard.sim.truth import Truth

BATCH_LIMIT = 256
TICK_MS = 1000
SNAPSHOT_EVENTS = 120
REBUILD_EVERY = 5
"""The planner's book is compared with one made from the whole state every so many plans."""
RENEW_MS = 1000
REIGN_MS = 6_000
"""So long a leader leads after the journal took its word; another may lead after that and a margin."""
HOLD_WAIT_MS = 10_000
Then = Callable[[Reply | AiryardError], None]
DESK = OrderDesk(
    bases={DEFAULT_ENVIRONMENT_VERSION: BaseEnvironment(python="python3", packages=())},
    secret=lambda run, scope, key: ("", False),
    tracking_uri="http://tracker.invalid",
)


@dataclass(slots=True)
class _Parked:
    """An order poll that waits for news of its run, or for another lease than was granted when it came."""

    key: MemberKey
    after: int
    deadline_ms: int
    answer: Answer
    lease_ms: int


class SimServer:
    """One life of the server."""

    def __init__(
        self,
        setting: Setting,
        journal: SimJournal,
        truth: Truth,
        machines: Sequence[SimMachine],
        cut: set[str],
        switch: TrackerSwitch,
        lease_s: float | None,
    ) -> None:
        self._setting = setting
        self._truth = truth
        self.journal = journal
        self.control = Control(journal, setting.time)
        self._planner = Planning()
        self.links = {m.name: Link(setting, m, self._fact, cut) for m in machines}
        self._tracking = SimTracking(setting, switch, self.submit)
        self._judges = SimJudges(setting, self.submit, self._attempt)
        self._inbox: list[tuple[Command, Then | None]] = []
        self._draining = False
        self._planning = False
        self._plans = 0
        self._renewing = False
        self._parked: list[_Parked] = []
        self._offsets_ns: dict[MemberKey, int] = {}
        self._steady = SkewedClock(setting.time, setting.chance.clock_rate_ppm())
        self._reign = Reign(REIGN_MS)
        self._lease_s = lease_s
        self._leases: Leases | None = None
        self.dead = False

    def start(self) -> bool:
        """Recover and take over; False when the journal cannot be written."""
        try:
            owed = self.control.open()
        except (AiryardError, ServerDied) as error:
            if isinstance(error, InvariantBroken):
                raise Broken(f"recovery failed: {error}") from error
            self.die()
            return False
        if not self._grant_leases():
            self.die()
            return False
        self._truth.replayed(self.control.state)
        self._setting.trace("server", f"epoch {self.control.state.epoch} begins at {self.control.state.seq}")
        self._do(owed)
        for link in self.links.values():
            link.open()
        self.submit(DeclareJudging(wait_ms=WAIT_MS))
        self._tick()
        return True

    def _attempt(self, action: JudgeAttempt) -> Attempt | None:
        run = self.control.state.runs.get(action.run_id)
        return run.attempts[action.attempt] if run is not None else None

    def _grant_leases(self) -> bool:
        """Begin to grant leases, once the journal has it; False when it cannot be written."""
        begun_ms = self._steady.now_ms()
        self._reign.renewed(begun_ms)
        self.journal.reign_taken(self._setting.time.now_ms(), self.control.state.epoch)
        if self._lease_s is None:
            return True
        lease_ms = int(self._lease_s * 1000)
        longest_ms = self.control.state.lease_longest_ms
        if isinstance(self._declare(DeclareLease(lease_ms=lease_ms, begins=True)), AiryardError):
            return False
        epoch = self.control.state.epoch
        self._leases = Leases(epoch=epoch, lease_ms=lease_ms, longest_ms=longest_ms, begun_ms=begun_ms)
        return True

    def _declare(self, command: DeclareLease) -> Reply | AiryardError:
        try:
            return self.control.commit([command]).answers[0]
        except ServerDied:
            return Conflict("the server died")

    def stop_as_planned(self) -> None:
        """Grant a hold, wait until those who can be reached count it, and end."""
        if self._leases is None:
            self.die()
            return
        hold_ms = int(HOLD_S * 1000)
        if isinstance(self._declare(DeclareLease(lease_ms=hold_ms)), AiryardError):
            self.die()
            return
        self._leases.hold(hold_ms)
        self._wake(frozenset(self.control.state.runs))
        self._await_hold(self._setting.time.now_ms() + HOLD_WAIT_MS)

    def _await_hold(self, until_ms: int) -> None:
        assert self._leases is not None
        unheld = self._leases.unheld(self.control.state)
        if unheld and self._setting.time.now_ms() < until_ms:
            self._later(100, lambda: self._await_hold(until_ms))
            return
        self._truth.held(self._leases.held, self._setting.time.now_ms() + int(HOLD_S * 990))
        self.die()

    def die(self) -> None:
        """Be killed: nothing planned here happens any more."""
        self.dead = True
        self._setting.trace("server", "dies")
        self._tracking.closed = True
        self._judges.closed = True
        for link in self.links.values():
            link.close()

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._setting.later(delay_ms, lambda: None if self.dead else act())

    # --- the loop

    def submit(self, command: Command, then: Then | None = None) -> None:
        """Queue a command; it is decided with whatever else is queued by then."""
        if self.dead:
            return
        self._inbox.append((command, then))
        if not self._draining:
            self._draining = True
            self._later(self._setting.chance.between(0, 3), self._drain)

    def _tick(self) -> None:
        self._keep_leases()
        self.submit(Tick())
        self._later(TICK_MS, self._tick)

    def _keep_leases(self) -> None:
        """Renew the reign, and say who is surely over."""
        epoch = self.control.state.epoch
        if self.journal.is_over(epoch):
            self._learn_the_end()
            return
        lapsed = not self._reign.holds(self._steady.now_ms())
        if self.journal.reign_taken(self._setting.time.now_ms(), epoch):
            self._reign.renewed(self._steady.now_ms())
            if lapsed:
                # What was decided meanwhile was not done.
                self._do(outstanding(self.control.state))
                self._renew()
        if self._leases is None or not self._reign.holds(self._steady.now_ms()):
            return
        now_ms = self._steady.now_ms()
        for gone in self._leases.overdue(self.control.state, now_ms, self._setting.time.now_ms()):
            self._fact(gone)
        if self._leases.settles(now_ms):
            self.submit(DeclareLease(lease_ms=self._leases.lease_ms, settled=True))

    def _learn_the_end(self) -> None:
        self._truth.note("leader: learnt that it is over")
        self.die()

    def _drain(self) -> None:
        self._draining = False
        items, self._inbox = self._inbox[:BATCH_LIMIT], self._inbox[BATCH_LIMIT:]
        try:
            batch = self.control.commit([command for command, _ in items])
        except ServerDied:
            self.die()
            return
        if any(isinstance(command, CommitPlan) for command, _ in items):
            self._planning = False
        self._do(batch.actions)
        for (command, then), answer in zip(items, batch.answers, strict=True):
            if isinstance(answer, InvariantBroken):
                raise Broken(f"{type(command).__name__} was refused as a bug: {answer}")
            if isinstance(answer, Conflict) and answer.code == "STALE_EPOCH":
                self._learn_the_end()
                return
            if then is not None:
                then(answer)
        if batch.changed_runs:
            self._wake(batch.changed_runs)
        self._plan()
        self._keep_snapshot()

    def _plan(self) -> None:
        if self._planning:
            return
        delta = self.control.delta_to_plan()
        if delta is None:
            return
        self._planning = True
        now_ms = self._setting.time.now_ms()
        self._planner.absorb(delta, now_ms)
        plan = self._planner.make(now_ms)
        self._check(plan, now_ms)
        self._later(self._setting.chance.between(0, 40), lambda: self.submit(CommitPlan(plan=plan)))

    def _check(self, plan: Plan, now_ms: int) -> None:
        """Raise Broken when a plan breaks a promise, or its book is not what the state makes of it any more."""
        problems = violations(self._planner.book, plan, now_ms)
        self._plans += 1
        if self._plans % REBUILD_EVERY == 0:
            snapshot = take_snapshot(self.control.state, now_ms, self._planner.forecast)
            problems += drift(self._planner.book, Book.of(snapshot, now_ms), now_ms)
        if problems:
            raise Broken("; ".join(problems))

    def _keep_snapshot(self) -> None:
        if self.control.events_since_snapshot >= SNAPSHOT_EVENTS:
            state = self.control.take_state_snapshot()
            self.journal.save_snapshot(state.seq, state.parts())
            if (
                state.epoch == self._truth.state.epoch
            ):  # a leader of before knows only what was so in its time
                self._truth.replayed(state)

    # --- effects and facts

    def _do(self, actions: Sequence[Action]) -> None:
        if not self._reign.holds(self._steady.now_ms()):
            return  # what follows from a state of before is another leader's to decide
        for action in actions:
            self._setting.trace("server", action)
            if isinstance(action, OpenTracking | CloseTracking):
                self._tracking.do(action)
            elif isinstance(action, JudgeAttempt):
                self._judges.do(action)
            elif isinstance(action, RunRemedy | RunRetest):
                done = outcome_of(action, self._setting.chance)
                self._later(self._setting.chance.between(100, 4_000), partial(self.submit, done))
            else:
                self.links[action.machine].ask(action)

    def _fact(self, fact: MachineSeen | MachineAway | MemberGone) -> None:
        if isinstance(fact, MemberGone):
            self._setting.trace("agent", f"{fact.seen.key} {fact.seen.state.value}")
        self.submit(fact, self._fact_settled)

    def _fact_settled(self, answer: Reply | AiryardError) -> None:
        """Facts are said once: after one that could not be journalled, every agent is asked for everything."""
        if isinstance(answer, AiryardError) and not self._renewing:
            self._renewing = True
            self._later(RENEW_MS, self._renew)

    def _renew(self) -> None:
        self._renewing = False
        for link in self.links.values():
            link.renew()

    # --- requests of runners

    def orders(self, poll: Poll, answer: Answer) -> None:
        """Long poll for orders, as the runner routes do it."""
        key, now_ms = poll.key, self._steady.now_ms()
        if poll.epoch > self.control.state.epoch:
            # Somebody else leads; the journal, not a runner, is believed about it.
            if self._leases is not None:
                self.submit(DeclareLease(lease_ms=self._leases.lease_ms))
            answer(AWAY)
            return
        leases = self._leases
        heard = leases is None or leases.heard(key, now_ms, epoch=poll.epoch, lease_s=poll.lease_s)
        if not heard or not self._reign.holds(now_ms):
            answer(AWAY)
            return
        found = self.control.state.member(key)
        if found is None or found[2].phase is MemberPhase.LOST:
            answer(OVER)
            return
        _, attempt, member = found
        deadline_ms = self._setting.time.now_ms() + poll.wait_ms
        parked = _Parked(key, poll.after, deadline_ms, answer, leases.lease_ms if leases else 0)
        if member.phase is MemberPhase.STARTING:
            alive = MemberReports(key=key, epoch=attempt.epoch, reports=())
            self.submit(
                alive, lambda reply: answer(AWAY) if isinstance(reply, AiryardError) else self._park(parked)
            )
            return
        self._park(parked)

    def _park(self, poll: _Parked) -> None:
        if not self._serve(poll):
            self._parked.append(poll)
            self._later(poll.deadline_ms - self._setting.time.now_ms(), lambda: self._give_up(poll))

    def _serve(self, poll: _Parked) -> bool:
        found = self.control.state.member(poll.key)
        if found is None or found[2].phase is MemberPhase.LOST:
            poll.answer(OVER)
            return True
        run, attempt, member = found
        leases = self._leases
        news = leases is not None and leases.lease_ms != poll.lease_ms
        node = self.control.state.nodes.get(member.node)
        pool = self.control.state.policy.pool(attempt.pool)
        orders = DESK.orders(run, attempt, member, node, poll.after, pool) if attempt.live else []
        if orders or news:
            self._answer(poll, orders)
        return bool(orders) or news

    def _answer(self, poll: _Parked, orders: list[dict[str, Any]]) -> None:
        """Answer a poll, which grants a lease, unless this server may not lead any more."""
        if not self._reign.holds(self._steady.now_ms()):
            poll.answer(AWAY)
            return
        granted = [lease_order(self._leases.lease_s)] if self._leases is not None else []
        poll.answer(Orders(epoch=self.control.state.epoch, orders=[*granted, *orders]))

    def _give_up(self, poll: _Parked) -> None:
        if poll in self._parked:
            self._parked.remove(poll)
            self._answer(poll, [])

    def _wake(self, runs: frozenset[int]) -> None:
        self._parked = [p for p in self._parked if p.key.run_id not in runs or not self._serve(p)]

    def reports(self, key: MemberKey, body: Mapping[str, Any], answer: Answer) -> None:
        """Take reports, as the runner routes do it."""
        now_ms = self._setting.time.now_ms()
        offset_ns = self._offset_ns(key, now_ms * 1_000_000 - int(body["sent_ns"]))
        taken = []
        number = 0
        for item in body["reports"]:
            if item["kind"] != "PROGRESS":
                report = report_of(item, offset_ns, now_ms)
                if report.logs is not None and self._truth.logs.get(key, -1) < report.logs.last_seq:
                    break
                taken.append(report)
            number = int(item["number"])
        if not taken:
            answer(number)
            return

        def then(reply: Reply | AiryardError) -> None:
            if isinstance(reply, AiryardError):
                answer(AWAY)
            elif isinstance(reply, Acknowledged) and reply.over:
                answer(OVER)
            else:
                self._truth.acknowledged(key, body["reports"], number)
                answer(number)

        self.submit(MemberReports(key=key, epoch=body["epoch"], reports=tuple(taken)), then)

    def _offset_ns(self, key: MemberKey, seen: int) -> int:
        best = self._offsets_ns.get(key)
        if best is None or abs(seen) < abs(best):
            self._offsets_ns[key] = best = seen
        return best

    def logs(self, key: MemberKey, last_seq: int, answer: Answer) -> None:
        """Store log records: durable before the answer."""
        self._truth.logs[key] = max(self._truth.logs.get(key, -1), last_seq)
        answer(last_seq + 1)

    # --- requests of people

    def ask(self, command: Command, answer: Answer) -> None:
        """Decide a person's command."""
        self.submit(command, answer)

    def cancel(self, run_id: int, by: str, answer: Answer) -> None:
        """Cancel; a run that has left memory has ended."""

        def then(reply: Reply | AiryardError) -> None:
            if isinstance(reply, NotFound) and run_id in self.journal.disk.runs:
                reply = Cancelled(run_id=run_id, already_ended=True)
            answer(reply)

        self.submit(CancelRun(run_id=run_id, by=by), then)

    def resume(self, run_id: int, by: str, answer: Answer) -> None:
        """Resume from the stored record."""
        row = self.journal.disk.runs[run_id]
        self.submit(ResumeRun(run=decode(Run, row.record), by=by), answer)
