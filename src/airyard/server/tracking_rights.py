"""Rights in MLflow by the table: who is bound to what, and what of it is audited.

Owns: that link. Must not know: MLflow's paths (``mlflow_people``).
"""

from __future__ import annotations

from fastapi import Request

from airyard.app.run_lookup import run_from
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Thing, Verb
from airyard.core.access.table import Facts, allowed
from airyard.server.access import facts_of, policy_of
from airyard.server.audit import note_of
from airyard.server.context import ServerContext
from airyard.server.mlflow_people import PersonScope


def person_scope(context: ServerContext, principal: Principal) -> PersonScope | None:
    """Return what a person is bound to in MLflow; None for one who may do everything there."""
    if principal.member is not None:
        return None
    if principal.sees_all and allowed(principal, Verb.MANAGE, Thing.TRACKING, Facts()).allowed:
        return None

    def may(run_id: int, verb: Verb) -> bool:
        row = context.reads.run(run_id)
        if row is None:
            return False
        facts = facts_of(run_from(row), policy_of(context), principal)
        return allowed(principal, verb, Thing.TRACKING, facts).allowed

    return PersonScope(
        name=principal.name,
        sees_all=principal.sees_all,
        may_write=allowed(principal, Verb.MANAGE, Thing.TRACKING, None).allowed,
        sees=lambda run_id: may(run_id, Verb.VIEW),
        steers=lambda run_id: may(run_id, Verb.MANAGE),
    )


def note_proxied(request: Request, principal: Principal) -> None:
    """Have a person's changes in MLflow written to the audit; an attempt's are its run's own doing."""
    note = note_of(request.scope)
    if note is None or principal.member is not None:
        return
    changing = request.method not in ("GET", "HEAD", "OPTIONS")
    note.principal = principal
    note.thing, note.verb = Thing.TRACKING, Verb.MANAGE if changing else Verb.VIEW
    # Searches are POST requests, too.
    note.wanted = changing and not request.url.path.endswith(("/search", "/graphql"))
