"""What searches log lines for an expression that a person wrote.

Owns: the Protocol. Must not know: which engine searches, and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class LineSearch(Protocol):
    """Finds an expression in lines. Not for two threads at once."""

    def found(self, texts: Sequence[str]) -> Sequence[bool]:
        """Return for each text whether the expression is found in it.

        Raises: UserError (``PATTERN_TOO_SLOW``) when that takes too long; nothing else waits for it meanwhile.
        """
        ...

    def close(self) -> None:
        """Release what the search holds; may be called twice."""
        ...
