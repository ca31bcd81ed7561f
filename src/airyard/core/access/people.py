"""The people of a yard: names, roles, kinds and groups.

Owns: the records of a users file. Must not know: files, tokens, what a role may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airyard.core.access.roles import Kind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """One known user; ``kind`` SERVICE is one that no human stands behind."""

    name: str
    role: Role = Role.USER
    kind: Kind = Kind.PERSON
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Everybody who may have tokens. The yard's owner, who holds its data folder, is an admin in any case."""

    owner: str
    known: Mapping[str, Person] = field(default_factory=dict)
    declared: bool = False
    """True when a users file says who there is; else the owner is the only one."""

    def find(self, name: str) -> Person | None:
        """Return a known user, None for anybody else."""
        found = self.known.get(name)
        if name != self.owner:
            return found
        groups = found.groups if found is not None else frozenset[str]()
        return Person(name=name, role=Role.ADMIN, groups=groups)
