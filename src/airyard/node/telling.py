"""A line of the agent's log: what an operator should see, with its time.

Owns: how such a line looks. Must not know: who says what.
"""

from __future__ import annotations

import sys
import time

from airyard.core.plain import plain


def tell(text: str) -> None:
    """Write a line to the agent's log, which its stderr is."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {plain(text)}\n")
    sys.stderr.flush()
