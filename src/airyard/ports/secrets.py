"""Secrets: values that people leave with the yard for their runs. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretName:
    """A secret without its value."""

    owner: str
    scope: str
    key: str
    changed_ms: int
    masked: bool


class SecretStore(Protocol):
    """Secrets of an owner by scope and key, encrypted at rest."""

    def put(self, owner: str, scope: str, key: str, value: str, *, masked: bool, now_ms: int) -> None:
        """Store a value. Raises: UserError for a bad name, an empty value, or one too short to mask (under 6 bytes)."""
        ...

    def get(self, owner: str, scope: str, key: str) -> tuple[str, bool]:
        """Return the value and whether it is to be masked. Raises: NotFound."""
        ...

    def names(self, owner: str) -> Sequence[SecretName]:
        """Return what is stored, by scope and key, without values."""
        ...

    def delete(self, owner: str, scope: str, key: str) -> None:
        """Remove a secret. Raises: NotFound."""
        ...
