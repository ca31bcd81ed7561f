"""However a run times its checkpoints, what the state knows of them is fresh enough to tell what a stop would cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airyard.core import commands as c
from airyard.core.decide.members import CHECKPOINT_PERIOD_MS
from core_yard import Yard, node, workload

GAPS_S = st.lists(
    st.one_of(st.floats(0, 5), st.floats(5, 70), st.floats(70, 4000)).map(lambda s: round(s, 3)), max_size=40
)


def running() -> Yard:
    yard = Yard(node("a"))
    yard.submit(workload())
    yard.place()
    yard.start("1.0.0")
    return yard


@given(GAPS_S)
def test_the_state_is_at_most_a_minute_behind_the_newest_checkpoint(gaps_s: list[float]) -> None:
    yard, newest_ms, journalled = running(), None, 0
    for step, gap_s in enumerate(gaps_s):
        yard.later(gap_s)
        journalled += len(yard.save("1.0.0", step).events)
        newest_ms = yard.now_ms
        known = yard.attempt(1).checkpoint
        assert known is not None
        assert 0 <= newest_ms - known.at_ms < CHECKPOINT_PERIOD_MS
    # And no more is written for it than one record in that time.
    assert journalled <= 1 + sum(gaps_s) * 1000 / CHECKPOINT_PERIOD_MS


@given(GAPS_S.filter(bool))
def test_from_a_stop_on_the_newest_is_known_at_once(gaps_s: list[float]) -> None:
    yard = running()
    for step, gap_s in enumerate(gaps_s[:-1]):
        yard.later(gap_s).save("1.0.0", step)
    yard.do(c.CancelRun(run_id=1, by="ada"))
    yard.later(1).save("1.0.0", 1000)
    known = yard.attempt(1).checkpoint
    assert known is not None
    assert (known.step, known.at_ms) == (1000, yard.now_ms)
