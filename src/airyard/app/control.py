"""The control plane without threads: commands in, journalled facts and effects out.

Owns: the state, group commit, and when a new plan is due. Must not know: threads, sockets, how effects are carried out.
The production loop (``loop.py``) and the simulator drive the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import airyard
from airyard.app.projection import changes_between
from airyard.core import events
from airyard.core.actions import Action
from airyard.core.commands import BeginEpoch, Command, CommitPlan, Tick
from airyard.core.decide import Decision, Reply, decide, outstanding
from airyard.core.errors import AiryardError, InvariantBroken
from airyard.core.events import Recorded
from airyard.core.quota import paused
from airyard.core.run import Run, RunState
from airyard.core.scheduling.plan import Plan, Refusal
from airyard.core.scheduling.snapshot import Delta, node_views, waiting_of
from airyard.core.scheduling.waits import refusal_of
from airyard.core.state import ClusterState
from airyard.core.versions import check_release, kinship
from airyard.ports.clock import Clock
from airyard.ports.journal import Journal

# A plan made before one of these is no longer the best answer; everything else leaves capacity and queue alone.
_REPLAN = (
    events.RunSubmitted,
    events.RunResumed,
    events.RunQueuedAgain,
    events.RunEnded,
    events.MemberExited,
    events.MemberLost,
    events.MachineJoined,
    events.MachineLeft,
    events.NodeCordoned,
    events.NodeUncordoned,
    events.NodeDrainOrdered,
    events.PolicyDeclared,
    events.ReservationMade,
    events.ReservationEnded,
    events.RunUpdated,
    # It may be evicted from some time on, which only the next plan knows.
    events.AttemptPlaced,
)

# These may move live attempts to other pools: any run may be another one afterwards.
_YARD_WIDE = (events.MachineJoined, events.PolicyDeclared)

UNTOLD_LIMIT = 1000
"""So many changes are told to the planner even when nothing waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction led to: an answer or error for each command, effects, and the runs that changed."""

    answers: tuple[Reply | AiryardError, ...]
    actions: tuple[Action, ...]
    changed_runs: frozenset[int]
    events: int
    caught_up: bool = False
    """Events were found that had been journalled although nobody said so: their starts and kills were never issued,
    and are settled when the machines say hello again."""


def check_readable_release(state: ClusterState) -> None:
    """Refuse a journal whose last leader is of a release too far from this one. Raises: UserError."""
    if kinship(state.version, airyard.__version__).works:
        return
    live = sum(1 for _ in state.live_attempts())
    check_release(state.version, airyard.__version__, live_attempts=live)


class Control:
    """One active writer over one journal. Not thread-safe: one thread calls everything."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.state = ClusterState()
        self._plan_due = True
        self._fresh = True
        self._untold: dict[int, None] = {}
        self._ended: list[Run] = []
        self._told: tuple[object, ...] | None = None
        self._spent: frozenset[str] = frozenset()
        self._plan: Plan | None = None
        self._unsure = False
        """The journal failed: it may have more events of ours than the state has taken in."""
        self.journal_problem = ""
        """What the journal said when it failed last; empty once it has taken something since."""
        self.events_since_snapshot = 0

    def open(self, warm: ClusterState | None = None) -> list[Action]:
        """Recover the state, take over the journal, and return the effects that are still owed.

        ``warm`` is a state that was read from this journal, which is open then: only what came after it is read.
        Raises: Unavailable or InvariantBroken when the journal cannot be read; Conflict when another server has it.
        """
        self.state = self._recovered() if warm is None else warm
        for tries_left in (2, 1, 0):
            for recorded in self._journal.events_after(self.state.seq):
                self.state.apply(recorded)
                self.events_since_snapshot += 1
            check_readable_release(self.state)
            (answer,) = self.commit([BeginEpoch(version=airyard.__version__)]).answers
            if not isinstance(answer, AiryardError):
                break
            if answer.code != "STALE_EPOCH" or not tries_left:
                raise answer
            # The leader before had a commit in its hands when it fell silent.
        self._unsure = False
        return outstanding(self.state)

    def _recovered(self) -> ClusterState:
        stored = self._journal.open()
        state = (
            ClusterState.from_json(dict(stored.snapshot)) if stored.snapshot is not None else ClusterState()
        )
        for recorded in self._journal.events_after(state.seq):
            state.apply(recorded)
            self.events_since_snapshot += 1
        if state.seq != stored.last_seq:
            raise InvariantBroken(
                f"the journal ends at {stored.last_seq}, but replay reached {state.seq}", code="JOURNAL_GAP"
            )
        return state

    def commit(self, commands: Sequence[Command]) -> Batch:
        """Decide all commands in order and journal their events in one transaction.

        A command that is refused gets its error and leaves no trace. When the journal refuses, nothing has happened and
        every command gets the journal's error. Cost: a copy of the state's maps, unless nothing happens.
        """
        if not self._unsure:
            return self._commit(commands)
        try:
            owed, changed = self._catch_up()
        except AiryardError as error:
            self.journal_problem = error.message
            self._note_refused(commands)
            return Batch(answers=(error,) * len(commands), actions=(), changed_runs=frozenset(), events=0)
        batch = self._commit(commands)
        if changed is None:
            return batch
        return replace(
            batch,
            actions=(*owed, *batch.actions),
            changed_runs=batch.changed_runs | changed,
            caught_up=True,
        )

    def _catch_up(self) -> tuple[Sequence[Action], frozenset[int] | None]:
        """Take in what the journal has beyond this state; return what is owed since, and the runs that changed, if any.

        An append that failed may have been written after all (the answer was lost on its way). What another server
        wrote is not taken in: the next append meets the fence.
        """
        draft, missed = self.state.copy(), []
        for entry in self._journal.events_after(draft.seq):
            if entry.epoch != draft.epoch:
                break
            draft.apply(entry)
            missed.append(entry)
        self._unsure = False
        self.journal_problem = ""
        if not missed:
            return (), None
        touched = _touched(missed)
        changed = frozenset(draft.runs if touched is None else touched)
        self._note_changes(changed, draft)
        self._plan_due = True
        draft.departed.clear()
        self.state = draft
        self.events_since_snapshot += len(missed)
        return outstanding(draft), changed

    def _note_refused(self, commands: Sequence[Command]) -> None:
        """Note that nothing came of commands: a plan that could not be carried out must not be the last one."""
        self._plan_due |= any(isinstance(command, CommitPlan) for command in commands)

    def _commit(self, commands: Sequence[Command]) -> Batch:
        now_ms = self._clock.now_ms()
        draft = self.state
        recorded: list[Recorded] = []
        actions: list[Action] = []
        answers: list[Reply | AiryardError] = []
        for command in commands:
            mark = draft.seq
            try:
                decision = decide(draft, command, now_ms)
                if decision.events and draft is self.state:
                    draft = self.state.copy()
                recorded += self._apply(draft, decision, now_ms)
                actions.extend(decision.actions)
                answers.append(decision.reply)
                continue
            except AiryardError as error:
                answers.append(error)
            except Exception as error:
                # A bug met by one command must not refuse the others of its batch.
                broken = InvariantBroken(f"{type(command).__name__} met a bug: {error!r}", code="BUG")
                broken.__cause__ = error
                answers.append(broken)
            if draft.seq != mark:
                draft = self._rebuilt(recorded)
        return self._write(draft, recorded, actions, answers, commands)

    def _apply(self, draft: ClusterState, decision: Decision, now_ms: int) -> list[Recorded]:
        """Number a decision's events and let the draft see them. Raises: what ``apply`` raises, perhaps halfway."""
        entries: list[Recorded] = []
        for event in decision.events:
            epoch = event.epoch if isinstance(event, events.EpochBegan) else draft.epoch
            entry = Recorded(seq=draft.seq + 1, at_ms=now_ms, epoch=epoch, event=event)
            draft.apply(entry)
            entries.append(entry)
        return entries

    def _rebuilt(self, recorded: Sequence[Recorded]) -> ClusterState:
        """Return the draft as it was before a decision that went wrong halfway."""
        draft = self.state.copy()
        for entry in recorded:
            draft.apply(entry)
        return draft

    def _write(
        self,
        draft: ClusterState,
        recorded: list[Recorded],
        actions: list[Action],
        answers: list[Reply | AiryardError],
        commands: Sequence[Command],
    ) -> Batch:
        changed: frozenset[int] = frozenset()
        if recorded:
            removed = tuple(e.event.run_id for e in recorded if isinstance(e.event, events.RunRemoved))
            changes = changes_between(self.state, draft, _touched(recorded), removed)
            try:
                self._journal.append(self.state.seq, draft.epoch, recorded, changes)
            except AiryardError as error:
                self._unsure = True
                self.journal_problem = error.message
                self._note_refused(commands)
                failed = tuple(a if isinstance(a, AiryardError) else error for a in answers)
                return Batch(answers=failed, actions=(), changed_runs=frozenset(), events=0)
            changed = frozenset(row.run_id for row in changes.runs) | frozenset(removed)
            self._note_changes(changed, draft)
            self._plan_due |= any(self._calls_for_plan(entry.event) for entry in recorded)
            draft.departed.clear()
            self.state = draft
            self.events_since_snapshot += len(recorded)
        self._note_plans(commands)
        return Batch(
            answers=tuple(answers), actions=tuple(actions), changed_runs=changed, events=len(recorded)
        )

    def _calls_for_plan(self, event: events.Event) -> bool:
        """True when the last plan may not be the best answer any more. Asked before the state takes the event in."""
        if isinstance(event, events.CheckpointAcknowledged):
            # From its first one on a run loses little by leaving: it may be sliced.
            run = self.state.runs.get(event.run_id)
            return run is not None and run.checkpoint is None
        return isinstance(event, _REPLAN)

    def _note_changes(self, changed: frozenset[int], after: ClusterState) -> None:
        """Note what the planner has to be told of."""
        for run_id in changed:
            self._untold[run_id] = None
            run = after.runs.get(run_id) or after.departed.get(run_id)
            before = self.state.runs.get(run_id)
            if (
                run is not None
                and run.state is RunState.ENDED
                and (before is None or before.state is not run.state)
            ):
                self._ended.append(run)

    def _note_plans(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, CommitPlan):
                self._plan = command.plan
            elif isinstance(command, Tick):
                now_ms = self._clock.now_ms()
                due_ms = self._plan.wake_ms if self._plan is not None else None
                if due_ms is not None and due_ms <= now_ms:
                    self._plan_due = True
                self._plan_due |= self._spent != paused(self.state, now_ms)

    def delta_to_plan(self) -> Delta | None:
        """Return what the planner has to be told if a new plan is due, and note that it is being made."""
        if not self._plan_due:
            return None
        self._plan_due = False
        if not self._somebody_waits():
            self._plan = None
            if len(self._untold) + len(self._ended) < UNTOLD_LIMIT and not self._fresh:
                return None
        return self._delta()

    def _somebody_waits(self) -> bool:
        return bool(self.state.queued)

    def _delta(self) -> Delta:
        state, fresh, told = self.state, self._fresh, self._told
        self._told = (state.nodes, state.machines, state.policy, state.reservations, state.cordons)
        self._spent = paused(state, self._clock.now_ms())
        ids = state.runs.keys() if fresh else self._untold
        touched = [(run_id, state.runs.get(run_id)) for run_id in ids]
        new_policy = fresh or told is None or told[2] != state.policy
        new_nodes = (
            new_policy
            or told is None
            or (told[0], told[1], told[4]) != (state.nodes, state.machines, state.cordons)
        )
        delta = Delta(
            seq=state.seq,
            fresh=fresh,
            runs=tuple(run for _, run in touched if run is not None and not _is_over(run)),
            gone=tuple(run_id for run_id, run in touched if run is None or _is_over(run)),
            ended=tuple(self._ended),
            nodes=node_views(state) if new_nodes else None,
            policy=state.policy if new_policy else None,
            reservations=tuple(state.reservations.values())
            if fresh or told is None or told[3] != state.reservations
            else None,
            usage=tuple(state.usage.items()),
            half_life_ms=state.policy.half_life_ms,
            spent=self._spent,
        )
        self._fresh = False
        self._untold.clear()
        self._ended.clear()
        return delta

    def news(self) -> Delta | None:
        """Return what the planner has not been told yet, for who asks it something; None when there is nothing."""
        state = self.state
        known = (state.nodes, state.machines, state.policy, state.reservations, state.cordons)
        return self._delta() if self._untold or self._ended or self._told != known else None

    def plan_again(self, *, fresh: bool = False) -> None:
        """Note that the plan that was being made came to nothing; ``fresh``: the planner has lost its book."""
        self._plan_due = True
        self._fresh |= fresh

    @property
    def newest_plan(self) -> Plan | None:
        """The plan that was committed last; None while nobody waits. It is replaced, never changed."""
        return self._plan

    def refusal(self, run_id: int) -> Refusal | None:
        """Return why a waiting run was not placed by the newest plan."""
        run = self.state.runs.get(run_id)
        if run is None or run.state is not RunState.QUEUED:
            return None
        return refusal_of(self._plan, waiting_of(run), self._clock.now_ms())

    def take_state_snapshot(self) -> ClusterState:
        """Return a copy to be written as a snapshot off this thread."""
        self.events_since_snapshot = 0
        return self.state.copy()


def _touched(recorded: Sequence[Recorded]) -> list[int] | None:
    """Return the runs that events are about; None where they may have changed any run."""
    found: list[int] = []
    for entry in recorded:
        event = entry.event
        if isinstance(event, _YARD_WIDE):
            return None
        run_id = (
            event.run.run_id if isinstance(event, events.ArrivalEvent) else getattr(event, "run_id", None)
        )
        if run_id is not None:
            found.append(run_id)
    return found


def _is_over(run: Run) -> bool:
    """True when a run is no matter of the planner's: it has ended, or holds nothing and is being judged."""
    held = run.state is RunState.ACTIVE and run.attempt is not None and run.attempt.gone
    return run.state is RunState.ENDED or held
