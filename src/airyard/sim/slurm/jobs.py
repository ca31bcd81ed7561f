"""Joins the starts of a job to one, and sets aside the jobs that a replay cannot use.

Owns: which records are one job, which of them say the same, what cannot be carried over.
Must not know: columns, pools, projects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from airyard.core.errors import UserError
from airyard.sim.slurm.sacct import COMMAND, Start
from airyard.sim.slurm.states import Stage
from airyard.sim.trace.refusal import Place, refused
from airyard.sim.trace.tally import Left, Tally

Job = Sequence[Start]
"""The records of one job in order of time: the last one ended, at least one started and held whole GPUs."""


def join(starts: Iterable[Start], source: str, tally: Tally) -> list[Job]:
    """Return the jobs that ran to an end on whole GPUs, in order of submit; the others are counted.

    Records are of one job when id, user and job name agree: numbers begin anew on some sites.
    Raises: UserError for records that contradict each other, and when nothing is left.
    """
    by_job: dict[tuple[str, str, str], list[Start]] = {}
    records = 0
    for start in starts:
        by_job.setdefault((start.job, start.user, start.experiment), []).append(start)
        records += 1
    if not records:
        raise refused(
            Place(source=source), "has a header and no jobs", fix=f"Choose a longer time: `{COMMAND}`."
        )
    heterogeneous: set[str] = set()
    jobs = []
    for found in by_job.values():
        job = list(_settled(found, source, tally))
        if not _usable(job, tally):
            continue
        _count(job, heterogeneous, tally)
        jobs.append(job)
    if not jobs:
        raise _nothing_left(source, tally)
    tally.add_all(Left.HETEROGENEOUS, sorted(heterogeneous))
    return sorted(jobs, key=lambda job: (job[0].submit_ms, job[0].line))


def started(job: Job) -> list[Start]:
    """Return the records with a start."""
    return [start for start in job if start.start_ms is not None]


def last_on_gpus(job: Job) -> Start:
    """Return the last start that held whole GPUs: it says what the run asks for."""
    return [start for start in started(job) if start.gpus][-1]


def _settled(found: list[Start], source: str, tally: Tally) -> Iterator[Start]:
    """Yield one record for each start, in order of time; repeated ones (exports that overlap) are counted."""
    found.sort(key=lambda start: (start.submit_ms, start.start_ms or 0, start.line))
    kept: list[Start] = []
    for _, same_submit in groupby(found, key=lambda start: start.submit_ms):
        group = list(same_submit)
        over = [start for start in group if start.state.stage is not Stage.LIVE]
        # Of an export made while the job waited or ran, only the newest word counts.
        settled = _distinct(over, source) if over else group[-1:]
        if repeated := len(group) - len(settled):
            tally.add(Left.REPEATED_RECORDS, count=repeated)
        kept += settled
    for before, after in pairwise(started(kept)):
        if before.end_ms is not None and after.start_ms is not None and after.start_ms < before.end_ms:
            problem = f"says that job {after.job} started before its start in line {before.line} had ended"
            raise refused(
                Place(source=source, line=after.line), problem, fix="Correct or remove one of the lines."
            )
    yield from kept


def _distinct(group: list[Start], source: str) -> list[Start]:
    kept: dict[int | None, Start] = {}
    for start in group:
        earlier = kept.setdefault(start.start_ms, start)
        if earlier is not start and _facts(earlier) != _facts(start):
            problem = f"tells another story of job {start.job} than line {earlier.line}, with the same Submit and Start"
            raise refused(
                Place(source=source, line=start.line),
                problem,
                fix="Remove one of the lines; the file may be two in one.",
            )
    return list(kept.values())


def _facts(start: Start) -> tuple[object, ...]:
    return (start.state, start.end_ms, start.ran_ms, start.nodes, start.gpus, start.partition, start.account)


def _usable(job: Job, tally: Tally) -> bool:
    """Decide whether the job can be replayed; the reason is counted when it cannot."""
    last = job[-1]
    reason: Left | None = None
    if last.state.stage is Stage.ELSEWHERE:
        reason = Left.REVOKED
    elif not any(start.gpus for start in job):
        if any(start.parts for start in job):
            reason = Left.GPU_PARTS
        elif any(start.resources_known for start in job):
            reason = Left.CPU_ONLY
    if reason is None and not (last.state.stage is Stage.ENDED and last.end_ms is not None):
        reason = Left.NOT_ENDED
    if reason is None and not any(start.gpus for start in started(job)):
        reason = Left.NEVER_STARTED
    if reason is None and _early(job):
        tally.add(Left.EARLY_STARTS, f"line {job[0].line}")
        return False
    if reason is not None:
        tally.add(reason)
    return reason is None


def _early(job: Job) -> bool:
    return any(start.start_ms is not None and start.start_ms < start.submit_ms for start in job)


def _count(job: Job, heterogeneous: set[str], tally: Tally) -> None:
    """Count what of a job that is carried over gets lost."""
    last = last_on_gpus(job)
    if (restarts := len(started(job)) - 1) > 0:
        tally.add(Left.REQUEUES, count=restarts)
    if len({(start.gpus, start.nodes) for start in started(job)}) > 1:
        tally.add(Left.RESIZED, last.job)
    if last.het is not None:
        heterogeneous.add(last.het)
    if any(start.suspended_ms for start in job):
        tally.add(Left.SUSPENDED, last.job)
    if last.gpus % last.nodes:
        tally.add(Left.UNEVEN, last.job)
    if len(last.held.types) > 1:
        tally.add(Left.MIXED_TYPES, last.job)
    if last.held.gpus > last.asked.gpus > 0:
        tally.add(Left.EXCLUSIVE)
    if last.constrained:
        tally.add(Left.CONSTRAINTS)
    if last.reservation:
        tally.add(Left.RESERVATIONS, last.reservation)
    if last.licensed:
        tally.add(Left.LICENCES)


def _nothing_left(source: str, tally: Tally) -> UserError:
    counts = ", ".join(f"{left.count} {left.what}" for left in tally.records())
    return refused(
        Place(source=source),
        f"has no job that ran to an end on whole GPUs ({counts})",
        fix="Slurm records GPUs only where slurm.conf says AccountingStorageTRES=gres/gpu. Choose a longer time if the"
        f" jobs have not ended: `{COMMAND}`.",
    )
