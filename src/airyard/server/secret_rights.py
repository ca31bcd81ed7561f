"""Whose secrets a request or a run reaches: one's own, and those of a project.

Owns: under which name the store keeps a project's secrets, which a run sees first. Must not know: how values are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Role, Verb
from airyard.core.access.table import Facts
from airyard.core.errors import NotFound
from airyard.core.run import Run
from airyard.ports.secrets import SecretName, SecretStore
from airyard.server.access import names_member, policy_of
from airyard.server.audit import AuditLog, line
from airyard.server.context import ServerContext

_PROJECT = "project:"
"""No user is called so: names of users have no colon."""


def holder_of(user: str, project: str | None) -> str:
    """Return under whose name a secret is kept."""
    return user if project is None else _PROJECT + project


def project_of(holder: str) -> str | None:
    """Return the project whose secret it is; None for a user's own."""
    return holder.removeprefix(_PROJECT) if holder.startswith(_PROJECT) else None


def facts_of_secret(context: ServerContext, principal: Principal, project: str | None) -> Facts:
    """Return what rights on a secret depend on: a project's is for its named members, and for operators."""
    if project is None:
        return Facts(owner=principal.name)
    operates = principal.role.rank >= Role.OPERATOR.rank
    return Facts(
        project=project, shared=operates or names_member(policy_of(context), project, principal.name)
    )


def usable(secrets: SecretStore, user: str, project: str) -> Sequence[SecretName]:
    """Return the names of what a user's run in a project may refer to."""
    return [*secrets.names(user), *secrets.names(holder_of(user, project))]


def lookup(secrets: SecretStore, audit: AuditLog) -> Callable[[Run, str, str], tuple[str, bool]]:
    """Return how a run gets a secret: its owner's own, else its project's; each time is written to the audit."""

    def find(run: Run, scope: str, key: str) -> tuple[str, bool]:
        outcome = "failed"
        try:
            try:
                found = secrets.get(run.owner, scope, key)
            except NotFound:
                found = secrets.get(holder_of(run.owner, run.project), scope, key)
            outcome = "done"
            return found
        finally:
            audit.write(
                line(
                    principal=run.owner,
                    token_id=run.token_id or None,
                    verb=Verb.USE.value,
                    object="secret",
                    name=f"{scope}/{key}",
                    run_id=run.run_id,
                    outcome=outcome,
                )
            )

    return find
