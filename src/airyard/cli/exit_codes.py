"""The exit codes of the command line: one table, which docs/cli.md and the help repeat.

Owns: the numbers, their meaning, and which of them a command returns.
Must not know: printing, the network. Standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What the shell sees. Stable: a number never changes its meaning."""

    SUCCESS = 0
    USER_CODE = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5
    CANCELLED = 6
    PLATFORM = 7
    DEADLINE = 8
    ENVIRONMENT = 9
    PARTIAL = 10
    TIME_LIMIT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANING: dict[ExitCode, str] = {
    ExitCode.SUCCESS: "success",
    ExitCode.USER_CODE: "the run failed by its own code (or by a memory or disk limit of its own)",
    ExitCode.USAGE: "usage or configuration error; nothing was started",
    ExitCode.NOT_FOUND: "no such run, attempt, node, metric, secret or output of a run (a missing workload file is 2)",
    ExitCode.DENIED: "denied: no token, a wrong one, or no right",
    ExitCode.UNAVAILABLE: "server unreachable, or an error worth retrying",
    ExitCode.CANCELLED: "the run was cancelled",
    ExitCode.PLATFORM: "the run failed by platform, node or network after its retries, or Airyard has a bug",
    ExitCode.DEADLINE: "budget or deadline: a queue or total limit of the run, or `wait --timeout` passed",
    ExitCode.ENVIRONMENT: "the run failed by its environment or data",
    ExitCode.PARTIAL: "of several hosts some were done and some not; the output says which and why",
    ExitCode.TIME_LIMIT: "the run reached its time limit",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C; a watched run goes on",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
}


def of_run(run: Mapping[str, Any], *, propagate: bool = False) -> int:
    """Return the exit code that an ended run deserves; 0 for one that has not ended.

    The server judged it (core/exit_codes.py). ``propagate`` returns the command's code (128 + signal) where it
    has one.
    """
    if run.get("state") != "ENDED" or run.get("outcome") == "SUCCEEDED":
        return ExitCode.SUCCESS
    if propagate:
        own = _own_code(run.get("failure") or {})
        if own:
            return own
    code = run.get("exit_code")
    return code if isinstance(code, int) else ExitCode.PLATFORM


def of_runs(runs: Iterable[Mapping[str, Any]]) -> int:
    """Return the code of the first run, in the order given, that did not succeed."""
    return next((code for code in map(of_run, runs) if code), ExitCode.SUCCESS)


def _own_code(failure: Mapping[str, Any]) -> int | None:
    number = failure.get("signal")
    if isinstance(number, str):
        number = getattr(signal, number, None)
    if isinstance(number, int):
        return 128 + int(number)
    code = failure.get("exit_code")
    return code if isinstance(code, int) else None
