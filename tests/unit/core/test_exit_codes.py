"""Exit codes of ended runs: the table of the documentation."""

from __future__ import annotations

import pytest

from airyard.core.exit_codes import exit_code_of
from airyard.core.run import Cause, Outcome


@pytest.mark.parametrize(
    ("outcome", "cause", "code"),
    [
        (Outcome.SUCCEEDED, None, 0),
        (Outcome.FAILED, Cause.USER_CODE, 1),
        (Outcome.FAILED, Cause.USER_LIMIT, 1),
        (Outcome.CANCELLED, Cause.CANCELLED, 6),
        (Outcome.FAILED, Cause.PLATFORM, 7),
        (Outcome.FAILED, Cause.NODE, 7),
        (Outcome.FAILED, Cause.DEVICE, 7),
        (Outcome.FAILED, Cause.NETWORK, 7),
        (Outcome.FAILED, Cause.STORAGE, 7),
        (Outcome.FAILED, None, 7),
        (Outcome.FAILED, Cause.ENVIRONMENT, 9),
        (Outcome.FAILED, Cause.DATA, 9),
        (Outcome.TIMED_OUT, Cause.USER_LIMIT, 124),
    ],
)
def test_each_ending_has_its_code(outcome: Outcome, cause: Cause | None, code: int) -> None:
    assert exit_code_of(outcome, cause) == code


def test_a_limit_of_the_whole_run_is_a_deadline() -> None:
    assert exit_code_of(Outcome.TIMED_OUT, Cause.USER_LIMIT, deadline=True) == 8


def test_every_cause_of_a_failure_has_a_code_other_than_success() -> None:
    assert all(exit_code_of(Outcome.FAILED, cause) for cause in Cause)
