"""The control plane without threads: commands in, journalled facts and effects out.

Owns: the state, group commit, and when a new plan is due. Must not know: threads, sockets, how effects are carried out.
The production loop (``loop.py``) and the simulator drive the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import airyard
from airyard.app.projection import changes_between
from airyard.core import events
from airyard.core.actions import Action
from airyard.core.commands import BeginEpoch, Command, CommitPlan, Tick
from airyard.core.decide import Decision, Reply, decide, outstanding
from airyard.core.errors import AiryardError, InvariantBroken
from airyard.core.events import Recorded
from airyard.core.run import RunState
from airyard.core.scheduling.plan import Plan, Refusal, Snapshot
from airyard.core.scheduling.planner import plan as make_plan
from airyard.core.scheduling.snapshot import take_snapshot
from airyard.core.state import ClusterState
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one transaction led to: an answer or error for each command, effects, and the runs that changed."""

    answers: tuple[Reply | AiryardError, ...]
    actions: tuple[Action, ...]
    changed_runs: frozenset[int]
    events: int


class Control:
    """One active writer over one journal. Not thread-safe: one thread calls everything."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.state = ClusterState()
        self._plan_due = True
        self._next_backoff_ms: int | None = None
        self._refusals: dict[int, Refusal] = {}
        self.events_since_snapshot = 0

    def open(self) -> list[Action]:
        """Recover the state, take over the journal, and return the effects that are still owed.

        Raises: Unavailable or InvariantBroken when the journal cannot be read; Conflict when another server has it.
        """
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
        self.state = state
        batch = self.commit([BeginEpoch(version=airyard.__version__)])
        for answer in batch.answers:
            if isinstance(answer, AiryardError):
                raise answer
        return outstanding(self.state)

    def commit(self, commands: Sequence[Command]) -> Batch:
        """Decide all commands in order and journal their events in one transaction.

        A command that is refused gets its error and leaves no trace. When the journal refuses, nothing has happened and
        every command gets the journal's error.
        """
        now_ms = self._clock.now_ms()
        draft = self.state.copy()
        recorded: list[Recorded] = []
        actions: list[Action] = []
        answers: list[Reply | AiryardError] = []
        for command in commands:
            mark = draft.seq
            try:
                decision = decide(draft, command, now_ms)
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
            changes = changes_between(self.state, draft, removed)
            try:
                self._journal.append(self.state.seq, draft.epoch, recorded, changes)
            except AiryardError as error:
                # A plan that could not be carried out must not be the last one.
                self._plan_due |= any(isinstance(command, CommitPlan) for command in commands)
                failed = tuple(a if isinstance(a, AiryardError) else error for a in answers)
                return Batch(answers=failed, actions=(), changed_runs=frozenset(), events=0)
            changed = frozenset(row.run_id for row in changes.runs) | frozenset(removed)
            draft.departed.clear()
            self.state = draft
            self.events_since_snapshot += len(recorded)
            self._plan_due |= any(isinstance(entry.event, _REPLAN) for entry in recorded)
        self._note_plans(commands)
        return Batch(
            answers=tuple(answers), actions=tuple(actions), changed_runs=changed, events=len(recorded)
        )

    def _note_plans(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, CommitPlan):
                self._refusals = {refusal.run_id: refusal for refusal in command.plan.refusals}
            elif isinstance(command, Tick):
                due = self._next_backoff_ms
                if due is not None and due <= self._clock.now_ms():
                    self._plan_due = True

    def snapshot_to_plan(self) -> Snapshot | None:
        """Return what to plan on if a new plan is due, and note that it is being made."""
        if not self._plan_due:
            return None
        self._plan_due = False
        waiting = [run for run in self.state.runs.values() if run.state is RunState.QUEUED]
        now_ms = self._clock.now_ms()
        self._next_backoff_ms = min(
            (r.not_before_ms for r in waiting if r.not_before_ms > now_ms), default=None
        )
        if not waiting:
            self._refusals = {}
            return None
        return take_snapshot(self.state)

    def plan_again(self) -> None:
        """Note that the plan that was being made came to nothing."""
        self._plan_due = True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Make a plan. Pure but for the clock: may run on another thread."""
        return make_plan(snapshot, self._clock.now_ms())

    def refusal(self, run_id: int) -> Refusal | None:
        """Return why a waiting run was not placed by the newest plan."""
        run = self.state.runs.get(run_id)
        return self._refusals.get(run_id) if run is not None and run.state is RunState.QUEUED else None

    def take_state_snapshot(self) -> ClusterState:
        """Return a copy to be written as a snapshot off this thread."""
        self.events_since_snapshot = 0
        return self.state.copy()
