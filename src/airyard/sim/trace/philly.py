"""Reads a trace in four columns: ``submit_s,duration_s,gpus,team``, as CSV, plain or packed with xz or gzip.

Owns: that form, and how a number of GPUs becomes nodes. Must not know: the planner, Slurm.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from sys import intern

from airyard.sim.trace.lines import read_lines
from airyard.sim.trace.records import Trace, TraceOutcome, TraceRun
from airyard.sim.trace.refusal import Place, refused, shown, wrong_value
from airyard.sim.trace.tally import Left, Tally

COLUMNS = ("submit_s", "duration_s", "gpus", "team")
POOL = "gpu"
MOST_GPUS = 1_000_000
MOST_SECONDS = 1e11
_FORM = "Give a CSV file whose first line is `submit_s,duration_s,gpus,team`."


def read_philly(path: Path, *, gpus_per_node: int, pool: str = POOL) -> Trace:
    """Read a file; see ``parse_philly``. Raises: UserError for a file that cannot be read or is malformed."""
    return parse_philly(read_lines(path), str(path), gpus_per_node=gpus_per_node, pool=pool)


def parse_philly(lines: Iterable[str], source: str, *, gpus_per_node: int, pool: str = POOL) -> Trace:
    """Return the runs in order of submit; the team is the project and the user.

    A run of at most ``gpus_per_node`` GPUs is on one node. A larger one is on as few whole nodes as hold it, all
    with the same number of GPUs, rounded up: 12 GPUs are 6 on each of 2 nodes of 8. Where rounding adds GPUs the
    run is counted as not carried exactly. There is no yard: the trace does not say where the runs ran.
    Raises: UserError with file, line, column, value and what was expected.
    """
    if gpus_per_node < 1:
        raise wrong_value(Place(source="GPUs per node"), str(gpus_per_node), "a whole number, at least 1")
    tally = Tally()
    rows = sorted(_rows(lines, source, tally), key=lambda row: row[:2])
    if not rows:
        raise refused(Place(source=source), "has a header and no runs", fix=_FORM)
    runs = []
    for number, (submit_ms, _, duration_ms, gpus, team) in enumerate(rows, start=1):
        nodes = -(-gpus // gpus_per_node)
        if gpus % nodes:
            tally.add(Left.UNEVEN, f"{gpus} GPUs on {nodes} nodes")
        runs.append(
            TraceRun(
                run_id=number,
                submit_ms=submit_ms,
                begin_ms=submit_ms,
                duration_ms=duration_ms,
                devices_per_node=-(-gpus // nodes),
                nodes=nodes,
                project=team,
                user=team,
                experiment=team,
                pool=pool,
                outcome=TraceOutcome.UNKNOWN,
            )
        )
    return Trace(runs=tuple(runs), not_carried=tally.records())


_Row = tuple[int, int, int, int, str]
"""Submit in milliseconds, line, duration in milliseconds, GPUs, team."""


def _rows(lines: Iterable[str], source: str, tally: Tally) -> Iterator[_Row]:
    reader = csv.reader(lines, strict=True)
    index: dict[str, int] | None = None
    try:
        for fields in reader:
            place = Place(source=source, line=reader.line_num)
            if not any(field.strip() for field in fields):
                continue
            if index is None:
                index = _header(place, fields, tally)
                continue
            if len(fields) != len(index):
                problem = (
                    f"has {len(fields)} fields where the header names {len(index)}: {shown(','.join(fields))}"
                )
                raise refused(place, problem, fix="Correct the line.")
            row = _row(place, {name: fields[at].strip() for name, at in index.items()})
            if row[3]:
                yield row
            else:
                tally.add(Left.CPU_ONLY)
    except csv.Error as error:
        problem = f"is no CSV ({error})"
        raise refused(Place(source=source, line=reader.line_num), problem, fix=_FORM) from error
    if index is None:
        raise refused(Place(source=source), "is empty", fix=_FORM)


def _header(place: Place, fields: Sequence[str], tally: Tally) -> dict[str, int]:
    names = [field.strip().lower() for field in fields]
    if lacking := [name for name in COLUMNS if name not in names]:
        plural = "s" if len(lacking) > 1 else ""
        problem = f"lacks the column{plural} {', '.join(lacking)}: it reads {shown(','.join(fields))}"
        raise refused(place, problem, fix=_FORM)
    if len(set(names)) < len(names):
        raise refused(place, f"names a column twice: {shown(','.join(fields))}", fix=_FORM)
    tally.add_all(Left.COLUMNS, (name for name in names if name not in COLUMNS))
    return {name: at for at, name in enumerate(names)}


def _row(place: Place, values: dict[str, str]) -> _Row:
    submit_ms = _milliseconds(place, "submit_s", values)
    duration_ms = max(1, _milliseconds(place, "duration_s", values))
    gpus = values["gpus"]
    if not (gpus.isascii() and gpus.isdigit() and int(gpus[:12]) <= MOST_GPUS and len(gpus) < 12):
        expected = f"a whole number of GPUs from 0 to {MOST_GPUS:,}"
        raise wrong_value(Place(source=place.source, line=place.line, column="gpus"), gpus, expected)
    if not values["team"]:
        raise wrong_value(
            Place(source=place.source, line=place.line, column="team"), "", "the name of a team"
        )
    assert place.line is not None
    return submit_ms, place.line, duration_ms, int(gpus), intern(values["team"])


def _milliseconds(place: Place, column: str, values: dict[str, str]) -> int:
    text = values[column]
    try:
        seconds = float(text) if text.isascii() else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MOST_SECONDS:
        expected = "a number of seconds, not below zero"
        raise wrong_value(Place(source=place.source, line=place.line, column=column), text, expected)
    return round(seconds * 1000)
