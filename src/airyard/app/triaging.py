"""Says why an attempt failed from its members' stored logs, their ends, and what monitors saw of its nodes.

Owns: what of the logs is read, which rank a line without one is of, which of the nodes' health is the attempt's.
Must not know: HTTP, what a line means (``core/triage``). Reading blocks; not for the loop's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airyard.core.decide.verdicts import EFFECTS
from airyard.core.health.facts import Component, HealthEvent, Source
from airyard.core.health.states import Hit
from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, Member
from airyard.core.state import ClusterState
from airyard.core.triage.beyond_logs import with_run
from airyard.core.triage.causes import FailureCause, FailureClass, Judgement
from airyard.core.triage.judging import RankExit, judge
from airyard.core.triage.reading import Findings, Reader
from airyard.ports.log_store import LogStore

MOST_OCTETS = 64 << 20
"""Of each member; of a longer log the end is read, which is where failures are."""
AT_END_OCTETS = 16 << 20
"""Of all members together, where somebody waits for the verdict."""
LEAST_OCTETS = 256 << 10
"""Of each member, however many there are."""
HEAD_OCTETS = 256 << 10
"""Of the beginning of each long log, for where its ranks run."""
OCTETS_A_LINE = 100
AFTER_MS = 60_000
"""What a monitor sees so long after an attempt's end may be of the attempt."""
_BLOCK = 1 << 20
_TEXT = (LogStream.STDOUT, LogStream.STDERR)
_UNSURE = frozenset({FailureClass.HARDWARE, FailureClass.DRIVER, FailureClass.NETWORK})
_CRASHES = frozenset({"process.crashed", "process.killed"})


@dataclass(slots=True)
class Evidence:
    """What an attempt's logs held. ``shortened``: members of whose log only a part was read."""

    findings: Findings = field(default_factory=Findings)
    shortened: list[int] = field(default_factory=list)


def triage(store: LogStore, attempt: Attempt, events: Sequence[HealthEvent] = ()) -> Judgement:
    """Judge an attempt afresh. Cost: some ten MB of log a second; about 64 MiB a member are read at most."""
    return judgement_of(read(store, attempt), attempt, events)


def share_of(attempt: Attempt) -> int:
    """Return how much of each member's log is read where somebody waits."""
    return max(AT_END_OCTETS // len(attempt.members), LEAST_OCTETS)


def read(store: LogStore, attempt: Attempt, most_octets: int = MOST_OCTETS) -> Evidence:
    """Read the logs of all members, of long ones the end: about ``most_octets`` of each."""
    evidence = Evidence()
    for member in attempt.members:
        found, whole = _read(store, attempt, member, most_octets)
        evidence.findings.merge(found)
        if not whole:
            evidence.shortened.append(member.index)
    return evidence


def verdict_of(evidence: Evidence, attempt: Attempt, events: Sequence[HealthEvent] = ()) -> FailureCause:
    """Judge what was read, with what monitors have seen by now."""
    exits = [exit_ for member in attempt.members if (exit_ := _exit(member)) is not None]
    nodes = {member.index: member.node for member in attempt.members}
    found = judge(
        evidence.findings, exits=exits, events=events, nodes=nodes, devices=_devices_of_nodes(attempt)
    )
    return with_run(found, attempt)


def _devices_of_nodes(attempt: Attempt) -> dict[str, tuple[int, ...]]:
    """Return the GPUs of each node as its member's processes count them; of a node with several members none."""
    once = Counter(member.node for member in attempt.members)
    return {member.node: member.devices for member in attempt.members if once[member.node] == 1}


def judgement_of(evidence: Evidence, attempt: Attempt, events: Sequence[HealthEvent] = ()) -> Judgement:
    """Return the verdict with what it rests on."""
    unclosed = [member.index for member in attempt.members if member.logs is None]
    gaps = []
    if unclosed:
        gaps.append(f"the end of the logs of {_nodes(unclosed)}")
    if evidence.shortened:
        gaps.append(f"the beginning of the logs of {_nodes(evidence.shortened)}, which are long")
    return Judgement(
        verdict=verdict_of(evidence, attempt, events),
        logs=len(attempt.members) - len(unclosed),
        members=len(attempt.members),
        missing=" and ".join(gaps),
    )


def _nodes(indexes: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:5])
    more = f" and {len(indexes) - 5} more" if len(indexes) > 5 else ""
    return f"node {shown}" if len(indexes) == 1 else f"nodes {shown}{more}"


