"""Decides what people and agents ask for: submit, cancel, resume, remove.

Owns: acceptance of runs, idempotency, and the refusals that are known at once. Must not know: the wire.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.commands import CancelRun, RemoveRun, ResumeRun, SubmitRun
from airyard.core.decide import admission, tokening
from airyard.core.decide.changing import check_begin
from airyard.core.decide.decision import Cancelled, Decision, Draft, Submitted
from airyard.core.decide.gang import advance
from airyard.core.errors import Conflict, Fix, NotFound, Unavailable, UserError
from airyard.core.events import (
    RunEnded,
    RunRemoved,
    RunResumed,
    RunSubmitted,
    StopOrdered,
)
from airyard.core.run import Cause, Failure, Outcome, Run, RunState, StopReason, StopRequest
from airyard.core.scheduling.feasible import impossible
from airyard.core.scheduling.plan import Reason, Refusal
from airyard.core.scheduling.snapshot import offers_of, waiting_of
from airyard.core.state import ClusterState
from airyard.core.workload import first_difference

MAX_RUNS_IN_MEMORY = 50_000
CANCEL_GRACE_S = 30


def submit(state: ClusterState, command: SubmitRun, now_ms: int) -> Decision:
    """Accept a run, or find the one that its key made.

    Raises: UserError when the yard could never place it; Conflict when the key stands for another workload;
    Unavailable when the queue is full; what ``admission`` refuses.
    """
    spec_hash = command.workload.spec_hash()
    noted = state.keys.get((command.owner, command.idempotency_key))
    if noted is not None:
        if noted.spec_hash == spec_hash:
            return Decision(reply=Submitted(run_id=noted.run_id, existing=True))
        raise key_conflict(state, command, noted.run_id)
    if len(state.runs) >= MAX_RUNS_IN_MEMORY:
        raise Unavailable(
            f"the queue is full: {len(state.runs)} runs are queued or active (limit {MAX_RUNS_IN_MEMORY})",
            code="QUEUE_FULL",
            retry_after_ms=60_000,
        )
    check_begin(command.begin_ms, now_ms)
    tokening.check_pays(state, command.token_id, gpus=not command.workload.compute.is_cpu, now_ms=now_ms)
    project = admission.admit(state, command.owner, command.workload, now_ms)
    run = _new_run(state.next_run_id, project, command, spec_hash, now_ms)
    refuse_impossible(state, run)
    return Decision(events=(RunSubmitted(run=run),), reply=Submitted(run_id=run.run_id, existing=False))


def key_conflict(state: ClusterState, command: SubmitRun, run_id: int) -> Conflict:
    """Describe the use of one key for two workloads, naming the first field in which they differ."""
    earlier = state.runs.get(run_id)
    field = first_difference(earlier.workload, command.workload) if earlier else None
    where = f" (first difference: {field})" if field else ""
    return Conflict(
        f"idempotency key {command.idempotency_key!r} already made run {run_id} from another workload{where}",
        code="IDEMPOTENCY_CONFLICT",
        details={"run_id": run_id, "field": field},
        fix="use another key for another workload, or submit the same one again",
    )


def _new_run(run_id: int, project: str, command: SubmitRun, spec_hash: str, now_ms: int) -> Run:
    workload = command.workload
    return Run(
        run_id=run_id,
        name=workload.name or workload.experiment,
        owner=command.owner,
        project=project,
        workload=workload,
        spec_hash=spec_hash,
        idempotency_key=command.idempotency_key,
        task_key="main",
        state=RunState.QUEUED,
        tracking_off=command.tracking_off,
        submitted_ms=now_ms,
        queued_ms=now_ms,
        source_hash=command.source_hash,
        held=command.held,
        begin_ms=command.begin_ms,
        token_id=command.token_id,
        unix_user=command.unix_user,
    )


def refuse_impossible(state: ClusterState, run: Run) -> None:
    """Raise the refusal of a run that this yard could never place. Raises: UserError."""
    refusal = impossible(offers_of(state), waiting_of(run))
    if refusal is not None:
        raise UserError(
            f"run {run.name!r} cannot run here: {refusal.message}",
            code=refusal.reason.value,
            details=dict(refusal.evidence),
            fix=_fix(refusal, run),
        )


def _fix(refusal: Refusal, run: Run) -> Fix:
    offered = refusal.evidence.get("offered") or []
    gpus = [name for name in offered if name != "CPU"]
    if refusal.reason is Reason.EXCEEDS_POOL:
        return Fix(
            text="ask for fewer or smaller nodes; `airyard pools` shows what there is",
            command="airyard pools",
        )
    if refusal.reason is Reason.CANNOT_SWITCH_USER:
        return Fix(
            text="have such a node's agent run as root (docs/operate/people.md), or name a pool where one does",
            command="airyard pools",
        )
    compute = run.workload.compute
    if compute.accelerator in offered:
        return Fix(
            text=f"leave pool {compute.pool} out, or name one that has such nodes; `airyard pools` lists them",
            command="airyard pools",
            patch={"compute": {"pool_id": None}},
        )
    if gpus:
        return Fix(
            text=f"ask for one of {', '.join(gpus)}",
            command=f"airyard run ... --override compute.accelerator_type={gpus[0]}",
            patch={"compute": {"accelerator_type": gpus[0]}},
        )
    return Fix(
        text="this yard has no GPU; simulated nodes run the same workload on the CPU",
        command=f"airyard down && airyard up --simulate {compute.accelerator}={compute.nodes}",
    )


def cancel(state: ClusterState, command: CancelRun, now_ms: int) -> Decision:
    """End a queued run at once, ask a live attempt to stop, or say that it has ended. Raises: NotFound."""
    run = state.runs.get(command.run_id)
    if run is None:
        raise NotFound(f"run {command.run_id} is not queued or active", code="RUN_NOT_LIVE")
    if run.state is RunState.ENDED:
        return Decision(reply=Cancelled(run_id=run.run_id, already_ended=True))
    draft = Draft(state=state, now_ms=now_ms, run=run)
    attempt = run.attempt
    if run.state is RunState.QUEUED or attempt is None:
        failure = Failure(
            cause=Cause.CANCELLED,
            message=f"cancelled by {command.by} while it was queued",
            next_step="`airyard rerun ID` submits it again",
        )
        draft.emit(
            RunEnded(run_id=run.run_id, outcome=Outcome.CANCELLED, cause=Cause.CANCELLED, failure=failure)
        )
    elif attempt.stop is None or attempt.stop.reason is not StopReason.CANCELLED:
        grace_s = run.workload.preemption.grace_s
        stop = StopRequest(
            reason=StopReason.CANCELLED,
            by=command.by,
            at_ms=now_ms,
            grace_s=grace_s if grace_s is not None else CANCEL_GRACE_S,
        )
        draft.emit(StopOrdered(run_id=run.run_id, attempt=attempt.number, stop=stop))
    advance(draft)
    return draft.decision(Cancelled(run_id=run.run_id, already_ended=False))


def resume(state: ClusterState, command: ResumeRun, now_ms: int) -> Decision:
    """Queue an ended run for a further attempt with fresh budgets. Raises: Conflict while it is live; UserError."""
    run = state.runs.get(command.run.run_id, command.run)
    if run.state is not RunState.ENDED:
        raise Conflict(
            f"run {run.run_id} is {run.state.value.lower()}; only an ended run can be resumed",
            code="RUN_IS_LIVE",
            fix=Fix(text="watch it, or cancel it first", command=f"airyard watch {run.run_id}"),
        )
    if run.outcome is Outcome.SUCCEEDED:
        raise Conflict(
            f"run {run.run_id} succeeded; there is nothing to resume",
            code="RUN_SUCCEEDED",
            fix=Fix(text="start it again as a new run", command=f"airyard rerun {run.run_id}"),
        )
    again = replace(
        run,
        state=RunState.QUEUED,
        submitted_ms=now_ms if run.workload.timeouts.total_s is not None else run.submitted_ms,
        queued_ms=now_ms,
        retries_spent=0,
        download_retries=0,
        recent_faults_ms=(),
        failures_in_row=0,
        not_before_ms=0,
        held=False,
        begin_ms=0,
        last_crash=None,
        text_excuses=0,
        ended_ms=None,
        outcome=None,
        cause=None,
        failure=None,
        token_id=command.token_id,
    )
    tokening.check_pays(state, command.token_id, gpus=not run.workload.compute.is_cpu, now_ms=now_ms)
    admission.check(state, run.owner, run.project, run.workload, now_ms)
    refuse_impossible(state, again)
    return Decision(
        events=(RunResumed(run=again, by=command.by),), reply=Submitted(run_id=run.run_id, existing=True)
    )


def remove(state: ClusterState, command: RemoveRun, now_ms: int) -> Decision:
    """Note that an ended run is removed. Raises: Conflict while it still owes logs or tracking, or is live."""
    run = state.runs.get(command.run_id)
    if run is not None and run.state is not RunState.ENDED:
        raise Conflict(
            f"run {command.run_id} is {run.state.value.lower()}; only an ended run can be removed",
            code="RUN_IS_LIVE",
            fix=Fix(text="cancel it first", command=f"airyard cancel {command.run_id}"),
        )
    if run is not None:
        raise Conflict(
            f"run {command.run_id} has ended, but its logs or tracking are still being completed",
            code="RUN_NOT_SETTLED",
            fix="try again in a few seconds",
        )
    return Decision(events=(RunRemoved(run_id=command.run_id, by=command.by),))
