"""Expected releases of a node: in order, between the medians and the last p90, whatever order runs are given in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airyard.core.scheduling.ends import Staying, releases

HOUR = 3_600_000

runs = st.builds(
    lambda since, whole, more, devices: Staying(since + whole, since + whole + more, since, devices),
    st.integers(1, 100 * HOUR),
    st.integers(1, 100 * HOUR),
    st.integers(0, 400 * HOUR),
    st.integers(1, 4),
)


@given(st.lists(runs, min_size=1, max_size=12))
def test_releases_never_go_back_and_stay_between_the_medians_and_the_last_p90(staying: list[Staying]) -> None:
    found = list(releases(staying))
    assert len(found) == sum(one.devices for one in staying)
    assert found == sorted(found)
    assert found[0] >= min(one.end_ms for one in staying)
    assert max(one.end_ms for one in staying) <= found[-1] <= max(one.late_end_ms for one in staying)
    assert list(releases(reversed(staying))) == found
