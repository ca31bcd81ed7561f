"""Identifiers and their text forms.

Owns: the keys by which rooms name attempts and members. Must not know: what the named things are.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.errors import UserError


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One try of a run, written ``12.0`` (run 12, attempt 0)."""

    run_id: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.run_id}.{self.attempt}"

    @staticmethod
    def parse(text: str) -> AttemptKey:
        """Read ``12.0``. Raises: UserError for anything else."""
        run_id, attempt = _numbers(text, 2)
        return AttemptKey(run_id, attempt)


@dataclass(frozen=True, slots=True, order=True)
class MemberKey:
    """The command on one node of an attempt, written ``12.0.1`` (run 12, attempt 0, node rank 1)."""

    run_id: int
    attempt: int
    member: int

    def __str__(self) -> str:
        return f"{self.run_id}.{self.attempt}.{self.member}"

    @property
    def attempt_key(self) -> AttemptKey:
        """The attempt this member belongs to."""
        return AttemptKey(self.run_id, self.attempt)

    @staticmethod
    def parse(text: str) -> MemberKey:
        """Read ``12.0.1``. Raises: UserError for anything else."""
        run_id, attempt, member = _numbers(text, 3)
        return MemberKey(run_id, attempt, member)


def _numbers(text: str, count: int) -> list[int]:
    parts = text.split(".")
    if len(parts) != count or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"{text!r} is not a key of {count} numbers joined by dots", code="BAD_KEY")
    return [int(part) for part in parts]
