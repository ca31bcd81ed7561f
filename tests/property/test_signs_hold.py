"""Whatever a gang's rhythm is: no verdict while its trusted sign keeps it, and one at last when it ends."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.health.pulses import Pulse, Told
from airyard.core.health.signs import GangSeen, MemberSeen, Source, judge, watched

MEMBER = MemberSeen(member=0, node="n0", heard_ms=0, devices=0)


def seen(metrics: Told | None, logs: Told | None, own_ms: int) -> GangSeen:
    return GangSeen(members=(MEMBER,), metrics=metrics, logs=logs, own_ms=own_ms)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    period_s=st.floats(0.2, 900),
    jitter=st.floats(0, 0.9),
    pause=st.floats(1, 1.9),
    own_s=st.one_of(st.just(0), st.integers(1, 600)),
    others=st.booleans(),
)
def test_no_verdict_while_the_trusted_sign_keeps_its_rhythm(
    seed: int, period_s: float, jitter: float, pause: float, own_s: int, others: bool
) -> None:
    """Logs may be silent or not; gaps vary, and now and then one is as long as nearly twice the longest before."""
    draw, metrics, logs = Random(seed), Pulse(), Pulse()
    now_ms, longest = 0, period_s * (1 + jitter)
    judged = False
    for number in range(200):
        metrics.beat(now_ms)
        if others or number < 60:
            logs.beat(now_ms)
        gap_s = period_s * (1 + jitter * draw.uniform(-1, 1))
        if not own_s and number == 150:
            gap_s = longest = pause * longest
        # Just before the next sign nothing has come for the longest time.
        next_ms = now_ms + max(1, round(1000 * gap_s))
        told = seen(metrics.told(next_ms - 1), logs.told(next_ms - 1), 1000 * own_s)
        by = watched(told)
        if by is not None and by.source is Source.METRICS:
            judged = True
            # A run's own limit may be shorter than the first gaps; it is never shorter than those that are known.
            if not own_s or number >= 60:
                assert judge(told) is None
        now_ms = next_ms
    if not judged:
        return
    last_ms = now_ms
    for after_s in (3600, 24 * 3600):
        silence = judge(seen(metrics.told(last_ms + 1000 * after_s), None, 1000 * own_s))
        if after_s > 10 * longest + 600:
            assert silence is not None
