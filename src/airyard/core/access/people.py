"""The people of a yard: names, roles, kinds and groups.

Owns: the records of a users file. Must not know: files, tokens, what a role may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One known user; ``kind`` SERVICE is one that no human stands behind."""

    name: str
    role: Role = Role.USER
    kind: Kind = Kind.PERSON
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRights:
    """Who may use one pool: runs of these projects, and users of these names or groups."""

    projects: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()

    def admits(self, principal: Principal, project: str) -> bool:
        """True when a run of the caller in that project may use the pool."""
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

    def find(self, name: str) -> Person | None:
        """Return a known user, None for anybody else."""
        found = self.known.get(name)
        if name != self.owner:
            return found
        groups = found.groups if found is not None else frozenset[str]()
        return Person(name=name, role=Role.ADMIN, groups=groups)

    def may_use(self, principal: Principal, pool: str, project: str) -> bool:
        """True when a run of the caller in that project may stand in the pool."""
        rights = self.pools.get(pool.lower())
        return rights is None or rights.admits(principal, project)
