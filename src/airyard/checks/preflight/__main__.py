"""One round of checks as a program: a wish in JSON on standard input, results in JSON on standard output.

Owns: the two documents. Must not know: who asks, what follows. Whoever starts it gives it a deadline and may kill its
process group at any time: it keeps nothing.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from airyard.checks import catalogue, running
from airyard.checks.children import die_with_parent
from airyard.checks.contract import Profile, warned
from airyard.checks.preflight.results import result_to_json
from airyard.checks.preflight.setting import Setting
from airyard.checks.site_limits import limits_of
from airyard.checks.thresholds import of_pool, wrong_of_pool
from airyard.core.health.fleet_values import usual_from_json


def check(wish: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a profile. Raises: UserError where the folder of own checks is gone."""
    profile = Profile(wish["profile"])
    setting = replace(Setting.from_json(wish.get("setting") or {}), full=profile is Profile.FULL)
    own = catalogue.own(Path(setting.own_folder), profile) if setting.own_folder else None
    table, told = limits_of(Path(setting.limits_file) if setting.limits_file else None)
    if setting.pool_limits:
        table = of_pool(table, setting.pool_limits, setting.pool)
        if wrong := wrong_of_pool(setting.pool_limits, setting.pool):
            told.append(warned("preflight.limits", f"{wrong}; the others hold", "`airyard apply` them again"))
    probes = catalogue.probes(profile)
    if setting.only:
        probes, own = catalogue.only(probes, setting.only), own if catalogue.OWN in setting.only else None
    results = [*told, *running.run(probes, setting, table, own, usual_from_json(setting.fleet))]
    return [result_to_json(one) for one in results]


def main() -> int:
    """Do what standard input asks for.

    ``nice`` in it: how far this gives way to work on the same machine; ``parent``: with whom it dies.
    """
    wish = json.loads(sys.stdin.read())
    die_with_parent(int(wish.get("parent", os.getppid())))
    os.nice(int(wish.get("nice", 0)))
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a probe or a library prints is no part of the answer
    with answer:
        answer.write(json.dumps({"results": check(wish)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
