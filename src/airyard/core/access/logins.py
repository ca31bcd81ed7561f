"""Who somebody that logged in at a provider is here: from the claims of an ID token to a name, a role and groups.

Owns: the rules that a yard sets for that, the record of a login. Pure; must not know: signatures, HTTP, tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airyard.core.access.roles import Role
from airyard.core.errors import Denied

USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
MOST_GROUPS = 1000
"""A person of more groups is refused: every token of theirs would carry all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a provider said of somebody when they logged in. ``subject`` is their id there, which never changes.

    ``role`` None is a job's: it counts as a service of the users file, and has from there what it has.
    """

    issuer: str
    subject: str
    role: Role | None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRules:
    """What a yard makes of claims.

    ``roles``: group → role; the highest counts. ``default_role`` is that of a person without such a group, None: they
    do not get in. ``groups`` and ``domains``: who may log in at all, where they are not empty.
    """

    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    default_role: Role | None = Role.USER
    groups: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()


def admitted(rules: LoginRules, claims: Mapping[str, Any]) -> tuple[str, Login]:
    """Return the user's name here and the record of the login. Raises: Denied (``LOGIN_NOT_ALLOWED``) with the reason.

    ``claims`` are those of an ID token whose signature, times and audience have been checked.
    """
    name = _name(rules, claims)
    groups = _groups(rules, claims)
    if rules.domains:
        domain = _checked_email(claims, "this yard admits by e-mail domain").rpartition("@")[2].lower()
        if domain not in rules.domains:
            raise _refused(f"{name} has an e-mail address at {domain}, which this yard does not admit", name)
    if rules.groups and not rules.groups & set(groups):
        raise _refused(f"{name} is in none of the groups that this yard admits", name)
    given = [rules.roles[group] for group in groups if group in rules.roles]
    if rules.default_role is not None:
        given.append(rules.default_role)
    if not given:
        raise _refused(f"none of the groups of {name} has a role in this yard", name)
    role = max(given, key=lambda one: one.rank)
    return name, Login(issuer=str(claims["iss"]), subject=str(claims["sub"]), role=role, groups=groups)


def _name(rules: LoginRules, claims: Mapping[str, Any]) -> str:
    found = claims.get(rules.user_claim)
    if rules.user_claim == "email":
        found = _checked_email(claims, "users of this yard are named by it")
    if not isinstance(found, str) or not USER_NAME.fullmatch(found):
        raise _refused(
            f"the provider's claim {rules.user_claim!r} names no user: "
            + ("it is missing" if found is None else "it is no name that users here can have")
        )
    return found


def _checked_email(claims: Mapping[str, Any], why: str) -> str:
    """Return the address if the provider vouches for it: anybody could have typed another one."""
    found = claims.get("email")
    if not isinstance(found, str) or claims.get("email_verified") is not True:
        raise _refused(f"the provider has not verified an e-mail address, and {why}")
    return found


def _groups(rules: LoginRules, claims: Mapping[str, Any]) -> tuple[str, ...]:
    found = claims.get(rules.groups_claim)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    groups = sorted({group for group in listed if isinstance(group, str) and group.strip()})
    if len(groups) > MOST_GROUPS:
        raise _refused(f"the provider names {len(groups)} groups (limit {MOST_GROUPS}); have it send fewer")
    return tuple(groups)


def _refused(reason: str, user: str | None = None) -> Denied:
    return Denied(
        reason,
        code="LOGIN_NOT_ALLOWED",
        details={"user": user} if user is not None else None,
        fix="an admin of this yard says in [people.oidc] who may log in; groups and addresses are the provider's",
    )
