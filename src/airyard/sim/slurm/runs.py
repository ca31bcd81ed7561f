"""Turns the jobs of a Slurm record into the runs of a trace.

Owns: what each field of a run is taken from. Must not know: the form of Slurm's output, where pools come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from airyard.core.workload import Priority
from airyard.sim.slurm.jobs import Job, last_on_gpus, started
from airyard.sim.slurm.sacct import Start
from airyard.sim.slurm.times import Limit
from airyard.sim.trace.records import TraceRun
from airyard.sim.trace.tally import Left, Tally

CLOCK_MS = 1000
"""Slurm counts whole seconds: a job that ended in the second of its start ran for one at most."""

USUAL_QOS = frozenset({"", "normal"})
UNKNOWN_ACCOUNT = "unknown"

PoolOf = Callable[[Start], str | None]
"""Names the pool of a start, None when no node given could serve it."""


def trace_runs(
    jobs: Iterable[Job], pool_of: PoolOf, classes: Mapping[str, Priority] | None, tally: Tally
) -> tuple[TraceRun, ...]:
    """Return the runs, numbered from 1 in the order of the jobs.

    ``classes`` gives the class of each QOS, None when the list of them is not there.
    """
    runs: list[TraceRun] = []
    for job in jobs:
        pool = pool_of(last_on_gpus(job))
        if pool is None:
            tally.add(Left.NO_POOL, last_on_gpus(job).partition)
            continue
        runs.append(_run(len(runs) + 1, job, pool, classes, tally))
    return tuple(runs)


def _run(number: int, job: Job, pool: str, classes: Mapping[str, Priority] | None, tally: Tally) -> TraceRun:
    first, last = started(job)[0], last_on_gpus(job)
    assert first.start_ms is not None
    submit = job[0].submit_ms
    begin = min(max(job[0].eligible_ms or submit, submit), first.start_ms)
    if begin > submit:
        tally.add(Left.LATE_ELIGIBLE)
    if not last.account:
        tally.add(Left.NO_ACCOUNT)
    return TraceRun(
        run_id=number,
        submit_ms=submit,
        begin_ms=begin,
        duration_ms=max(CLOCK_MS, sum(start.ran_ms for start in started(job))),
        devices_per_node=-(-last.gpus // last.nodes),
        nodes=last.nodes,
        project=last.account or UNKNOWN_ACCOUNT,
        user=last.user,
        experiment=last.experiment or last.job,
        pool=pool,
        limit_ms=_limit(last, tally),
        priority_class=_priority(last, classes, tally),
        really_waited_ms=first.start_ms - begin,
        really_started_ms=first.start_ms,
        really_ended_ms=job[-1].end_ms if job[-1].start_ms is not None else started(job)[-1].end_ms,
        outcome=job[-1].state.outcome,
        starts=len(started(job)),
        name=last.job,
    )


def _limit(start: Start, tally: Tally) -> int | None:
    if start.limit_ms is Limit.PARTITION:
        tally.add(Left.PARTITION_LIMITS, start.partition)
    return start.limit_ms if isinstance(start.limit_ms, int) else None


def _priority(start: Start, classes: Mapping[str, Priority] | None, tally: Tally) -> Priority:
    qos = start.qos.lower()
    if classes is None:
        if qos not in USUAL_QOS:
            tally.add(Left.QOS, start.qos)
        return Priority.NORMAL
    if qos and qos not in classes:
        tally.add(Left.UNKNOWN_QOS, start.qos)
    return classes.get(qos, Priority.NORMAL)
