"""A deep test in parts: which comes next, what all of them come to. One that made room goes on where it was.

Owns: which parts count still, when the whole is known. Must not know: what a part tests, who runs it.
A part counts for a day, with the boot that it was tested with, and not where a suspicion is younger.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.core.health.facts import CheckStatus
from airyard.core.health.idle import DEEP_EVERY_MS, IdleTest
from airyard.core.health.idle_records import TestNote

FRESH_MS = DEEP_EVERY_MS
_SAID = 5
_CHARACTERS = 500


def fresh(done: Sequence[TestNote], version: str, now_ms: int, *, since_ms: int = 0) -> dict[str, TestNote]:
    """Return the parts that count, by name. ``since_ms``: what was begun before that says nothing of what is asked."""
    return {
        note.part: note
        for note in done
        if note.version == version and now_ms - note.at_ms < FRESH_MS and _began_ms(note) >= since_ms
    }


def next_part(
    parts: Sequence[str], done: Sequence[TestNote], version: str, now_ms: int, *, since_ms: int = 0
) -> str:
    """Return the part to test now: the first that does not count; the first of all where all do."""
    known = fresh(done, version, now_ms, since_ms=since_ms)
    return next((part for part in parts if part not in known), parts[0])


def whole(done: Sequence[TestNote], newest: TestNote, *, since_ms: int = 0) -> TestNote | None:
    """Return what the deep test came to with its newest part; None while parts are missing.

    A part that failed decides at once. The whole began with its oldest part.
    """
    if newest.status is CheckStatus.FAIL:
        return _told([newest], newest, CheckStatus.FAIL, newest.message)
    known = fresh(done, newest.version, newest.at_ms, since_ms=since_ms)
    if not newest.parts or any(part not in known for part in newest.parts):
        return None
    notes = [known[part] for part in newest.parts]
    unknown = [f"{note.part}: {note.message}" for note in notes if note.status is not CheckStatus.PASS]
    if unknown:
        more = f"; {len(unknown) - _SAID} more" if len(unknown) > _SAID else ""
        return _told(notes, newest, CheckStatus.UNKNOWN, f"{'; '.join(unknown[:_SAID])}{more}"[:_CHARACTERS])
    return _told(notes, newest, CheckStatus.PASS, f"{len(notes)} parts passed, none failed")


def _told(notes: Sequence[TestNote], newest: TestNote, status: CheckStatus, message: str) -> TestNote:
    values: dict[str, float] = {}
    for note in notes:
        values |= note.values
    return TestNote(
        kind=IdleTest.DEEP,
        at_ms=newest.at_ms,
        status=status,
        message=message,
        version=newest.version,
        took_ms=newest.at_ms - min(_began_ms(note) for note in notes),
        values=values,
    )


def _began_ms(note: TestNote) -> int:
    return note.at_ms - note.took_ms
