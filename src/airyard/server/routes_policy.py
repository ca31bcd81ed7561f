"""What operators declare, and what is used of it: the policy and its history, projects, quotas.

Owns: the wire side. Must not know: which policies are good (``core.policy_rules``, ``core.policy_fit``).
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from airyard.app import policy_views
from airyard.core.commands import DeclarePolicy
from airyard.core.decide import Declared
from airyard.core.errors import NotFound
from airyard.core.events import PolicyDeclared, Recorded
from airyard.core.policy_json import policy_to_json
from airyard.core.state import ClusterState
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.wire import policy as wire

router = APIRouter(prefix=PREFIX, tags=["policy"])
_KIND = PolicyDeclared.__name__


@router.get("/policy", responses={200: {"model": wire.PolicyAnswer}})
async def policy(context: Context) -> dict[str, Any]:
    """Return what is declared, and who declared it last."""
    found = await query(context, lambda control: control.state.policy)
    newest = await _declarations(context, 1)
    return {
        "policy": policy_to_json(found),
        "declared": policy_views.declaration_document(newest[0]) if newest else None,
    }


@router.put("/policy", responses={200: {"model": wire.DeclareAnswer}})
async def declare(context: Context, caller: Caller, body: wire.DeclareRequest) -> dict[str, Any]:
    """Replace what is declared; it holds from the next plan on. All problems are told at once (``POLICY_INVALID``)."""
    command = DeclarePolicy(policy=body.policy.policy(), by=caller.name, source="api", dry_run=body.dry_run)
    reply: Declared = await ask(context, command)
    return {
        "changed": reply.changed,
        "applied": reply.changed and not body.dry_run,
        "changes": [change.to_json() for change in reply.changes],
        "warnings": [warning.to_json() for warning in reply.warnings],
    }


@router.get("/policy/history", responses={200: {"model": wire.HistoryAnswer}})
async def history(context: Context, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> dict[str, Any]:
    """Return who declared what and when, newest first, as far as the journal is kept."""
    found = await _declarations(context, limit + 1)
    return {"history": await run_in_threadpool(policy_views.history_documents, found, limit)}


@router.get("/projects", responses={200: {"model": wire.ProjectsAnswer}})
async def projects(context: Context, caller: Caller) -> dict[str, Any]:
    """Return the projects with their members, rights, shares and budgets."""
    state = await _state(context)
    now_ms = context.clock.now_ms()
    return {"projects": await run_in_threadpool(policy_views.project_documents, state, caller.name, now_ms)}


@router.get("/quota", responses={200: {"model": wire.QuotaAnswer}})
async def quota(context: Context, caller: Caller, project: str | None = None) -> dict[str, Any]:
    """Return guarantees, ceilings, use and decayed shares per project and pool; with ``project`` of that one."""
    state = await _state(context)
    now_ms = context.clock.now_ms()
    if project is not None:
        known = policy_views.project_documents(state, caller.name, now_ms)
        names = [each["name"] for each in known]
        if project not in names:
            raise NotFound(
                f"there is no project {project!r}; this yard has {', '.join(names)}",
                code="UNKNOWN_PROJECT",
                details={"projects": names},
            )
    return await run_in_threadpool(policy_views.quota_document, state, caller.name, now_ms, project)


async def _state(context: ServerContext) -> ClusterState:
    return await query(context, lambda control: control.state.copy())


async def _declarations(context: ServerContext, limit: int) -> list[Recorded]:
    return list(await run_in_threadpool(context.reads.yard_events, _KIND, limit))
