"""Secrets: stored, listed and deleted by name. A value goes in and never comes back.

Owns: the wire side. Must not know: how values are kept.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool

from airyard.app.views import rfc3339
from airyard.ports.secrets import SecretName
from airyard.server.access import Asker, policy_of, require
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context
from airyard.server.secret_rights import facts_of_secret, holder_of, project_of
from airyard.wire import native

router = APIRouter(prefix=PREFIX, tags=["secrets"])
Scope = Annotated[str, Path(min_length=1, max_length=128)]
Key = Annotated[str, Path(min_length=1, max_length=128)]


@router.put("/secrets/{scope}/{key}")
async def put_secret(
    context: Context, caller: Caller, scope: Scope, key: Key, body: native.SecretRequest
) -> dict[str, Any]:
    """Store a value, replacing an earlier one. ``unmasked`` allows one too short to be masked in logs.

    With ``project`` it is the project's: its runs may refer to it, its named members and operators may replace it.
    """
    holder = _holder(context, caller, body.project)

    def store() -> None:
        context.secrets.put(
            holder, scope, key, body.value, masked=not body.unmasked, now_ms=context.clock.now_ms()
        )

    await run_in_threadpool(store)
    return {"scope": scope, "key": key, "project": body.project}


@router.get("/secrets")
async def list_secrets(context: Context, caller: Caller) -> dict[str, Any]:
    """Return the names of the caller's secrets, and of those of the projects that name the caller as a member."""
    projects = [project.name for project in policy_of(context).projects if caller.name in project.members]
    holders = [caller.name, *(holder_of(caller.name, project) for project in projects)]

    def read() -> list[SecretName]:
        return [name for holder in holders for name in context.secrets.names(holder)]

    found = await run_in_threadpool(read)
    return {
        "secrets": [
            {
                "scope": name.scope,
                "key": name.key,
                "project": project_of(name.owner),
                "updated_at": rfc3339(name.changed_ms),
                "masked": name.masked,
            }
            for name in found
        ]
    }


@router.delete("/secrets/{scope}/{key}")
async def delete_secret(
    context: Context, caller: Caller, scope: Scope, key: Key, project: str | None = None
) -> dict[str, Any]:
    """Delete a secret."""
    holder = _holder(context, caller, project)
    await run_in_threadpool(context.secrets.delete, holder, scope, key)
    return {"scope": scope, "key": key, "project": project}


def _holder(context: ServerContext, caller: Asker, project: str | None) -> str:
    """Return under whose name the caller's request is about a secret. Raises: Denied."""
    require(caller.principal, caller.verb, caller.thing, facts_of_secret(context, caller.principal, project))
    return holder_of(caller.name, project)
