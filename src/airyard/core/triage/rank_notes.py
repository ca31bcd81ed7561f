"""The note by which a runner says in its member's log which process each rank is; triage reads it back.

Owns: its words. Must not know: who found the processes, where the note goes. Light: every runner imports it.
"""

from __future__ import annotations

from collections.abc import Mapping

WHERE = "ranks and their processes: "
MOST_RANKS = 64


def where_ranks_run(pids: Mapping[int, int]) -> str:
    """Return the note; ``pids``: of each rank."""
    return WHERE + ", ".join(f"{rank} is {pid}" for rank, pid in sorted(pids.items())[:MOST_RANKS])
