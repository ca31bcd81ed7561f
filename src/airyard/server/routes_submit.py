"""Submitting: the checks that need stores, the commit, and the dry run.

Owns: the order of these steps and the warnings. Must not know: what the loop checks itself.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from airyard.app import dry_run, explaining
from airyard.app.run_lookup import run_from
from airyard.core.access.table import LEVELS
from airyard.core.commands import SubmitRun
from airyard.core.decide import admission
from airyard.core.errors import Conflict, Denied, Fix, UserError
from airyard.core.run import Run
from airyard.core.workload import Workload, first_difference
from airyard.server import sources
from airyard.server.access import Asker, policy_of
from airyard.server.context import Principal, ServerContext
from airyard.server.identities import account_for
from airyard.server.pool_rights import check_pool, pools_of
from airyard.server.requests import PREFIX, Caller, Context, ask, document, inquire, query
from airyard.server.secret_rights import usable
from airyard.wire import native

router = APIRouter(prefix=PREFIX, tags=["runs"])


@router.post("/runs", responses={200: {"model": native.SubmitAnswer}})
async def submit_run(context: Context, caller: Caller, body: native.SubmitRequest) -> dict[str, Any]:
    """Submit a normalised workload; with ``dry_run`` ask the planner about it and change nothing.

    The same key and workload again: the same run with ``existing`` true. Another workload: 409.
    """
    try:
        workload = body.workload.workload()
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"the workload is not valid: {error}") from error
    workload, unix_user = _kept_to(context, caller.principal, workload)
    source_hash = await run_in_threadpool(_prepare, context, caller, workload, body)
    warnings = [*_descriptive(workload), *await _durability(context, workload, body.allow_no_durable)]
    command = SubmitRun(
        owner=caller.name,
        token_id=caller.principal.token_id,
        workload=workload,
        idempotency_key=body.idempotency_key or f"once-{secrets.token_hex(16)}",
        tracking_off=context.tracking_off,
        source_hash=source_hash,
        held=body.held,
        begin_ms=body.begin_at or 0,
        unix_user=unix_user,
    )
    now_ms = context.clock.now_ms()
    warnings += await query(
        context, lambda control: admission.cautions(control.state, caller.name, workload, now_ms)
    )
    if body.dry_run:
        return {"dry_run": await _dry_run(context, command, warnings)}
    try:
        reply = await ask(context, command)
    except Conflict as error:
        raise await run_in_threadpool(_named_conflict, context, workload, error) from error
    run = context.loop.peek(lambda control: control.state.runs.get(reply.run_id))
    if run is None:
        run = await run_in_threadpool(_ended, context, reply.run_id)
    return {"run": await document(context, run), "existing": reply.existing, "warnings": warnings}


async def _dry_run(context: ServerContext, command: SubmitRun, warnings: Sequence[str]) -> dict[str, Any]:
    """Admit the workload on a copy of the state, and have the planner try it."""
    state = await query(context, lambda control: control.state.copy())
    now_ms = context.clock.now_ms()
    # What is built is asked of the agents' own store: an account has one of its own, which only it sees into.
    asked = context.has_environment if not command.unix_user else lambda workload: None
    cached = await run_in_threadpool(asked, command.workload)
    compute = command.workload.compute
    pools = {
        node.name: state.policy.pool_of(node)
        for node in state.nodes.values()
        if node.model == compute.model and len(node.devices) >= compute.local_world_size
    }
    found = await run_in_threadpool(dry_run.admitted, state, command, now_ms)
    tried = None
    if found.waits:
        tried = await inquire(context, lambda planning: explaining.try_out(planning, found.run, now_ms))
    return dry_run.dry_run_document(command, found, tried, pools, warnings, environment_cached=cached)


def _ended(context: ServerContext, run_id: int) -> Run:
    """Return a run that its key made earlier and that has left memory. Raises: Conflict when it was removed."""
    row = context.reads.run(run_id)
    if row is None:
        # Its key is remembered for a week, the run was removed meanwhile.
        raise Conflict(
            f"this idempotency key made run {run_id}, which has been removed",
            code="RUN_REMOVED",
            fix="submit with another key",
            details={"run_id": run_id},
        )
    return run_from(row)


def _kept_to(context: ServerContext, principal: Principal, workload: Workload) -> tuple[Workload, str]:
    """Return the workload within what the caller's token and the rights on pools leave open, and its Unix account.

    Raises: Denied, UserError.
    """
    confined = principal.project
    if confined is not None and workload.project not in (None, confined):
        raise Denied(
            f"this token is for project {confined}, and the workload names project {workload.project}",
            code="OUT_OF_SCOPE",
            fix=f"set `project: {confined}`, or leave it out",
        )
    if confined is not None:
        workload = replace(workload, project=confined)
    project = workload.project or policy_of(context).project_for(principal.name)
    people = context.access.people()
    account, wanted = account_for(people, principal, workload)
    workload = check_pool(context, principal, workload, project, account=account)
    asked = wanted or any(map(people.asks_for_account, pools_of(context, workload) if people.pools else ()))
    return workload, account if asked else ""


def _prepare(context: ServerContext, caller: Asker, workload: Workload, body: native.SubmitRequest) -> str:
    """Check what the workload refers to, store its file and diff, and return the file's hash.

    One trip off the event loop.
    """
    _check_secrets(context, caller, workload)
    _check_environment(context, workload)
    _check_diff(workload, body.git_diff)
    if body.dry_run:
        return ""  # nothing is stored, and the code need not be here yet: the client says what it would send
    _check_code(context, workload)
    folder = context.home / sources.FOLDER
    if body.git_diff is not None:
        sources.keep(folder, sources.Kind.DIFF, body.git_diff)
    elif workload.diff_hash is not None:
        # The workload of an earlier run again: its diff is here unless that run was removed long ago.
        sources.touch(folder, sources.Kind.DIFF, workload.diff_hash)
    if body.source_yaml is None:
        return ""
    return sources.keep(folder, sources.Kind.WORKLOAD, body.source_yaml)


def _check_diff(workload: Workload, diff: str | None) -> None:
    """Raise UserError for a diff that is not the one that the workload names."""
    if diff is None:
        return
    found = hashlib.sha256(diff.encode()).hexdigest()
    if found != workload.diff_hash:
        named = workload.diff_hash[:12] if workload.diff_hash else "none"
        raise UserError(
            f"git_diff has the hash {found[:12]}, workload.code.git.diff_hash names {named}",
            code="DIFF_MISMATCH",
            fix="send the SHA-256 (hex) of the diff's UTF-8 octets, or leave git_diff out",
            details={"sent": found, "named": workload.diff_hash},
        )


def _check_code(context: ServerContext, workload: Workload) -> None:
    code = workload.code
    if code is not None and not context.blobs.exists(code.tree_hash):
        raise Conflict(
            f"the server does not hold the code snapshot {code.tree_hash[:12]} that this workload names",
            code="CODE_MISSING",
            details={"tree_hash": code.tree_hash},
            fix="upload it (PUT /api/v1/code/{tree_hash}), then submit again; `airyard run` does both",
        )


def _check_secrets(context: ServerContext, caller: Asker, workload: Workload) -> None:
    """Raise UserError naming every secret that the workload refers to and nobody stored."""
    wanted = {value for _, value in workload.secrets}
    wanted |= {value for role in workload.roles for _, value in role.secrets}
    wanted |= {value for rule in workload.notify for value in rule.secrets}
    if not wanted:
        return
    project = workload.project or policy_of(context).project_for(caller.name)
    held = {f"{name.scope}/{name.key}" for name in usable(context.secrets, caller.name, project)}
    missing = sorted(wanted - held)
    if missing:
        what = "secrets that are" if len(missing) > 1 else "a secret that is"
        raise UserError(
            f"the workload names {what} not stored: {', '.join(missing)}",
            code="SECRET_NOT_FOUND",
            details={"secrets": missing},
            fix=Fix(text="store each of them first", command=f"airyard secrets put {missing[0]}"),
        )


def _check_environment(context: ServerContext, workload: Workload) -> None:
    """Raise UserError for a base environment that no node could build; the run would fail once it had a place."""
    version, defined = workload.environment.version, sorted(context.environment_versions)
    if version not in defined:
        raise UserError(
            f"environment.version {version!r} is not defined in this yard; it has {', '.join(defined) or 'none'}",
            code="NO_SUCH_ENVIRONMENT",
            details={"version": version, "defined": defined},
            fix=f"set environment.version to {defined[-1]}, or leave it out" if defined else None,
        )


def _descriptive(workload: Workload) -> list[str]:
    """Name what is stored and shown, but not enforced yet."""
    out = []
    unknown = sorted({grant.level for grant in workload.permissions if grant.level not in LEVELS})
    if unknown:
        out.append(f"permissions: {', '.join(unknown)} is none of {', '.join(LEVELS)}, and gives no right")
    if workload.usage_policy_name or workload.usage_policy_id:
        out.append("usage_policy is stored and shown, but nothing is charged to it yet")
    if workload.environment.ai:
        out.append("the AI variant of the environment is served by the plain base of this yard")
    return out


async def _durability(context: ServerContext, workload: Workload, allowed: bool) -> Sequence[str]:
    """Warn of a gang that could spread over machines without a shared folder for checkpoints."""
    compute = workload.compute
    if compute.nodes < 2:
        return ()
    nodes = await query(context, lambda control: dict(control.state.nodes))
    machines = {
        node.machine
        for node in nodes.values()
        if (node.model == compute.model and node.model) or node.accelerator == compute.accelerator
    }
    if len(machines) < 2:
        return ()
    message = (
        f"the nodes of {compute.accelerator} are on {len(machines)} machines without a shared checkpoint folder: "
        "a checkpoint is seen only on the machine that wrote it"
    )
    if not allowed:
        raise UserError(message, code="NO_DURABLE_STORE")
    return (message,)


def _named_conflict(context: ServerContext, workload: Workload, error: Conflict) -> Conflict:
    """Add the first field that differs when the earlier run has left the loop's memory."""
    run_id = error.details.get("run_id")
    if error.code != "IDEMPOTENCY_CONFLICT" or error.details.get("field") or not isinstance(run_id, int):
        return error
    row = context.reads.run(run_id)
    field = first_difference(run_from(row).workload, workload) if row is not None else None
    if field is None:
        return error
    return Conflict(
        f"{error.message} (first difference: {field})",
        code=error.code,
        details={**error.details, "field": field},
        fix=error.fix,
    )
