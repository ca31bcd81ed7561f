"""The people of a yard: names, roles, kinds and groups.

Owns: the records of a users file. Must not know: files, tokens, what a role may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Role
from airyard.core.access.tokens import Token


class RunAs(Enum):
    """Whose Unix account the commands of runs have: that of their node's agent, or their own user's."""

    SERVER = "server"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One known user; ``kind`` SERVICE is one that no human stands behind. Who is not ``active`` gets in by no way."""

    name: str
    role: Role = Role.USER
    kind: Kind = Kind.PERSON
    groups: frozenset[str] = frozenset()
    active: bool = True
    unix_user: str = ""
    """The account of its runs on nodes whose agents switch users; empty: it has none."""
    lent_to: frozenset[str] = frozenset()
    """Groups whose runs may use the account of this service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRights:
    """Who may use one pool: runs of these projects, and users of these names or groups."""

    projects: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    run_as: RunAs = RunAs.SERVER
    """USER: no run without a Unix account of its own, whatever the yard says."""
    open: bool = False
    """Everybody may use it: it is named for another reason."""

    def admits(self, principal: Principal, project: str) -> bool:
        """True when a run of the caller in that project may use the pool."""
        if self.open:
            return True
        named = principal.name in self.users or bool(principal.groups & self.groups)
        return named or project in self.projects


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Everybody who may have tokens. The yard's owner, who holds its data folder, is an admin in any case."""

    owner: str
    known: Mapping[str, Person] = field(default_factory=dict)
    pools: Mapping[str, PoolRights] = field(default_factory=dict)
    """By the pool's name in lower case; a pool that is not named here is open to everybody."""
    declared: bool = False
    """True when a users file says who there is; else the owner is the only one."""
    run_as: RunAs = RunAs.SERVER
    allow_root: bool = False
    """Whether a run's Unix account may be root."""

    def find(self, name: str) -> Person | None:
        """Return a known user, None for anybody else."""
        found = self.known.get(name)
        if name != self.owner:
            return found if found is not None and found.active else None
        groups = found.groups if found is not None else frozenset[str]()
        return Person(name=name, role=Role.ADMIN, groups=groups)

    def holder(self, token: Token) -> Person | None:
        """Return whose token it is as they are now, None when they do not get in any more.

        Of somebody who logged in at a provider the file says role and kind, if it names them; groups are those of both.
        A job's login is a service's, a person's is none, also where the file has changed since.
        """
        login = token.login
        if login is None:
            return self.find(token.user)
        groups = frozenset(login.groups)
        named = self.known.get(token.user)
        if named is None and (login.role is None or token.user == self.owner):
            return None
        if named is None:
            return Person(name=token.user, role=login.role or Role.VIEWER, groups=groups)
        if (login.role is None) != (named.kind is Kind.SERVICE):
            return None
        found = self.find(token.user) if named.active else None
        return replace(found, groups=found.groups | groups) if found is not None else None

    def may_use(self, principal: Principal, pool: str, project: str) -> bool:
        """True when a run of the caller in that project may stand in the pool."""
        rights = self.pools.get(pool.lower())
        return rights is None or rights.admits(principal, project)

    def unix_user_of(self, name: str) -> str:
        """Return the Unix account of somebody's runs; empty for none."""
        found = self.known.get(name)
        return found.unix_user if found is not None else ""

    def asks_for_account(self, pool: str) -> bool:
        """True when every run in the pool must have a Unix account of its own."""
        rights = self.pools.get(pool.lower())
        return self.run_as is RunAs.USER or (rights is not None and rights.run_as is RunAs.USER)
