"""Which exit code an ended run deserves: the one table of ``docs/cli.md``, and the one place that applies it.

Owns: the code of each ending of a run. Must not know: processes, printing. The command line adds the codes that
have no run behind them (usage, not found, denied, unreachable, interrupted).
"""

from __future__ import annotations

from airyard.core.run import Cause, Outcome

SUCCESS = 0
USER_CODE = 1
CANCELLED = 6
PLATFORM = 7
DEADLINE = 8
ENVIRONMENT = 9
TIME_LIMIT = 124

_BY_CAUSE: dict[Cause, int] = {
    Cause.USER_CODE: USER_CODE,
    Cause.USER_LIMIT: USER_CODE,
    Cause.DATA: ENVIRONMENT,
    Cause.ENVIRONMENT: ENVIRONMENT,
    Cause.CANCELLED: CANCELLED,
}


def exit_code_of(outcome: Outcome, cause: Cause | None, *, deadline: bool = False) -> int:
    """Return the exit code of an ending.

    ``deadline``: the limit that passed was one of the whole run (queue or total time), not of an attempt. A run
    that ended without success and without a cause is Airyard's own failure (7).
    """
    if outcome is Outcome.SUCCEEDED:
        return SUCCESS
    if outcome is Outcome.CANCELLED:
        return CANCELLED
    if outcome is Outcome.TIMED_OUT:
        return DEADLINE if deadline else TIME_LIMIT
    return _BY_CAUSE.get(cause, PLATFORM) if cause is not None else PLATFORM
