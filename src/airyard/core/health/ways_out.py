"""What a person can do about a node in each state of its health: the step that the state machine takes.

Owns: that step, in words and as a command; how a state is named in a sentence. Must not know: evidence, budgets.
Whoever refuses a word about a node, or waits for one, tells this step: none that would be refused in its turn.
"""

from __future__ import annotations

from airyard.core.errors import Fix
from airyard.core.health.states import HealthState

_S = HealthState
_WORDS = {
    _S.HEALTHY: "healthy",
    _S.SUSPECT: "a suspect",
    _S.CORDONED: "being taken out for its health",
    _S.DRAINING: "being emptied for its health",
    _S.QUARANTINED: "quarantined for its health",
    _S.RESETTING: "being mended",
    _S.RETESTING: "being tested after a remedy",
    _S.PROBATION: "on probation",
    _S.MAINTENANCE: "in maintenance",
    _S.ENROLLING: "being tested before it works again",
    _S.RETIRED: "retired for its health",
}


def in_words(state: HealthState) -> str:
    """Return what a node in this state is, as it follows ``is``."""
    return _WORDS[state]


def way_out(node: str, state: HealthState) -> Fix:
    """Return what a person does next for a node that is to work; where it goes on by itself, how to look at it."""
    look = f"airyard nodes {node}"
    match state:
        case _S.QUARANTINED:
            acquit = f"airyard health acquit {node}"
            return Fix(
                text=f"when it was mended, or it was a false alarm: `{acquit}`, then it works on probation; "
                f"`{look}` says what it waits for",
                command=acquit,
            )
        case _S.ENROLLING:
            acquit = f"airyard health acquit {node}"
            return Fix(
                text=f"it works when its test was passed; without the test, on your word: `{acquit}`",
                command=acquit,
            )
        case _S.MAINTENANCE:
            off = f"airyard health maintenance {node} off"
            return Fix(text=f"give it back: `{off}`; it is tested, then it works", command=off)
        case _S.RETIRED:
            on = f"airyard health maintenance {node} on"
            return Fix(text=f"take it over with `{on}`, mend it, then `off`: it is tested", command=on)
        case _S.HEALTHY | _S.SUSPECT | _S.PROBATION:
            return Fix(text=f"nothing has to be done: it takes runs; `{look}` shows it", command=look)
        case _:
            return Fix(text=f"wait: it goes on by itself; `{look}` shows how far it is", command=look)
