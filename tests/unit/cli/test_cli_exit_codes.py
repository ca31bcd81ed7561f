"""Exit codes: one table, complete, the same in the document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airyard.cli.exit_codes import MEANING, ExitCode, of_run, of_runs
from airyard.core import exit_codes
from airyard.core.errors import KINDS
from client_fakes import failed_document, run_document


def test_every_code_has_a_meaning_and_every_error_a_code() -> None:
    assert set(MEANING) == set(ExitCode)
    assert {kind.exit_code for kind in KINDS} <= set(ExitCode)
    for name in ("SUCCESS", "USER_CODE", "CANCELLED", "PLATFORM", "DEADLINE", "ENVIRONMENT", "TIME_LIMIT"):
        assert getattr(exit_codes, name) == ExitCode[name]


def test_the_document_says_the_same() -> None:
    document = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", document, flags=re.MULTILINE))
    assert rows == {str(int(code)): text for code, text in MEANING.items()}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"state": "ACTIVE", "outcome": None, "exit_code": None}, 0),
        ({"exit_code": 9}, 9),
        ({"exit_code": 124, "outcome": "TIMED_OUT"}, 124),
        ({"exit_code": None}, 7),
    ],
)
def test_endings(changes: dict[str, object], code: int) -> None:
    assert of_run(failed_document(**changes)) == code


def test_propagate_returns_the_commands_own_code() -> None:
    assert of_run(failed_document(), propagate=True) == 7
    failure = {**failed_document()["failure"], "signal": "SIGSEGV", "exit_code": None}
    assert of_run(failed_document(failure=failure), propagate=True) == 139
    assert of_run(run_document(), propagate=True) == 0


def test_of_several_the_first_failure_counts() -> None:
    cancelled = failed_document(3, outcome="CANCELLED", exit_code=6)
    assert of_runs([run_document(1), cancelled, failed_document(2)]) == 6
    assert of_runs([run_document(1)]) == 0
