"""How long a run has between the request to leave and the kill.

Owns: the default of each class. Must not know: who asks it to leave, or why.
"""

from __future__ import annotations

from airyard.core.run import Run
from airyard.core.workload import Priority

GRACE_S = {Priority.CRITICAL: 120, Priority.NORMAL: 120, Priority.BEST_EFFORT: 30}


def grace_of(run: Run) -> int:
    """Return the seconds a run has between the request to leave and the kill."""
    own = run.workload.preemption.grace_s
    return own if own is not None else GRACE_S[run.workload.compute.priority]
