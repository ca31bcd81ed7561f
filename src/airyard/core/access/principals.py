"""Who sends a request, as far as rights depend on it.

Owns: the record of a caller. Must not know: how it was recognised.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.access.roles import Kind, Role, Scope
from airyard.core.ids import MemberKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller: somebody with a role, or (``member``) the runner or user code of one member, which has no rights here.

    ``token_id`` is empty for the owner's own token and for browsers. ``project``: the caller is confined to it.
    ``is_command``: it is the member's user code, which may only write to its tracked runs, and nothing as its runner.
    """

    name: str
    role: Role
    kind: Kind = Kind.PERSON
    groups: frozenset[str] = frozenset()
    scope: Scope = Scope.ADMIN
    project: str | None = None
    token_id: str = ""
    member: MemberKey | None = None
    is_command: bool = False

    @property
    def sees_all(self) -> bool:
        """True when every run is open to the caller: nothing needs to be left out of a list."""
        return self.member is None and self.project is None and self.role.rank >= Role.OPERATOR.rank
