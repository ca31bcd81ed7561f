"""The limits of a machine's own file, whatever is in it: one with an error is told of, and the last good one holds.

Owns: which file holds, the copy of the last good one. Must not know: the file's form, what a limit is for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from airyard.checks.contract import warned
from airyard.checks.thresholds import Table, load
from airyard.core.errors import UserError
from airyard.core.health.facts import CheckResult

FILE = "thresholds.toml"
"""Its name in an agent's folder."""


def limits_of(file: Path | None) -> tuple[Table, list[CheckResult]]:
    """Return the limits of a machine's file over the packaged ones, and a warning where it has an error."""
    if file is None:
        return load(), []
    good = file.with_name(f".{file.name}.good")
    try:
        table = load(file)
    except UserError as error:
        with suppress(UserError):
            return load(good), [_warning(error, "the last good file holds")]
        return load(), [_warning(error, "the packaged limits hold")]
    with suppress(OSError):
        text = file.read_bytes()
        if not good.is_file() or good.read_bytes() != text:
            fresh = good.with_name(f"{good.name}.{os.getpid()}")
            fresh.write_bytes(text)
            os.replace(fresh, good)
    return table, []


def machine_table(node_folder: Path) -> Table:
    """Return the limits that hold on the machine of an agent's folder; of an error in its file checks tell."""
    file = node_folder / FILE
    return limits_of(file if file.exists() else None)[0]


def _warning(error: UserError, instead: str) -> CheckResult:
    return warned("preflight.limits", f"{error.message}; {instead}", str(error.fix or "mend the file"))
