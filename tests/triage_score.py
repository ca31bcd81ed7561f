"""How well triage judges the corpus: ``python tests/triage_score.py`` prints a table.

Owns: the reading of cases and the score. Must not know: how triage judges.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airyard.core.triage.causes import FailureCause, FailureClass
from airyard.core.triage.job_lines import rank_of_file
from airyard.core.triage.judging import judge
from airyard.core.triage.reading import Findings, Reader

CORPUS = Path(__file__).parent / "triage_corpus"
KERNEL_LOG = re.compile(r"^(dmesg|kern|kmsg|journal|messages|syslog)", re.IGNORECASE)
HALVES = {"develop": slice(0, None, 2), "held_out": slice(1, None, 2)}
"""Every second folder of ``foreign``: rules may be changed because of the first ones only."""
PARTS = (
    "develop",
    "held_out",
    "controls",
    "foreign:develop",
    "foreign:held_out",
    "foreign_later",
    "foreign_fresh",
)
BLAMING = (FailureClass.HARDWARE, FailureClass.NETWORK, FailureClass.DRIVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case of the corpus: its files by name, and what is to be said of it."""

    name: str
    files: Mapping[str, bytes]
    expected: Mapping[str, Any]

    @property
    def innocent(self) -> bool:
        """True when no machine may be blamed."""
        return not {"hardware", "driver", "network"} & set(self.expected["class"])


def cases(part: str) -> list[Case]:
    """Return the cases of a part: of a folder (``develop``), or of a half of one (``foreign:develop``)."""
    found = []
    name, _, half = part.partition(":")
    folders = sorted((CORPUS / name).iterdir())
    for folder in folders[HALVES[half]] if half else folders:
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"}
        expected = json.loads((folder / "expected.json").read_text())
        found.append(Case(name=f"{name}/{folder.name}", files=files, expected=expected))
    return found


def verdict_of(files: Mapping[str, bytes]) -> FailureCause:
    """Judge the files of a case."""
    findings = Findings()
    for name, content in files.items():
        reader = Reader(name, rank=rank_of_file(name), kernel=KERNEL_LOG.match(name) is not None)
        reader.feed(content)
        findings.merge(reader.findings())
    return judge(findings)


def problems(case: Case, verdict: FailureCause) -> list[str]:
    """Return in what a verdict differs from what is expected."""
    expected = case.expected
    found = []
    if verdict.failure_class.value not in expected["class"]:
        found.append(
            f"class {verdict.failure_class.value} for {'/'.join(expected['class'])} by {verdict.rule}"
        )
    if verdict.action.value not in expected["action"]:
        found.append(f"action {verdict.action.value} for {'/'.join(expected['action'])}")
    if expected["first_rank"] != "any" and verdict.first_rank != expected["first_rank"]:
        found.append(f"first rank {verdict.first_rank} for {expected['first_rank']}")
    if expected["blamed"] == "none" and (verdict.blamed_node or verdict.blamed_device or verdict.confirmed):
        found.append(f"blames {verdict.blamed_node} {verdict.blamed_device}")
    if expected["blamed"] == "device" and not verdict.blamed_device:
        found.append("blames no device")
    return found


@dataclass(slots=True)
class Score:
    """How often the class was right, and the two kinds of error that must not be."""

    right: int = 0
    total: int = 0
    false_blame: int = 0
    missed_hardware: int = 0

    def count(self, case: Case, verdict: FailureCause) -> None:
        """Take in one verdict."""
        self.total += 1
        self.right += verdict.failure_class.value in case.expected["class"]
        blames = verdict.failure_class in BLAMING or verdict.confirmed
        self.false_blame += case.innocent and blames
        clear = case.expected["class"] == ["hardware"] and case.expected.get("label_confidence") == "H"
        self.missed_hardware += clear and verdict.failure_class is not FailureClass.HARDWARE

    def __str__(self) -> str:
        return (
            f"class right {self.right} of {self.total}, false blame {self.false_blame}, "
            f"clear hardware missed {self.missed_hardware}"
        )


def score(all_cases: Iterable[Case]) -> Score:
    """Judge all and count."""
    found = Score()
    for case in all_cases:
        found.count(case, verdict_of(case.files))
    return found


def main() -> int:
    """Print the verdict on each case, and the score of each part."""
    for part in sys.argv[1:] or PARTS:
        for case in cases(part):
            verdict = verdict_of(case.files)
            wrong = problems(case, verdict)
            said = f"{verdict.failure_class.value}, {verdict.action.value}, rank {verdict.first_rank}"
            print(f"{'ok ' if not wrong else '!! '} {case.name:45} {said:45} {'; '.join(wrong)}")
        print(f"{part}: {score(cases(part))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
