"""Reads the records of ``sacct --parsable2``: one for each start of each job.

Owns: the columns, their forms and what contradicts itself within a line; passing over job steps.
Must not know: which records make one job, pools, projects.
Source: sacct(1), Job Accounting Fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern

from airyard.core.errors import UserError
from airyard.sim.slurm.hostlists import first_host
from airyard.sim.slurm.states import Stage, State, state
from airyard.sim.slurm.table import Row, Table, open_table
from airyard.sim.slurm.times import Limit, duration_ms, limit_ms, seconds_ms, time_ms
from airyard.sim.slurm.tres import Resources, resources
from airyard.sim.trace.refusal import Place, refused, wrong_value
from airyard.sim.trace.tally import Left, Tally

NEEDED = ("JobID", "User", "Account", "Partition", "State", "Submit", "Start", "End", "AllocTRES")
USED = (
    "QOS", "Eligible", "ElapsedRaw", "Suspended", "Timelimit", "NNodes", "ReqTRES", "NodeList", "Constraints",
    "Reservation", "JobName",
)  # fmt: skip
_ALSO_READ = ("Cluster", "Elapsed", "TimelimitRaw", "AllocNodes", "ReqNodes", "Licenses")
COMMAND = (
    "TZ=UTC sacct -a -X -D --parsable2 -S 2026-01-01 -E now -o JobID,User,Account,Partition,QOS,State,Submit,Eligible,"
    "Start,End,ElapsedRaw,Suspended,Timelimit,NNodes,ReqTRES,AllocTRES,NodeList,Constraints,Reservation,JobName"
)
"""Prints all that is read; UTC, because a change of the clock makes times run backwards; the free text last."""

_JOB_ID = re.compile(r"(?P<job>(?P<number>\d+)(?:_\d+|_\[.*|\+\d+)?)(?P<step>\..+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One record: a start of a job, or a job that has not started (``start_ms`` is None).

    ``job`` is the id as sacct shows it (``123_4``); ``het`` is the number of its heterogeneous job. Times are
    Unix milliseconds. ``ran_ms`` excludes suspension.
    """

    line: int
    job: str
    het: str | None
    user: str
    account: str
    partition: str
    qos: str
    experiment: str
    state: State
    submit_ms: int
    eligible_ms: int | None
    start_ms: int | None
    end_ms: int | None
    ran_ms: int
    suspended_ms: int
    limit_ms: int | Limit
    nodes: int
    held: Resources
    asked: Resources
    resources_known: bool
    first_node: str | None
    constrained: bool
    reservation: str
    licensed: bool

    @property
    def gpus(self) -> int:
        """Whole GPUs: those it held, else those it asked for (no ``AllocTRES`` before the start)."""
        return self.held.gpus or (0 if self.held.parts else self.asked.gpus)

    @property
    def parts(self) -> int:
        """MIG slices and shares of GPUs."""
        return self.held.parts or self.asked.parts


def read_starts(lines: Iterable[str], source: str, tally: Tally) -> Iterator[Start]:
    """Yield the records of jobs in the order of the file; what is passed over is counted.

    Raises: UserError with file, line, column, value and what was expected.
    """
    table = open_table(
        lines,
        source,
        marks=("JobID",),
        command=COMMAND,
        repeated_header=lambda: tally.add(Left.REPEATED_HEADERS),
    )
    table.require(*NEEDED)
    known = {name.lower() for name in (*NEEDED, *USED, *_ALSO_READ)}
    tally.add_all(Left.COLUMNS, (name for name in table.names if name.lower() not in known))
    reader = _Reader(table, tally)
    for row in table.rows():
        if (start := reader.start(row)) is not None:
            yield start


