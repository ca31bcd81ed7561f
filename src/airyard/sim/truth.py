"""What is really so in the simulated world, and the promises that are checked against it at every step.

Owns: a shadow state fed only with what the journal took in, the processes that really run, their real ends.
Must not know: how the control plane comes to its decisions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airyard.core import codec, events, invariants
from airyard.core.actions import StartMember
from airyard.core.events import Recorded
from airyard.core.ids import MemberKey
from airyard.core.run import MemberPhase, Outcome, Run, RunState, StopReason
from airyard.core.state import ClusterState
from airyard.sim.process import SimTree
from airyard.sim.promises import Promises
from airyard.sim.setting import Broken, Setting

WAKING_MS = 1_000
"""A machine that was suspended needs a moment after it wakes to end what should have ended in its sleep."""
RealEnd = tuple[int | None, int | None, bool]
"""Exit code, signal, and whether anybody had signalled or killed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """A member that has processes. ``is_guarded``: somebody of ours is there to end them."""

    action: StartMember
    tree: SimTree
    is_guarded: Callable[[], bool]


class Truth:
    """The witness."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.promises = Promises(calm=setting.chance.calm)
        self._hash = hashlib.sha256()
        self.state = ClusterState()
        self.logs: dict[MemberKey, int] = {}
        self.ended: dict[int, Run] = {}
        self.hung: set[int] = set()
        self._holders: dict[tuple[str, int], MemberKey] = {}
        self._trees: dict[MemberKey, Living] = {}
        self._doubled: set[int] = set()
        """Runs of which more than one attempt has processes at the moment."""
        self._promised_ms: dict[MemberKey, int] = {}
        self._away_since_ms: int | None = None
        self._ends: dict[MemberKey, RealEnd] = {}

    @property
    def journal_hash(self) -> str:
        """SHA-256 over everything journalled so far."""
        return self._hash.hexdigest()

    @property
    def live_trees(self) -> list[MemberKey]:
        """Members that have a process."""
        return list(self._trees)

    # --- the journal

    def journalled(self, batch: Sequence[Recorded]) -> list[Recorded]:
        """Take a durable batch in, through the codec as a real journal would; return it as read back."""
        out = []
        for recorded in batch:
            kind, tree = codec.encode_event(recorded.event)
            line = json.dumps([recorded.seq, recorded.at_ms, recorded.epoch, kind, tree], sort_keys=True)
            self._hash.update(line.encode())
            event = codec.decode_event(kind, json.loads(line)[4])
            if event != recorded.event:
                raise Broken(f"event {recorded.seq} {kind} reads back differently: {event}")
            again = Recorded(seq=recorded.seq, at_ms=recorded.at_ms, epoch=recorded.epoch, event=event)
            self._before(event, recorded.at_ms)
            self.state.apply(again)
            self._after(event)
            self.promises.after(self.state, event, recorded.at_ms)
            self._setting.trace("journal", f"{recorded.seq} {kind} {_gist(event)}")
            out.append(again)
        if batch:
            living = (living.action for living in self._trees.values())
            self.promises.held_at(self.state, living, batch[-1].at_ms)
        problems = invariants.check(self.state)
        if problems:
            raise Broken("; ".join(problems))
        return out

    def _before(self, event: events.Event, at_ms: int) -> None:
        if isinstance(event, events.AttemptPlaced):
            self.promises.placed(self.state, event, at_ms)
        elif isinstance(event, events.RunArchived):
            self.ended[event.run_id] = self.state.runs[event.run_id]
        elif isinstance(event, events.AttemptReleased):
            attempt = self.state.runs[event.run_id].attempts[event.attempt]
            phases = [member.phase for member in attempt.members]
            if any(phase is not MemberPhase.READY for phase in phases):
                raise Broken(f"GO for attempt {attempt.key} with members {[p.value for p in phases]}")
        elif isinstance(event, events.MemberExited | events.MemberLost):
            key = MemberKey(event.run_id, event.attempt, event.member)
            if self._lives_on(key, event):
                raise Broken(f"{type(event).__name__}: devices of {key} are given free, its processes live")
        elif isinstance(event, events.MemberLogsClosed):
            key = MemberKey(event.run_id, event.attempt, event.member)
            if event.logs.last_seq > self.logs.get(key, -1):
                raise Broken(f"the log of {key} is closed at {event.logs.last_seq}, the server lacks the end")

    def _after(self, event: events.Event) -> None:
        seen = self._setting.chance.seen
        seen[f"event: {type(event).__name__}"] += 1
        if isinstance(event, events.AttemptEnded):
            seen[f"attempt: {event.outcome.value}"] += 1
            seen[f"cause: {event.cause.value if event.cause else 'none'}"] += 1
            self._judgement(event)
        elif isinstance(event, events.RunEnded):
            seen[f"run: {event.outcome.value}"] += 1
        elif isinstance(event, events.StopOrdered):
            seen[f"stop: {event.stop.reason.value}"] += 1
            self._lateness(event)
        elif isinstance(event, events.NodeCordoned):
            seen[f"cordon: by {event.by}"] += 1

    def _lateness(self, event: events.StopOrdered) -> None:
        """No start, report or GO may be lost for half an hour: each is made again long before."""
        run = self.state.runs[event.run_id]
        late = event.stop.reason is StopReason.NOT_READY and run.workload.timeouts.environment_s is None
        if late and event.run_id not in self.hung:
            raise Broken(f"attempt {event.run_id}.{event.attempt} was not ready in time, and nothing hung")

    def _judgement(self, event: events.AttemptEnded) -> None:
        """Compare the verdict on a gang with what its processes really did."""
        attempt = self.state.runs[event.run_id].attempts[event.attempt]
        ends = [self._ends.get(attempt.member_key(member.index)) for member in attempt.members]
        well = all(end is not None and end == (0, None, False) for end in ends)
        if event.outcome is Outcome.SUCCEEDED and not well:
            raise Broken(f"attempt {attempt.key} SUCCEEDED, its processes ended with {ends}")
        told = attempt.stop is not None or any(
            member.exit is None or member.exit.stop_reason or member.phase is MemberPhase.LOST
            for member in attempt.members
        )
        if event.outcome is not Outcome.SUCCEEDED and well and not told:
            raise Broken(f"attempt {attempt.key} is {event.outcome.value}, all its processes ended well")

    # --- processes

    def launched(
        self, action: StartMember, tree: SimTree, is_guarded: Callable[[], bool], *, stop_heard: bool
    ) -> None:
        """A member's command starts now."""
        key = action.key
        if stop_heard:
            raise Broken(f"{key} is launched after it was told to stop")
        found = self.state.member(key)
        if found is None or not any(order.kind == "GO" for order in found[1].orders):
            raise Broken(f"{key} is launched without GO")
        if key in self._ends or key in self._trees:
            raise Broken(f"{key} is launched twice")
        for device in action.devices:
            other = self._holders.get((action.node, device))
            if other is not None:
                raise Broken(f"{key} is launched on device {device} of {action.node}, where {other} lives")
            self._holders[action.node, device] = key
        self._trees[key] = Living(action=action, tree=tree, is_guarded=is_guarded)
        if any(other.run_id == key.run_id and other.attempt != key.attempt for other in self._trees):
            self._doubled.add(key.run_id)

    def exited(self, key: MemberKey, code: int | None, signal: int | None, *, touched: bool) -> None:
        """A main process ended."""
        self._ends[key] = (code, signal, touched)

    def tree_gone(self, key: MemberKey) -> None:
        """Nothing of the member is left."""
        living = self._trees.pop(key, None)
        if living is not None:
            for device in living.action.devices:
                self._holders.pop((living.action.node, device), None)

    # --- the fence

    def look(self) -> None:
        """Look at every moment whether two attempts of one run are alive together."""
        for run_id in list(self._doubled):
            living = [key for key in self._trees if key.run_id == run_id]
            newest = max((key.attempt for key in living), default=0)
            older = [key for key in living if key.attempt != newest]
            if not older:
                self._doubled.discard(run_id)
            for key in older:
                if not self._is_excused(self._trees[key]):
                    raise Broken(f"{key} lives while attempt {newest} of its run does")

    def _lives_on(self, key: MemberKey, event: events.MemberExited | events.MemberLost) -> bool:
        """Return whether a member that is said to be gone has processes; those of a lost lease may be excused."""
        living = self._trees.get(key)
        by_lease = isinstance(event, events.MemberLost) and "the lease ran out" in event.exit.message
        if by_lease:
            self.note("fence: declared gone by its lease")
            if self._setting.chance.calm:
                raise Broken(f"{key} was declared gone by its lease in a world without faults")
        return living is not None and not (by_lease and self._is_excused(living))

    def _is_excused(self, living: Living) -> bool:
        """Return whether processes beyond their lease are nobody's fault.

        They do nothing while their machine sleeps, and it has just woken; or all that could have ended them died before
        the lease did: the runner and the agent.
        """
        now_ms = self._setting.time.now_ms()
        if now_ms < living.tree.asleep_until_ms + WAKING_MS and living.tree.asleep_until_ms:
            self.note("fence: a sleeping machine")
            return True
        if not living.is_guarded():
            self.note("fence: runner and agent gone at once")
            return True
        return False

    def held(self, keys: Iterable[MemberKey], until_ms: int) -> None:
        """A server stops as planned: these members must outlive its absence until then."""
        self._promised_ms = dict.fromkeys(keys, until_ms)

    def server_ends(self) -> None:
        """The leader is dead, or cut off from its journal."""
        if self._away_since_ms is None:
            self._away_since_ms = self._setting.time.now_ms()

    def server_begins(self) -> None:
        """Another server is there: what the last one promised binds no longer."""
        self._promised_ms = {}
        if self._away_since_ms is not None:
            self.promises.server_was_away(self._away_since_ms, self._setting.time.now_ms())
        self._away_since_ms = None

    def lease_ended(self, key: MemberKey) -> None:
        """A runner ends its member because its lease is over."""
        self.note("fence: a runner ended its member")
        if self._setting.time.now_ms() < self._promised_ms.get(key, 0):
            raise Broken(f"{key} was ended by its lease during a planned stop")

    def note(self, what: str) -> None:
        """Count what really happened."""
        self._setting.chance.seen[what] += 1

    # --- answers

    def acknowledged(self, key: MemberKey, reports: Sequence[Mapping[str, Any]], number: int) -> None:
        """The server says that it has these reports: the journal must show it."""
        found = self.state.member(key)
        if found is None:
            return
        member = found[2]
        kinds = {report["kind"] for report in reports if report["number"] <= number}
        if "EXITED" in kinds and not member.released:
            raise Broken(f"EXITED of {key} is acknowledged and not journalled")
        if "LOGS_CLOSED" in kinds and member.logs is None:
            raise Broken(f"LOGS_CLOSED of {key} is acknowledged and not journalled")

    def replayed(self, state: ClusterState) -> None:
        """A server's state must equal the journal's."""
        if state.to_json() != self.state.to_json():
            raise Broken("the server's state is not what its journal replays to")

    def unfinished(self) -> list[str]:
        """Say what is still owed: nothing, once a healed world has come to rest."""
        out = [
            f"run {run.run_id} is {run.state.value}"
            + (f", attempt {run.attempt.state.value}" if run.attempt else "")
            + (", ended but not archived" if run.state is RunState.ENDED else "")
            for run in self.state.runs.values()
        ]
        out += [f"processes of {key} live" for key in self._trees]
        return out


def _gist(event: events.Event) -> str:
    """Name what an event is about in a few words."""
    run = getattr(event, "run", None)
    run_id = getattr(event, "run_id", run.run_id if run is not None else None)
    if run_id is None:
        return str(
            getattr(event, "node", "") or getattr(event, "machine", "") or getattr(event, "epoch", "")
        )[:60]
    attempt = getattr(event, "attempt", None)
    number = getattr(attempt, "number", attempt)
    parts = [str(part) for part in (run_id, number, getattr(event, "member", None)) if part is not None]
    stop = getattr(event, "stop", None)
    outcome = getattr(event, "outcome", None)
    cause = getattr(event, "cause", None)
    words = [
        stop.reason.value if stop else "",
        outcome.value if outcome else "",
        cause.value if cause else "",
    ]
    return ".".join(parts) + " " + " ".join(word for word in words if word)
