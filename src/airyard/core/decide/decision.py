"""What a decision is, and the draft in which one is made.

Owns: Decision, the replies, the draft that lets a rule see its own earlier events. Must not know: any rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from airyard.core.actions import Action
from airyard.core.events import Event, Recorded, RunEvent
from airyard.core.evolve import evolve
from airyard.core.policy import Reservation
from airyard.core.policy_diff import Change
from airyard.core.policy_rules import Problem
from airyard.core.run import Run
from airyard.core.state import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The run that a submit made, or the one its key had made before."""

    run_id: int
    existing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What a cancel found."""

    run_id: int
    already_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Reports up to ``number`` are settled. ``over``: the attempt is not known (any more)."""

    number: int
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """Which fields of a run an update changed; none when all of it was so already."""

    run_id: int
    changed: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """The reservation that was made, and what it will mean for runs on its nodes."""

    reservation: Reservation
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNote:
    """What an operator's word meant for one node (or machine); not ``changed``: it was so already."""

    node: str
    changed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A run on drained nodes: when it is asked to leave, or was, and when it is made to at the latest."""

    run_id: int
    owner: str
    nodes: tuple[str, ...]
    asked_ms: int
    gone_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """What an operator's word meant for each node that it named, and for the runs there."""

    notes: tuple[NodeNote, ...]
    leaving: tuple[Leaving, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Nothing to say but that it was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a declared policy changes (or, of a dry run, would), and what is doubtful about it."""

    changes: tuple[Change, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def changed(self) -> bool:
        """True when it is not what was declared before."""
        return bool(self.changes)


Reply = Submitted | Cancelled | Acknowledged | Declared | Updated | Reserved | Operated | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Facts to journal, effects to carry out after the commit, and the answer to give after it."""

    events: tuple[Event, ...] = ()
    actions: tuple[Action, ...] = ()
    reply: Reply = field(default_factory=Done)


@dataclass(slots=True, kw_only=True)
class Draft:
    """A decision about one run while it is made: later rules see the run as earlier events left it."""

    state: ClusterState
    now_ms: int
    run: Run
    events: list[Event] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def emit(self, event: RunEvent) -> None:
        """Add a fact about the run. Raises: IllegalTransition if it contradicts the run."""
        self.run = evolve(self.run, event, self.now_ms)
        self.events.append(event)

    def act(self, action: Action) -> None:
        """Ask for an effect."""
        self.actions.append(action)

    def decision(self, reply: Reply | None = None) -> Decision:
        """Close the draft."""
        return Decision(events=tuple(self.events), actions=tuple(self.actions), reply=reply or Done())


@dataclass(slots=True, kw_only=True)
class Scratch:
    """A copy of the state that takes in decisions one by one, for a command that touches a run several times."""

    state: ClusterState
    now_ms: int
    events: list[Event]
    actions: list[Action]

    def take(self, decision: Decision) -> None:
        """Add a decision and let the copy see its events."""
        for event in decision.events:
            recorded = Recorded(
                seq=self.state.seq + 1, at_ms=self.now_ms, epoch=self.state.epoch, event=event
            )
            self.state.apply(recorded)
        self.events.extend(decision.events)
        self.actions.extend(decision.actions)
