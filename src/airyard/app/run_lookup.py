"""Finds runs in the read tables by what people call them.

Owns: the reading of a run's reference, near misses. Must not know: HTTP, the state in memory. Blocks on the store.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace

from airyard.core.codec import decode
from airyard.core.errors import Conflict, Fix, NotFound, UserError
from airyard.core.run import Run
from airyard.ports.journal import RunRow
from airyard.ports.read_store import ReadStore, RunFilter

LIVE = ("QUEUED", "ACTIVE")
_LOOKED_THROUGH = 500
_MOST_LOOKED_AT = 10_000
Sight = Callable[[Run], bool]
"""Whether somebody may know of a run."""
_SHOWN = 10


def run_from(row: RunRow) -> Run:
    """Rebuild a run from its row."""
    return decode(Run, row.record)


def find_run(reads: ReadStore, ref: str, owner: str, *, sole: bool = False, sees: Sight | None = None) -> Run:
    """Return the run that ``ref`` names: a number, ``@last`` (of ``owner``), ``tag:k=v``, or a name.

    Of several runs of one name the newest live one is meant, else the newest; with ``sole`` none is. ``sees`` leaves
    out runs that are not to be known of, as if there were none; None leaves out nothing.
    Raises: NotFound with near misses; Conflict (``AMBIGUOUS``) when a tag fits several; UserError.
    """
    return run_from(find_row(reads, ref, owner, sole=sole, sees=sees))


def find_row(
    reads: ReadStore, ref: str, owner: str, *, sole: bool = False, sees: Sight | None = None
) -> RunRow:
    """Return the row of the run that ``ref`` names; see ``find_run``."""
    seen = _Seen(reads, sees)
    if ref.isascii() and ref.isdigit():
        return _by_number(seen, ref)
    if ref == "@last":
        found = seen.runs(RunFilter(owner=owner, limit=1))
        if not found:
            raise NotFound("there is no run yet", code="RUN_NOT_FOUND", fix=_how_to_run())
        return found[0]
    if ref.startswith("tag:"):
        return _by_tag(seen, ref)
    if ref.startswith("@"):
        raise UserError(f"{ref!r} names no run; `@last` is the newest one", code="BAD_REFERENCE")
    return _by_name(seen, ref, sole)


class _Seen:
    """The read tables without the runs that are not to be known of."""

    def __init__(self, reads: ReadStore, sees: Sight | None) -> None:
        self._reads, self._sees = reads, sees

    def run(self, run_id: int) -> RunRow | None:
        """Return one run."""
        row = self._reads.run(run_id)
        return row if row is None or self._sees is None or self._sees(run_from(row)) else None

    def runs(self, wanted: RunFilter) -> Sequence[RunRow]:
        """Return runs, newest first."""
        if self._sees is None:
            return self._reads.runs(wanted)
        found, _ = seen_rows(self._reads, wanted, self._sees)
        return found


def seen_rows(reads: ReadStore, wanted: RunFilter, sees: Sight) -> tuple[list[RunRow], int | None]:
    """Return the runs of a filter that may be seen, and behind which run to go on where not all were looked at.

    Cost: at most ``_MOST_LOOKED_AT`` rows, of which each is rebuilt.
    """
    found: list[RunRow] = []
    before, looked = wanted.before, 0
    while looked < _MOST_LOOKED_AT:
        rows = reads.runs(replace(wanted, before=before, limit=_LOOKED_THROUGH))
        for row in rows:
            if sees(run_from(row)):
                found.append(row)
                if len(found) == wanted.limit:
                    return found, None
        if len(rows) < _LOOKED_THROUGH:
            return found, None
        looked, before = looked + len(rows), rows[-1].run_id
    return found, before


def _by_number(reads: _Seen, ref: str) -> RunRow:
    number = int(ref) if len(ref) < 19 else -1
    row = reads.run(number) if number > 0 else None
    if row is not None:
        return row
    newest = reads.runs(RunFilter(limit=1))
    known = f"the newest is {newest[0].run_id}" if newest else "there is none yet"
    raise NotFound(
        f"there is no run {ref}; {known}",
        code="RUN_NOT_FOUND",
        fix=Fix(text="`airyard list` shows the runs", command="airyard list"),
        details={"newest": newest[0].run_id if newest else None},
    )


def _by_tag(reads: _Seen, ref: str) -> RunRow:
    key, sign, value = ref.removeprefix("tag:").partition("=")
    if not key or not sign:
        raise UserError(f"{ref!r} is not tag:key=value", code="BAD_REFERENCE")
    found = reads.runs(RunFilter(tags=((key, value),), limit=_SHOWN + 1))
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(f"no run has the tag {key}={value}", code="RUN_NOT_FOUND")
    raise _ambiguous(f"the tag {key}={value}", [row.run_id for row in found])


def _ambiguous(what: str, ids: list[int]) -> Conflict:
    more = " and more" if len(ids) > _SHOWN else ""
    return Conflict(
        f"{what} fits several runs: {', '.join(map(str, ids[:_SHOWN]))}{more}",
        code="AMBIGUOUS",
        details={"runs": ids[:_SHOWN]},
        fix="name one of them by its number",
    )


def _by_name(reads: _Seen, ref: str, sole: bool) -> RunRow:
    if sole:
        named = reads.runs(RunFilter(name=ref, limit=_SHOWN + 1))
        if len(named) > 1:
            raise _ambiguous(f"the name {ref!r}", [row.run_id for row in named])
    for states in (LIVE, ()):
        found = reads.runs(RunFilter(name=ref, states=states, limit=1))
        if found:
            return found[0]
    names = dict.fromkeys(row.name for row in reads.runs(RunFilter(limit=_LOOKED_THROUGH)))
    near = difflib.get_close_matches(ref, names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise NotFound(
        f"there is no run {ref!r}{hint}",
        code="RUN_NOT_FOUND",
        fix=Fix(text="`airyard list` shows the runs", command="airyard list"),
        details={"near": near},
    )


def _how_to_run() -> Fix:
    return Fix(text="submit one", command="airyard run -f workload.yaml")
