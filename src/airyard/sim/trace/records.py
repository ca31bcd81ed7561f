"""What a recorded trace says, whatever file it came from: runs, the yard they ran in, and what was left out.

Owns: the frozen records that readers of traces fill and that the trace simulator replays.
Must not know: file formats, the planner, the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from airyard.core.workload import Priority


class TraceOutcome(StrEnum):
    """How a recorded run ended; ``UNKNOWN`` where the source does not say."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAILED = "NODE_FAILED"
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """One run as it was recorded: what it asked for, and how long it then ran.

    ``run_id`` is unique in its trace and counts from 1 in order of submit. Times are milliseconds; those of a
    Slurm record are Unix times, those of a trace that begins at zero are offsets from its first submit: a replay
    needs only their differences. ``begin_ms`` is when it might first have started (never before ``submit_ms``).
    ``duration_ms`` is the time it really ran, all its starts together, and at least 1. ``limit_ms`` is None where
    there was no limit or none is known. ``really_waited_ms`` counts from ``begin_ms`` to the first start
    ``really_started_ms``, and ``really_ended_ms`` is its last end; all three are None where the source does not
    say. ``starts`` is how often it really started (more than once when it was requeued). ``name`` is the job's
    id in its source (``123_4``), for people.
    """

    run_id: int
    submit_ms: int
    begin_ms: int
    duration_ms: int
    devices_per_node: int
    nodes: int
    project: str
    user: str
    experiment: str
    pool: str
    limit_ms: int | None = None
    priority_class: Priority = Priority.NORMAL
    really_waited_ms: int | None = None
    really_started_ms: int | None = None
    really_ended_ms: int | None = None
    outcome: TraceOutcome = TraceOutcome.UNKNOWN
    starts: int = 1
    name: str = ""

    @property
    def devices(self) -> int:
        """Devices that the run holds while it runs."""
        return self.devices_per_node * self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """One machine of a recorded yard, with devices of one model.

    Pools do not overlap: ``pool`` is where ``TraceRun.pool`` of the runs that it may serve points to.
    ``partitions`` are the names under which the source offered the node. ``model`` is written as the live yard
    writes it (``H100``), None where the source does not say. ``labels`` hold what placement uses (``fabric``,
    ``rack``) and whatever else the source gives. ``usable`` is False for a node that was down or drained when
    it was recorded.
    """

    name: str
    pool: str
    devices: int
    model: str | None
    cpus: int
    memory_bytes: int
    partitions: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    usable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProject:
    """Shares of one project. ``pool`` is None where they hold over all pools together.

    ``weight`` is relative to the other projects; ``guarantee`` and ``ceiling`` are devices, None where none is
    set; ``user_ceiling`` bounds the devices of each user of the project.
    """

    name: str
    pool: str | None = None
    weight: float = 1.0
    guarantee: int | None = None
    ceiling: int | None = None
    user_ceiling: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceYard:
    """Where the runs ran, as far as the source says."""

    nodes: tuple[TraceNode, ...] = ()
    projects: tuple[TraceProject, ...] = ()

    @property
    def devices(self) -> int:
        """Devices of the usable nodes."""
        return sum(node.devices for node in self.nodes if node.usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCarried:
    """What the source has and a trace cannot say: a word for it, how often it was met, and why it is left out.

    ``what`` is stable, for machines; ``why`` is a sentence, for people.
    """

    what: str
    count: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A whole trace: its runs in order of submit, then of number; the yard; and what could not be carried over."""

    runs: tuple[TraceRun, ...]
    yard: TraceYard = field(default_factory=TraceYard)
    not_carried: tuple[NotCarried, ...] = ()
