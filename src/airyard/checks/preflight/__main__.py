"""One round of checks as a program: a wish in JSON on standard input, results in JSON on standard output.

Owns: the two documents. Must not know: who asks, what follows. Whoever starts it gives it a deadline and may kill its
process group at any time: it keeps nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airyard.checks import catalogue, running
from airyard.checks.apart import die_with_parent
from airyard.checks.contract import Profile, warned
from airyard.checks.preflight.results import result_to_json
from airyard.checks.preflight.setting import Setting
from airyard.checks.thresholds import Table, load, of_pool
from airyard.core.errors import UserError
from airyard.core.health.facts import CheckResult


def check(wish: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a profile. Raises: UserError for own checks that cannot be used."""
    profile = Profile(wish["profile"])
    setting = replace(Setting.from_json(wish.get("setting") or {}), full=profile is Profile.FULL)
    own = catalogue.load_own(Path(setting.own_folder)) if setting.own_folder else []
    table, told = limits_of(Path(setting.limits_file) if setting.limits_file else None)
    if setting.pool_limits:
        table = of_pool(table, setting.pool_limits, setting.pool)
    results = [*told, *running.run(catalogue.probes(profile, own), setting, table)]
    return [result_to_json(one) for one in results]


def limits_of(file: Path | None) -> tuple[Table, list[CheckResult]]:
    """Return the limits of a site's file. One with an error is told of, and the last good one stays in force."""
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


def _warning(error: UserError, instead: str) -> CheckResult:
    return warned("preflight.limits", f"{error.message}; {instead}", str(error.fix or "mend the file"))


def main() -> int:
    """Do what standard input asks for.

    ``nice`` in it: how far this gives way to work on the same machine; ``parent``: with whom it dies.
    """
    wish = json.loads(sys.stdin.read())
    die_with_parent(int(wish.get("parent", os.getppid())))
    os.nice(int(wish.get("nice", 0)))
    sys.stdout.write(json.dumps({"results": check(wish)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