class _Reader:
    """Turns rows into records; equal texts are parsed and kept once."""

    def __init__(self, table: Table, tally: Tally) -> None:
        self._table = table
        self._tally = tally
        self._resources: dict[str, Resources] = {}
        self._clusters: dict[str, int] = {}

    def start(self, row: Row) -> Start | None:
        """Return the record of a row; None for a step."""
        match = _JOB_ID.fullmatch(row.get("JobID"))
        if match is None:
            raise wrong_value(row.place("JobID"), row.get("JobID"), "a job id like 123, 123_4 or 123+0")
        if match["step"] is not None:
            self._tally.add(Left.STEPS)
            return None
        self._check_cluster(row)
        place, words = row.place("State"), row.get("State")
        status = state(place, words)
        if not status.known:
            self._tally.add(Left.STATES, words)
        held = self._read(row, "AllocTRES")
        asked = self._read(row, "ReqTRES")
        began, ended, ran = self._span(row, status, held)
        submit = time_ms(row.place("Submit"), row.get("Submit"))
        if submit is None:
            raise wrong_value(row.place("Submit"), row.get("Submit"), "a time like 2026-03-01T08:00:00")
        suspended = row.get("Suspended")
        return Start(
            line=row.line,
            job=match["job"],
            het=match["number"] if "+" in match["job"] else None,
            user=intern(row.get("User") or "unknown"),
            account=intern(row.get("Account")),
            partition=intern(row.get("Partition")),
            qos=intern(row.get("QOS")),
            experiment=intern(row.get("JobName")),
            state=status,
            submit_ms=submit,
            eligible_ms=time_ms(row.place("Eligible"), row.get("Eligible")),
            start_ms=began,
            end_ms=ended,
            ran_ms=ran,
            suspended_ms=duration_ms(row.place("Suspended"), suspended) if suspended else 0,
            limit_ms=_limit(row),
            nodes=_nodes(row, held, asked),
            held=held,
            asked=asked,
            resources_known=bool(row.get("AllocTRES") or row.get("ReqTRES")),
            first_node=_first_node(row),
            constrained=bool(row.get("Constraints")),
            reservation=intern(row.get("Reservation")),
            licensed=bool(held.licences or asked.licences or row.get("Licenses")),
        )

    def _read(self, row: Row, column: str) -> Resources:
        text = row.get(column)
        found = self._resources.get(text)
        if found is None:
            found = self._resources[text] = resources(row.place(column), text)
        return found

    def _span(self, row: Row, status: State, held: Resources) -> tuple[int | None, int | None, int]:
        """Return start, end and the time that it ran."""
        began = time_ms(row.place("Start"), row.get("Start"))
        ended = time_ms(row.place("End"), row.get("End"))
        column, text = row.first("ElapsedRaw", "Elapsed")
        elapsed = None
        if text:
            elapsed = (seconds_ms if column == "ElapsedRaw" else duration_ms)(row.place(column), text)
        # A job cancelled while it waited has no allocation; some versions of Slurm give it a start all the same.
        if began is None or (not row.get("AllocTRES") and not elapsed):
            return None, ended, 0
        if ended is not None and ended < began and status.stage is not Stage.LIVE:
            raise self._backwards(row)
        if elapsed is None:
            elapsed = ended - began if ended is not None else 0
        return began, ended, elapsed

    def _backwards(self, row: Row) -> UserError:
        return wrong_value(
            row.place("End"),
            row.get("End"),
            f"an end at or after Start ({row.get('Start')})",
            fix=f"If the clock was set back on that day, print the times in UTC: `{COMMAND}`. Else correct the line.",
        )

    def _check_cluster(self, row: Row) -> None:
        """Refuse records of a second cluster: job numbers of two clusters say nothing to each other."""
        cluster = row.get("Cluster")
        if not cluster or cluster in self._clusters:
            return
        self._clusters[cluster] = row.line
        if len(self._clusters) > 1:
            first, line = next(iter(self._clusters.items()))
            problem = f"is of cluster {cluster}, line {line} of cluster {first}"
            raise refused(
                row.place("Cluster"), problem, fix=f"Print one cluster at a time: sacct -M {first} ..."
            )


def _limit(row: Row) -> int | Limit:
    column, text = row.first("Timelimit", "TimelimitRaw")
    return limit_ms(row.place(column), text, in_minutes=column == "TimelimitRaw")


def _nodes(row: Row, held: Resources, asked: Resources) -> int:
    if held.nodes:
        return held.nodes
    for column in ("NNodes", "AllocNodes", "ReqNodes"):
        if text := row.get(column):
            number = _node_count(row.place(column), text)
            if number:
                return number
    return asked.nodes or 1


def _node_count(place: Place, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise wrong_value(place, text, "a number of nodes, not below zero")
    return int(text)


def _first_node(row: Row) -> str | None:
    name = first_host(row.place("NodeList"), row.get("NodeList"))
    return intern(name) if name is not None else None
