"""What must hold of every state, whatever happened: checked in simulation, in tests and by ``admin verify``.

Owns: the rules. Must not know: how the state came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airyard.core.deadlines import wait_end
from airyard.core.decide.verdicts import TEXT_EXCUSES
from airyard.core.run import Attempt, Outcome, Run, RunState
from airyard.core.state import ClusterState


def check(state: ClusterState) -> list[str]:
    """Return every violation in words; an empty list is a sound state."""
    of_runs = (text for run in state.runs.values() for text in _run(run))
    return [*_index(state), *_devices(state), *_ports(state), *of_runs]


def _index(state: ClusterState) -> Iterator[str]:
    wrong = [node.name for node in state.nodes.values() if node.cordoned != (node.name in state.cordons)]
    if wrong:
        yield f"nodes {sorted(wrong)} are shown cordoned and have no cordon, or the other way round"
    begun = {run.run_id for run in state.runs.values() if run.attempts}
    if state.begun != begun:
        yield f"runs {sorted(state.begun ^ begun)} are indexed as having begun and have not, or the other way round"
    ends = [end for run in state.runs.values() if run.state is RunState.QUEUED and (end := wait_end(run))]
    if ends and (state.wait_ends_ms is None or state.wait_ends_ms > min(ends)[0]):
        yield f"no wait is said to end before {state.wait_ends_ms}, one ends at {min(ends)[0]}"
    queued = Counter((run.owner, run.project) for run in state.runs.values() if run.state is RunState.QUEUED)
    if state.queued != queued:
        yield f"{state.queued} runs are counted as queued, there are {dict(queued)}"


def _devices(state: ClusterState) -> Iterator[str]:
    holder: dict[tuple[str, int], str] = {}
    for _, attempt in state.live_attempts():
        for member in attempt.members:
            if member.released:
                continue
            for device in member.devices:
                other = holder.setdefault((member.node, device), str(attempt.key))
                if other != str(attempt.key):
                    yield f"device {device} of {member.node} is held by attempts {other} and {attempt.key}"
            if len({m.node for m in attempt.members}) != len(attempt.members):
                yield f"attempt {attempt.key} has two members on one node"


def _ports(state: ClusterState) -> Iterator[str]:
    seen: dict[tuple[str, int], str] = {}
    for _, attempt in state.live_attempts():
        place = attempt.members[0].machine, attempt.port
        other = seen.setdefault(place, str(attempt.key))
        if other != str(attempt.key):
            yield f"port {attempt.port} of {place[0]} is leased to attempts {other} and {attempt.key}"


def _run(run: Run) -> Iterator[str]:
    live = [attempt for attempt in run.attempts if attempt.live]
    if len(live) > 1 or (live and live[0] is not run.attempts[-1]):
        yield f"run {run.run_id} has {len(live)} live attempts, or one that is not its newest"
    if (run.state is RunState.ACTIVE) != bool(live):
        yield f"run {run.run_id} is {run.state.value} with {len(live)} live attempts"
    if (run.state is RunState.ENDED) != (run.outcome is not None):
        yield f"run {run.run_id} is {run.state.value} with outcome {run.outcome}"
    if [attempt.number for attempt in run.attempts] != list(range(len(run.attempts))):
        yield f"run {run.run_id} numbers its attempts {[attempt.number for attempt in run.attempts]}"
    if run.text_excuses > TEXT_EXCUSES:
        yield f"run {run.run_id} was excused {run.text_excuses} times on the word of its own output"
    for attempt in run.attempts:
        yield from _attempt(run, attempt)


def _attempt(run: Run, attempt: Attempt) -> Iterator[str]:
    if len(attempt.members) != run.workload.compute.nodes:
        yield f"attempt {attempt.key} has {len(attempt.members)} of {run.workload.compute.nodes} members"
    if not attempt.live and not all(member.released for member in attempt.members):
        yield f"attempt {attempt.key} has ended with members that hold devices"
    if attempt.live:
        if attempt.gone and (attempt.verdict_until_ms is None or attempt.judgement is not None):
            yield f"attempt {attempt.key} holds nothing, waits for no verdict, and has not ended"
        return
    exits = [member.exit for member in attempt.members]
    all_well = all(e is not None and e.cause is None and not e.stop_reason for e in exits)
    if attempt.outcome is Outcome.SUCCEEDED and not all_well:
        yield f"attempt {attempt.key} is SUCCEEDED although a member did not succeed"
    if attempt.outcome is not Outcome.SUCCEEDED and all_well:
        yield f"attempt {attempt.key} is {attempt.outcome} although every member succeeded"
