"""How events and runs become table rows and come back.

Owns: the mapping, nothing else. Must not know: connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airyard.core.codec import decode_event, encode_event
from airyard.core.errors import Conflict, InvariantBroken
from airyard.core.events import Event, Recorded, RunResumed, RunSubmitted
from airyard.ports.journal import RunRow

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
to_text = _JSON.encode

RUN_COLUMNS = (
    "run_id",
    "version",
    "owner",
    "project",
    "name",
    "experiment",
    "state",
    "status",
    "accelerator",
    "submitted_ms",
    "ended_ms",
    "code_hash",
    "record",
)


def texts(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the JSON text of a tree piece by piece, the items of its lists and iterators one by one.

    Writing a large tree in one call would keep every other thread waiting until it is done.
    """
    before = "{"
    for name, value in tree.items():
        yield f"{before}{to_text(name)}:"
        before = ","
        if not isinstance(value, list | Iterator):
            yield to_text(value)
            continue
        opening = "["
        for item in value:
            yield opening + to_text(item)
            opening = ","
        yield "[]" if opening == "[" else "]"
    yield "{}" if before == "{" else "}"


def run_id_of(event: Event) -> int | None:
    """Return the run that an event is about, if it is about one."""
    if isinstance(event, RunSubmitted | RunResumed):
        return event.run.run_id
    return getattr(event, "run_id", None)


def event_row(recorded: Recorded) -> tuple[int, int, int, int | None, str, str]:
    """Return (seq, at_ms, epoch, run_id, kind, data)."""
    kind, tree = encode_event(recorded.event)
    return (
        recorded.seq,
        recorded.at_ms,
        recorded.epoch,
        run_id_of(recorded.event),
        kind,
        to_text(tree),
    )


def event_of(seq: int, at_ms: int, epoch: int, kind: str, data: str) -> Recorded:
    """Rebuild an event. Raises: InvariantBroken naming its seq."""
    try:
        tree = json.loads(data)
    except ValueError as error:
        raise InvariantBroken(f"event {seq} of the journal is no JSON: {error}", code="BAD_RECORD") from error
    return Recorded(seq=seq, at_ms=at_ms, epoch=epoch, event=decode_event(kind, tree))


def run_values(row: RunRow) -> tuple[Any, ...]:
    """Return the values of ``RUN_COLUMNS``."""
    return (
        row.run_id,
        row.version,
        row.owner,
        row.project,
        row.name,
        row.experiment,
        row.state,
        row.status,
        row.accelerator,
        row.submitted_ms,
        row.ended_ms,
        row.code_hash,
        to_text(row.record),
    )


def run_of(columns: Mapping[str, Any], tags: tuple[tuple[str, str], ...]) -> RunRow:
    """Rebuild a run from its columns and tags."""
    values = {name: columns[name] for name in RUN_COLUMNS if name != "record"}
    return RunRow(**values, tags=tags, record=json.loads(columns["record"]))


def stale_epoch(journal: str, *, last_seq: int, last_epoch: int, expected_seq: int, epoch: int) -> Conflict:
    """Say that another server has written to the journal since this one last did."""
    return Conflict(
        f"{journal} stands at event {last_seq} of epoch {last_epoch}; this server (epoch {epoch}) expected "
        f"event {expected_seq}. Another server has taken over.",
        code="STALE_EPOCH",
        fix="Stop this server; the other one goes on.",
        details={
            "last_seq": last_seq,
            "expected_seq": expected_seq,
            "last_epoch": last_epoch,
            "epoch": epoch,
        },
    )
