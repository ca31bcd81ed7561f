"""Which releases work together, and what is said where they do not."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.core.versions import Kinship, Spoken, check_release, kinship, order_of_upgrade


@pytest.mark.parametrize(
    ("theirs", "mine", "found"),
    [
        ("0.2.0", "0.2.7", Kinship.SAME),
        ("0.2.0rc1", "0.2.0", Kinship.SAME),
        ("0.1.9", "0.2.0", Kinship.OLDER),
        ("0.3.0.dev4", "0.2.0", Kinship.NEWER),
        ("0.1.0", "0.3.0", Kinship.TOO_OLD),
        ("0.3.0", "0.1.0", Kinship.TOO_NEW),
        ("0.9.1", "1.0.0", Kinship.OLDER),
        ("1.0.0", "0.9.1", Kinship.NEWER),
        ("0.9.1", "1.1.0", Kinship.TOO_OLD),
        ("2.0.0", "1.4.2", Kinship.NEWER),
        ("3.0.0", "1.4.2", Kinship.TOO_NEW),
        ("", "0.1.0", Kinship.UNKNOWN),
        ("old", "0.1.0", Kinship.UNKNOWN),
    ],
)
def test_neighbours(theirs: str, mine: str, found: Kinship) -> None:
    assert kinship(theirs, mine) is found


def test_the_newest_form_that_both_speak() -> None:
    ours = Spoken(newest=3, oldest=2)
    # (the other side's newest, its oldest) -> what is spoken
    cases = {
        (3, 2): 3,
        (2, 1): 2,
        (2, 2): 2,
        (4, 3): 3,
        (5, 4): None,
        (1, 1): None,
        (3, None): 3,
        (1, None): None,
    }
    assert {case: ours.common(*case) for case in cases} == cases
    assert [ours.common(junk) for junk in (None, "2", 2.0, True)] == [None] * 4


def test_an_older_journal_is_refused_only_where_runs_would_have_to_understand_both() -> None:
    check_release("0.1.0", "0.2.0", live_attempts=3)
    check_release("0.3.0", "0.2.0", live_attempts=3)
    check_release("0.1.0", "0.7.0", live_attempts=0)
    check_release("", "0.7.0", live_attempts=3)
    with pytest.raises(UserError, match=r"0\.1\.0.*0\.3\.0.*3 runs") as far:
        check_release("0.1.0", "0.3.0", live_attempts=3)
    assert far.value.code == "UPGRADE_TOO_FAR"
    with pytest.raises(UserError, match=r"0\.3\.0.*0\.1\.0") as back:
        check_release("0.3.0", "0.1.0", live_attempts=0)
    assert back.value.code == "DOWNGRADE_TOO_FAR"


def test_a_refusal_says_in_which_order_to_upgrade() -> None:
    assert order_of_upgrade("0.2.0", "0.3.0", "the node").startswith("upgrade the server to 0.3.0 first")
    assert order_of_upgrade("0.3.0", "0.1.0", "node h1").startswith("upgrade node h1 to 0.3.0")