def may_be_confirmed(verdict: FailureCause | None) -> bool:
    """Return whether it is worth while to wait for what monitors see: a fault of the machine may be behind it."""
    if verdict is None or verdict.confirmed:
        return False
    return verdict.failure_class in _UNSURE or verdict.rule in EFFECTS | _CRASHES


def health_events(state: ClusterState, attempt: Attempt) -> tuple[HealthEvent, ...]:
    """Return what monitors have reported of an attempt's nodes and devices while it held them, or shortly after."""
    ends_ms = [member.exit.at_ms for member in attempt.members if member.exit is not None]
    last_ms = max(ends_ms, default=attempt.placed_ms) + AFTER_MS
    return tuple(
        _event(state, member, hit)
        for member in attempt.members
        if (health := state.health.get(member.node)) is not None
        for hit in health.hits
        if attempt.placed_ms <= hit.at_ms <= last_ms and (hit.device is None or hit.device in member.devices)
    )


def _event(state: ClusterState, member: Member, hit: Hit) -> HealthEvent:
    node = state.nodes.get(member.node)
    uuids = {device.index: device.uuid for device in node.devices} if node is not None else {}
    fallback = Component.GPU if hit.device is not None else Component.HOST
    return HealthEvent(
        event_id=hit.event_id,
        rule=hit.rule,
        machine=member.machine,
        node=member.node,
        at_ms=hit.at_ms,
        component=hit.component or fallback,
        severity=hit.severity,
        source=Source.HOST if hit.confirmed else Source.JOB_LOG,
        message=hit.message,
        device=hit.device,
        device_uuid=uuids.get(hit.device, "") if hit.device is not None else "",
        confirmed=hit.confirmed,
        evidence=hit.evidence,
    )


def _is_rank(member: Member) -> bool:
    """Return whether its command is one process, which is a rank; more of them say their own in their lines."""
    return len(member.devices) <= 1


def _read(store: LogStore, attempt: Attempt, member: Member, most_octets: int) -> tuple[Findings, bool]:
    """Read one member's log, each stream by itself: their pieces are not lines of one text.

    Also returns whether all of it was read. A log with very long lines is left before its end.
    """
    key = attempt.member_key(member.index)
    octets = store.end(key).bytes
    begin = 0 if octets <= most_octets else store.seek_tail(key, most_octets // OCTETS_A_LINE)
    found = Findings()
    if begin:
        # Where ranks run is told as they start, long before a failure.
        head, _ = _findings(store, attempt, member, 0, HEAD_OCTETS)
        found.places += head.places
    said, whole = _findings(store, attempt, member, begin, 4 * most_octets)
    found.merge(said)
    return found, begin == 0 and whole


def _findings(
    store: LogStore, attempt: Attempt, member: Member, begin: int, most_octets: int
) -> tuple[Findings, bool]:
    """Read a log from a record on; also returns whether that came to its end."""
    rank = member.index if _is_rank(member) else None
    readers = {
        stream: Reader(f"node {member.index} {stream.name.lower()}", rank=rank, host=member.node)
        for stream in (*_TEXT, LogStream.AIRYARD)
    }
    left = most_octets
    for record_stream, data in _records(store, attempt, member, begin):
        if (reader := readers.get(record_stream)) is not None:
            reader.feed(data)
        left -= len(data)
        if left <= 0:
            break
    found = Findings()
    for stream, reader in readers.items():
        said = reader.findings()
        # Of the runner's own notes only whose process is whose: they speak of failures, too.
        found.merge(said if stream in _TEXT else Findings(places=said.places))
    return found, left > 0


def _records(
    store: LogStore, attempt: Attempt, member: Member, begin: int
) -> Iterator[tuple[LogStream, bytes]]:
    key = attempt.member_key(member.index)
    while records := store.read(key, begin, _BLOCK):
        for record in records:
            yield record.stream, record.payload
        begin = records[-1].next_seq


def _exit(member: Member) -> RankExit | None:
    exit_ = member.exit
    if exit_ is None or exit_.cause is None:
        return None
    return RankExit(
        rank=member.index if _is_rank(member) else None,
        code=exit_.code,
        signal=exit_.signal,
        at_ms=exit_.at_ms,
        out_of_memory=exit_.out_of_memory,
    )
