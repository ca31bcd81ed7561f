"""What is remembered of the signs of attempts, and when a verdict on them can be relied on."""

from __future__ import annotations

from dataclasses import replace

from airyard.app import gang_signs
from airyard.app.gang_signs import MOST_GANGS, MOST_GPUS, SAME_FOR_MS, GangSigns
from airyard.core.health.pulses import Picture
from airyard.core.health.signs import SignCase, Source
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.run import Attempt
from core_samples import ATTEMPT, MEMBER

S = 1000


def gang(devices: tuple[int, ...] = (0,)) -> Attempt:
    members = tuple(replace(MEMBER, index=n, node=f"n{n}", devices=devices) for n in range(2))
    return replace(ATTEMPT, members=members)


def test_a_verdict_counts_once_it_stayed_the_same_and_ends_with_the_next_sign() -> None:
    signs, attempt = GangSigns(), gang()
    for n in range(20):
        signs.measured(attempt.key, n, n * 2 * S)
    for now_ms in range(40 * S, 80 * S, 10 * S):
        for member in range(2):
            signs.heard(attempt.member_key(member), now_ms)
        seen = signs.seen(attempt, now_ms, own_ms=5 * S)
        assert seen is not None
        sure, silence = signs.confirmed(attempt.key, seen, now_ms)
        # The last metric came at 38 s, so that the look at 50 s is the first that finds it away.
        assert (silence is not None) == (now_ms >= 50 * S)
        assert sure == (now_ms == 40 * S or now_ms - 50 * S >= SAME_FOR_MS)
    assert silence is not None
    assert (silence.source, silence.case, silence.step) == (Source.METRICS, SignCase.SILENT, 19)
    signs.measured(attempt.key, 20, 80 * S)
    seen = signs.seen(attempt, 81 * S, own_ms=5 * S)
    assert seen is not None
    assert signs.confirmed(attempt.key, seen, 81 * S) == (True, None)


def test_a_member_that_nobody_heard_of_leaves_it_open() -> None:
    signs, attempt = GangSigns(), gang()
    for n in range(20):
        signs.measured(attempt.key, None, n * 2 * S)
    signs.heard(attempt.member_key(0), 60 * S)
    seen = signs.seen(attempt, 60 * S, own_ms=5 * S)
    assert seen is not None
    assert signs.confirmed(attempt.key, seen, 60 * S) == (True, None)
    assert signs.seen(replace(attempt, number=attempt.number + 1), 60 * S) is None


def test_readings_of_gpus_are_taken_by_their_names() -> None:
    signs, attempt = GangSigns(), gang()
    key = attempt.member_key(1)
    values = {
        "gpu_3_utilization_percentage": 0.0,
        "gpu_3_memory_usage_megabytes": 500.0,
        "gpu_3_power_usage_watts": 90.0,
        "gpu_x_utilization_percentage": 50.0,
        "cpu_utilization_percentage": 12.0,
    }
    for at_ms in (0, 10 * S, 20 * S):
        signs.sampled(key, values, at_ms)
    seen = signs.seen(attempt, 25 * S)
    assert seen is not None
    assert seen.members[0].gpus == ()
    (gpu,) = seen.members[1].gpus
    assert (gpu.index, gpu.picture, gpu.still_ms, gpu.age_ms) == (3, Picture.IDLE, 20 * S, 5 * S)


def test_memory_is_bounded() -> None:
    signs = GangSigns()
    keys = [AttemptKey(run_id, 0) for run_id in range(MOST_GANGS + 10)]
    for key in keys:
        signs.measured(key, 1, 0)
    signs.sampled(
        MemberKey(keys[-1].run_id, 0, 0),
        {f"gpu_{n}_utilization_percentage": 1.0 for n in range(MOST_GPUS + 9)},
        0,
    )
    one = replace(gang(), run_id=keys[-1].run_id, number=0)
    seen = signs.seen(one, 0)
    assert seen is not None
    assert len(seen.members[0].gpus) == MOST_GPUS
    assert signs.seen(replace(one, run_id=keys[0].run_id), 0) is None
    signs.keep({keys[-2]})
    assert signs.seen(one, 0) is None
    assert signs.seen(replace(one, run_id=keys[-2].run_id), 0) is not None
    assert gang_signs.SAME_FOR_MS > 10 * S, "more than one look of the watch"
