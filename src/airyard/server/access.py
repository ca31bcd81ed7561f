"""The one place where rights are enforced: before each route by its entry, and on each run that it reaches.

Owns: the facts a question of rights needs, and how a no is told. Must not know: the rules (``core.access.table``),
which route does what (``route_rights``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Thing, Verb
from airyard.core.access.table import Facts, allowed
from airyard.core.errors import AiryardError, Denied, NotFound
from airyard.core.policy import Policy
from airyard.core.run import Run
from airyard.server.audit import note_of
from airyard.server.context import ServerContext
from airyard.server.route_rights import Access, Gateless, entry_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks, and what the route does: every run that the route reaches is checked for it."""

    principal: Principal
    verb: Verb
    thing: Thing

    @property
    def name(self) -> str:
        """The user's name."""
        return self.principal.name


async def authorise_route(request: Request) -> None:
    """Refuse a request whose route the caller may not use on any object. A dependency of every route."""
    entry = entry_of(request.method, request.scope["route"].path)
    if isinstance(entry, Gateless):
        note = note_of(request.scope)
        if note is not None and entry is Gateless.FLEET:
            note.wanted = request.method != "GET"
        return
    principal: Principal | None = request.scope.get("principal")
    if entry is None or principal is None:
        raise Denied(f"{request.method} {request.url.path} is open to nobody", code="FORBIDDEN")
    request.scope["asker"] = Asker(principal=principal, verb=entry.verb, thing=entry.thing)
    _note(request, principal, entry)
    require(principal, entry.verb, entry.thing, None)


def _note(request: Request, principal: Principal, entry: Access) -> None:
    note = note_of(request.scope)
    if note is not None:
        note.principal = principal
        note.verb, note.thing = entry.verb, entry.thing
        note.wanted = entry.audited or entry.verb is not Verb.VIEW
        note.object = "/".join(str(value) for value in request.path_params.values())


def require(
    principal: Principal,
    verb: Verb,
    thing: Thing,
    facts: Facts | None,
    *,
    missing: Callable[[], AiryardError] | None = None,
) -> None:
    """Let pass what the table allows. Raises: Denied, or for what the caller may not see, ``missing()``."""
    decision = allowed(principal, verb, thing, facts)
    if decision.allowed:
        return
    if decision.hidden and missing is not None:
        raise missing()
    raise Denied(
        decision.reason,
        code="FORBIDDEN",
        details={"role": principal.role.value, "verb": verb.value, "object": thing.value},
        fix="docs/operate/people.md says who may what; rights on a run are granted by its owner with `permissions`, "
        "roles by an admin of this yard",
    )


def facts_of(run: Run, policy: Policy, principal: Principal) -> Facts:
    """Return what rights on a run depend on."""
    return Facts(
        owner=run.owner,
        project=run.project,
        grants=run.workload.permissions,
        shared=names_member(policy, run.project, principal.name),
    )


def names_member(policy: Policy, project: str, user: str) -> bool:
    """True when the project names the user among its members; ``*`` names nobody."""
    found = policy.project(project)
    return found is not None and user in found.members


def policy_of(context: ServerContext) -> Policy:
    """Return what is declared, as of the last commit."""
    return context.loop.peek(lambda control: control.state.policy)


def sight(context: ServerContext, principal: Principal) -> Callable[[Run], bool] | None:
    """Return which runs the caller may see; None when all of them."""
    if principal.sees_all:
        return None
    policy = policy_of(context)

    def sees(run: Run) -> bool:
        return allowed(principal, Verb.VIEW, Thing.RUN, facts_of(run, policy, principal)).allowed

    return sees


def require_run(context: ServerContext, asker: Asker, run: Run) -> None:
    """Let pass what the caller may do with a run that it may see. Raises: Denied, NotFound."""

    def missing() -> AiryardError:
        return NotFound(f"there is no run {run.run_id}", code="RUN_NOT_FOUND")

    facts = facts_of(run, policy_of(context), asker.principal)
    require(asker.principal, asker.verb, asker.thing, facts, missing=missing)
