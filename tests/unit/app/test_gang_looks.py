"""When members are looked at, how long a verdict waits for it, what is taken."""

from __future__ import annotations

import pytest

from airyard.app.gang_looks import AGAIN_MS, WAIT_MS, GangLooks
from airyard.core.errors import UserError
from airyard.core.ids import AttemptKey, MemberKey

GANG = AttemptKey(7, 0)
MEMBERS = [0, 1]


def member(index: int) -> MemberKey:
    return MemberKey(7, 0, index)


def stack(number: int | None, rank: int = 0) -> dict[str, object]:
    return {"number": number, "ranks": [{"rank": rank, "state": "S", "stack": "f (a.py:1)"}]}


def test_a_verdict_waits_until_all_members_have_answered() -> None:
    looks = GangLooks()
    assert looks.stalled(GANG, MEMBERS, 1000) == (True, False)
    number = looks.wanted(member(0), 1000)
    looks.put(member(0), stack(number))
    assert looks.stalled(GANG, MEMBERS, 2000) == (False, False)
    looks.put(member(1), stack(number, 1))
    assert looks.stalled(GANG, MEMBERS, 3000) == (False, True)
    assert sorted(looks.of(GANG)) == MEMBERS


def test_it_does_not_wait_longer_than_it_may_and_takes_what_comes_late() -> None:
    looks = GangLooks()
    looks.stalled(GANG, MEMBERS, 1000)
    number = looks.wanted(member(0), 1000)
    assert looks.stalled(GANG, MEMBERS, 1000 + WAIT_MS) == (False, True)
    assert looks.wanted(member(1), 1000 + WAIT_MS) is None
    looks.put(member(0), stack(number))
    assert list(looks.of(GANG)) == [0]


def test_a_member_is_told_once_and_again_only_when_the_answer_may_be_lost() -> None:
    looks = GangLooks()
    assert looks.wanted(member(0), 0) is None
    looks.stalled(GANG, MEMBERS, 1000)
    looks.given(member(0), 1000)
    assert looks.wanted(member(0), 2000) is None
    assert looks.wanted(member(1), 2000) == looks.wanted(member(0), 7000) == 1000


def test_a_stall_that_lasts_is_looked_at_again_without_waiting_and_the_next_one_anew() -> None:
    looks = GangLooks()
    looks.stalled(GANG, MEMBERS, 1000)
    looks.put(member(0), stack(1000))
    assert looks.stalled(GANG, MEMBERS, 1000 + AGAIN_MS) == (True, True)
    looks.put(member(1), stack(1000))
    assert list(looks.of(GANG)) == [0], "an answer to the look before is not one to this"
    looks.moves(GANG)
    assert looks.stalled(GANG, MEMBERS, 2000 + AGAIN_MS) == (True, False)


@pytest.mark.parametrize("body", [{}, {"number": 1, "ranks": [3]}, {"number": 1, "ranks": {"rank": 1}}])
def test_what_no_runner_sends_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(UserError):
        GangLooks().put(member(0), body)
