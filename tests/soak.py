"""The soak: failure stories over and over, each round in a process of its own, and a table for docs/testing.md.

``python tests/soak.py --count 20``: partitions and killed servers so many times, the rest a quarter as often. It stops
at the first story that fails, and names the folder that has all its files.

Owns: which stories, how often, the table. Must not know: what happens in them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OFTEN = (
    "tests/e2e/test_fleet_partition.py",
    "tests/e2e/test_fleet.py::test_a_killed_server_finds_the_fleet_again",
    "tests/e2e/test_standby.py",
)
SELDOM = (
    "tests/e2e/test_fleet_power.py",
    "tests/e2e/test_fleet_degraded.py",
    "tests/e2e/test_fleet_head.py",
    "tests/e2e/test_fleet_standby.py",
    "tests/e2e/test_fleet.py::test_a_killed_agent_comes_back_and_adopts",
    "tests/e2e/test_fleet.py::test_a_killed_raylet_costs_no_run",
)
SHARE = 4


@dataclass(slots=True)
class Seen:
    """What the rounds have shown of one story."""

    passes: int = 0
    seconds: list[float] = field(default_factory=list)
    told: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def as_json(self) -> dict[str, Any]:
        """Return it as ``count_in`` reads it."""
        return {"passes": self.passes, "seconds": self.seconds, "told": dict(self.told)}


def take_in(report: Path, seen: dict[str, Seen]) -> list[str]:
    """Read pytest's report of one round; return the stories that did not pass, with why."""
    problems = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = story_name(case.get("name") or "")
        bad = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        if bad:
            problems.append(f"{name}: {bad[0]}")
            continue
        one = seen[name]
        one.passes += 1
        one.seconds.append(float(case.get("time") or 0))
        for told in case.iter("property"):
            one.told[told.get("name") or ""].append(float(told.get("value") or 0))
    return problems


def count_in(tally: Mapping[str, Any], seen: dict[str, Seen]) -> None:
    """Add what another soak has seen."""
    for name, found in tally.items():
        one = seen[name]
        one.passes += found["passes"]
        one.seconds += found["seconds"]
        for what, values in found["told"].items():
            one.told[what] += values


def story_name(test: str) -> str:
    """Return a test's name as people read it."""
    once = re.sub(r"\[time\d+-", "[", re.sub(r"-time\d+\]$", "]", re.sub(r"\[time\d+\]$", "", test)))
    return once.removeprefix("test_").replace("_", " ")


def table(seen: Mapping[str, Seen]) -> str:
    """Return what was seen as a Markdown table, slowest values last."""
    lines = [
        "| story | passed | seconds: median, most | measured in it: median, most |",
        "| --- | --- | --- | --- |",
    ]
    for name, one in seen.items():
        told = "; ".join(f"{what}: {spread(values)} s" for what, values in one.told.items())
        lines.append(f"| {name} | {one.passes} | {spread(one.seconds)} | {told or '–'} |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Return median and maximum."""
    return f"{statistics.median(values):.1f}, {max(values):.1f}"


def judge(report: Path, code: int, seen: dict[str, Seen]) -> list[str]:
    """Return what was wrong in a round: a report without a bad case is not enough when pytest did not end well."""
    problems = take_in(report, seen) if report.exists() else ["pytest wrote no report"]
    return problems or ([f"pytest ended with {code}"] if code else [])


def run_round(stories: Sequence[str], folder: Path, each: int) -> tuple[Path, int]:
    """Run stories ``each`` times on one fleet, their files below ``folder``; return the report, and pytest's code."""
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        *stories,
        f"--basetemp={folder / 'files'}",
        f"--junitxml={report}",
        *("-o", "junit_family=xunit1"),  # what the stories measured is a property of the case
    ]
    with (folder / "output.txt").open("wb") as output:
        done = subprocess.run(
            [*command, "-x"],
            cwd=ROOT,
            env={**os.environ, "STORY_TIMES": str(each)},
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    return report, done.returncode


def main() -> int:
    """Run all rounds; exit code 1 when a story did not pass, or was skipped: a soak says nothing then."""
    parser = argparse.ArgumentParser(description="Run the failure stories over and over.")
    parser.add_argument("--count", type=int, default=20, help="rounds of partitions and killed servers")
    parser.add_argument("--only", default="", help="only stories whose place contains this text")
    parser.add_argument(
        "--tally",
        type=Path,
        action="append",
        default=[],
        help="files to which earlier soaks wrote what they saw: counted in; the first is written after each round",
    )
    parser.add_argument("--each", type=int, default=1, help="how often a story is told on the same fleet")
    given = parser.parse_args()
    seen: dict[str, Seen] = defaultdict(Seen)
    for file in given.tally:
        if file.exists():
            count_in(json.loads(file.read_text()), seen)
    # A short path: Ray's sockets lie below it.
    folder = Path(tempfile.mkdtemp(prefix="soak"))
    rounds = -(-given.count // given.each)
    seldom = max(1, rounds // SHARE)
    wanted = [
        [one for one in (*OFTEN, *(SELDOM if number < seldom else ())) if given.only in one]
        for number in range(rounds)
    ]
    wanted = [stories for stories in wanted if stories]  # without a name pytest would run everything
    rounds = len(wanted)
    began_s = time.monotonic()
    for number, stories in enumerate(wanted):
        place = folder / str(number)
        place.mkdir()
        problems = judge(*run_round(stories, place, given.each), seen)
        print(f"round {number + 1} of {rounds}: {'; '.join(problems) or 'all passed'}", flush=True)
        if given.tally:
            given.tally[0].write_text(json.dumps({name: one.as_json() for name, one in seen.items()}))
        if problems or not seen:
            print(f"{table(seen)}\n\nstopped; everything of this round is in {place}")
            return 1
        shutil.rmtree(place)
    folder.rmdir()
    print(f"{table(seen)}\n\n{rounds} rounds in {(time.monotonic() - began_s) / 60:.0f} min")
    return 0


if __name__ == "__main__":
    sys.exit(main())
