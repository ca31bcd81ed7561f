"""Says why an attempt failed from its members' stored logs and their ends.

Owns: what of the logs is read, and which rank a line without one is of. Must not know: HTTP, what a line means
(``core/triage``). Blocks; not for the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from airyard.core.log_frames import LogStream
from airyard.core.run import Attempt, Member
from airyard.core.triage.causes import FailureCause
from airyard.core.triage.judging import RankExit, judge
from airyard.core.triage.reading import Findings, Reader
from airyard.ports.log_store import LogStore

MOST_OCTETS = 64 << 20
"""Of each member; of a longer log the end is read, which is where failures are."""
LAST_LINES = 200_000
_BLOCK = 4 << 20
_TEXT = (LogStream.STDOUT, LogStream.STDERR)


def triage(store: LogStore, attempt: Attempt) -> FailureCause:
    """Return the verdict on an attempt. Cost: some ten MB of log a second; at most 64 MiB a member are read."""
    found = Findings()
    for member in attempt.members:
        found.merge(_read(store, attempt, member))
    exits = [exit_ for member in attempt.members if (exit_ := _exit(member)) is not None]
    return judge(found, exits=exits, nodes={member.index: member.node for member in attempt.members})


def _read(store: LogStore, attempt: Attempt, member: Member) -> Findings:
    """Read one member's log, each stream by itself: their pieces are not lines of one text."""
    key = attempt.member_key(member.index)
    begin = 0 if store.end(key).bytes <= MOST_OCTETS else store.seek_tail(key, LAST_LINES)
    # A member whose command is one process is a rank; more of them say their own in their lines.
    rank = member.index if len(member.devices) <= 1 else None
    readers = {
        stream: Reader(f"node {member.index} {stream.name.lower()}", rank=rank, host=member.node)
        for stream in _TEXT
    }
    for record_stream, data in _records(store, attempt, member, begin):
        if (reader := readers.get(record_stream)) is not None:
            reader.feed(data)
    found = Findings()
    for reader in readers.values():
        found.merge(reader.findings())
    return found


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
        rank=member.index,
        code=exit_.code,
        signal=exit_.signal,
        at_ms=exit_.at_ms,
        out_of_memory=exit_.out_of_memory,
    )
