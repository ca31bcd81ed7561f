"""Secrets: stored, listed and deleted by name. A value goes in and never comes back.

Owns: the wire side. Must not know: how values are kept.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool

from airyard.app.views import rfc3339
from airyard.server.requests import PREFIX, Caller, Context
from airyard.wire import native

router = APIRouter(prefix=PREFIX, tags=["secrets"])
Scope = Annotated[str, Path(min_length=1, max_length=128)]
Key = Annotated[str, Path(min_length=1, max_length=128)]


@router.put("/secrets/{scope}/{key}")
async def put_secret(
    context: Context, caller: Caller, scope: Scope, key: Key, body: native.SecretRequest
) -> dict[str, Any]:
    """Store a value, replacing an earlier one. ``unmasked`` allows one too short to be masked in logs."""

    def store() -> None:
        context.secrets.put(
            caller.name, scope, key, body.value, masked=not body.unmasked, now_ms=context.clock.now_ms()
        )

    await run_in_threadpool(store)
    return {"scope": scope, "key": key}


@router.get("/secrets")
async def list_secrets(context: Context, caller: Caller) -> dict[str, Any]:
    """Return the names of the caller's secrets."""
    found = await run_in_threadpool(context.secrets.names, caller.name)
    return {
        "secrets": [
            {
                "scope": name.scope,
                "key": name.key,
                "updated_at": rfc3339(name.changed_ms),
                "masked": name.masked,
            }
            for name in found
        ]
    }


@router.delete("/secrets/{scope}/{key}")
async def delete_secret(context: Context, caller: Caller, scope: Scope, key: Key) -> dict[str, Any]:
    """Delete a secret."""
    await run_in_threadpool(context.secrets.delete, caller.name, scope, key)
    return {"scope": scope, "key": key}
