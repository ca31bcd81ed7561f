"""When a gang without steps counts as stalled by its metrics, lines and GPUs, and when never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from airyard.core.health.pulses import GpuTrack, Picture, Pulse, Told
from airyard.core.health.signs import (
    GPU_MS,
    LOGS_MS,
    METRICS_MS,
    GangSeen,
    MemberSeen,
    SignCase,
    Source,
    judge,
    moved_since,
    watched,
)

S = 1000
MINUTE = 60 * S
HOUR = 60 * MINUTE


def every(period_s: float, *, until_s: float, after_s: float = 0) -> Iterator[int]:
    """Yield the times of regular signs in ms."""
    return (round(1000 * (after_s + n * period_s)) for n in range(int((until_s - after_s) / period_s) + 1))


def pulse(times: Iterable[int], now_ms: int) -> Told | None:
    found = Pulse()
    for at_ms in times:
        if at_ms <= now_ms:
            found.beat(at_ms)
    return found.told(now_ms)


def gang(
    *, metrics: Told | None = None, logs: Told | None = None, own_ms: int = 0, gpus: str = "", nodes: int = 2
) -> GangSeen:
    """``gpus``: what the one GPU of each node is at, a letter each: w working, i idle, p pinned, x unknown."""
    members = tuple(
        MemberSeen(
            member=index,
            node=f"n{index}",
            heard_ms=S,
            devices=1 if gpus else 0,
            logs=logs if index == 0 else None,
            gpus=() if not gpus or gpus[index] == "x" else (track(gpus[index]).seen(0, 2 * HOUR),),
        )
        for index in range(len(gpus) or nodes)
    )
    return GangSeen(members=members, metrics=metrics, logs=logs, own_ms=own_ms, step=1200)


def track(what: str, still_s: int = 2000) -> GpuTrack:
    """A GPU that worked, and then was idle or pinned for so long, until two hours have passed."""
    found, since_ms = GpuTrack(), 2 * HOUR - still_s * S
    for at_ms in range(0, 2 * HOUR + 1, 10 * S):
        at_work = what == "w" or at_ms < since_ms
        percent, watts = (
            (97.0 + at_ms % 4, 600.0) if at_work else {"i": (0.0, 70.0), "p": (100.0, 180.0)}[what]
        )
        found.read(at_ms, percent, 60_000.0, watts)
    return found


NOW = 2 * HOUR
QUIET_METRICS = pulse(every(10, until_s=6000), NOW)
QUIET_LOGS = pulse(every(10, until_s=5000), NOW)


def test_a_rhythm_that_stops_is_a_stall_and_says_by_what() -> None:
    silence = judge(gang(metrics=QUIET_METRICS, logs=QUIET_LOGS))
    assert silence is not None
    assert (silence.source, silence.case, silence.step) == (Source.METRICS, SignCase.SILENT, 1200)
    assert (silence.silent_ms, silence.limit_ms) == (1200 * S, METRICS_MS)
    assert silence.message == (
        "no metric for 1200 s (limit 600 s), the last at step 1200; no log line for 2200 s"
    )
    assert (silence.nodes, silence.ranks, silence.confidence) == ((), (), 0.4)
    assert judge(gang(metrics=pulse(every(10, until_s=6610), NOW))) is None


def test_lines_are_waited_for_twice_as_long_where_gpus_say_nothing() -> None:
    logs = pulse(every(10, until_s=7200 - 1000), NOW)
    assert judge(gang(logs=logs)) is None
    silence = judge(gang(logs=logs, gpus="ii"))
    assert silence is not None
    assert (silence.source, silence.limit_ms) == (Source.LOGS, LOGS_MS)
    assert "its GPUs idle" in silence.message
    later = judge(gang(logs=pulse(every(10, until_s=7200 - 1900), NOW)))
    assert later is not None
    assert later.limit_ms == 2 * LOGS_MS
    assert judge(gang(logs=QUIET_LOGS, gpus="wi")) is None
    assert judge(gang(logs=QUIET_LOGS, gpus="ix")) is not None, "one GPU is not known: lines alone"


@pytest.mark.parametrize(
    "times",
    [
        [],
        [S],
        list(every(10, until_s=60)),
        list(every(2, until_s=400)),
        list(every(1, until_s=60)),
        [n * HOUR // 6 for n in range(8)],
    ],
    ids=["none", "one", "seven", "for minutes only", "a download", "too few"],
)
def test_without_a_rhythm_nothing_is_missed(times: list[int]) -> None:
    told = pulse(times, NOW)
    assert watched(gang(metrics=told, logs=told)) is None
    assert judge(gang(metrics=told, logs=told)) is None


def test_the_first_long_silence_that_ended_is_known_from_then_on() -> None:
    """An evaluation of 9 minutes every half an hour, then one of 17 minutes."""
    times = [at for n in range(3) for at in every(5, until_s=1800 * n + 1260, after_s=1800 * n)]
    assert judge(gang(metrics=pulse(times, 4860 * S + 17 * MINUTE))) is None
    silence = judge(gang(metrics=pulse(times, 4860 * S + 19 * MINUTE)))
    assert silence is not None
    assert silence.limit_ms == 2 * 540 * S


def test_seldom_signs_are_waited_for_by_their_own_measure() -> None:
    times = list(every(600, until_s=12_000))
    assert judge(gang(metrics=pulse(times, 12_000 * S + 49 * MINUTE))) is None
    assert judge(gang(metrics=pulse(times, 12_000 * S + 51 * MINUTE))) is not None


def test_what_else_is_at_work_speaks_against_a_stall() -> None:
    chatty = pulse(every(30, until_s=7190), NOW)
    assert judge(gang(metrics=QUIET_METRICS, logs=chatty)) is None
    assert judge(gang(metrics=QUIET_METRICS, logs=QUIET_LOGS, gpus="ww")) is None
    assert judge(gang(metrics=QUIET_METRICS, gpus="wp")) is None
    few = pulse(every(600, until_s=7190), NOW)
    assert judge(gang(metrics=QUIET_METRICS, logs=few)) is not None, "a line now and then is no rhythm"


def test_the_runs_own_limit_counts_for_metrics_alone() -> None:
    metrics = pulse(every(2, until_s=30), 40 * S)
    chatty = pulse(every(1, until_s=40), 40 * S)
    silence = judge(gang(metrics=metrics, logs=chatty, own_ms=5 * S))
    assert silence is not None
    assert (silence.limit_ms, silence.silent_ms) == (5 * S, 10 * S)
    seldom = pulse(every(20, until_s=400), 430 * S)
    assert judge(gang(metrics=seldom, own_ms=5 * S)) is None, "it came every 20 s: 40 s are waited for"


def test_a_node_that_is_not_heard_of_has_no_verdict() -> None:
    seen = gang(metrics=QUIET_METRICS)
    one, other = seen.members
    away = MemberSeen(member=1, node="n1", heard_ms=2 * MINUTE, devices=0)
    assert judge(GangSeen(members=(one, other), metrics=QUIET_METRICS)) is not None
    assert judge(GangSeen(members=(one, away), metrics=QUIET_METRICS)) is None
    assert judge(GangSeen(members=(), metrics=QUIET_METRICS)) is None


def test_a_checkpoint_is_progress() -> None:
    seen = gang(metrics=QUIET_METRICS)
    saved = GangSeen(members=seen.members, metrics=seen.metrics, checkpoint_ms=30 * S)
    assert judge(saved) is None
    assert moved_since(saved, Source.LOGS, 60 * S)


@pytest.mark.parametrize("metrics", [None, QUIET_METRICS], ids=["by GPUs", "by metrics"])
def test_the_gpu_that_idles_while_the_others_wait_is_named(metrics: Told | None) -> None:
    silence = judge(gang(metrics=metrics, gpus="ppip"))
    assert silence is not None
    assert silence.source is (Source.GPU if metrics is None else Source.METRICS)
    assert (silence.case, silence.nodes, silence.ranks) == (SignCase.GPU_IDLE, ("n2",), (2,))
    assert "GPU 0 of n2 idles while 3 others wait at 100 %" in silence.message
    assert silence.evidence == ("n2: GPU 0 idle for 2000 s",)
    assert silence.confidence == (0.2 if metrics is None else 0.6)


def test_by_gpus_alone_only_waiting_ones_count() -> None:
    waiting = judge(gang(gpus="pppp"))
    assert waiting is not None
    assert (waiting.source, waiting.case, waiting.nodes) == (Source.GPU, SignCase.SILENT, ())
    assert waiting.limit_ms == GPU_MS
    assert judge(gang(gpus="iiii")) is None, "a notebook"
    assert judge(gang(gpus="pppw")) is None
    assert judge(gang(gpus="pppx")) is None


def test_a_gpu_at_full_power_or_whose_memory_changes_is_not_pinned() -> None:
    still = GpuTrack()
    for at_ms in range(0, HOUR, 10 * S):
        still.read(at_ms, 100.0, 60_000.0, 690.0 + at_ms % 3)
    assert still.seen(0, HOUR).picture is Picture.WORKING
    moving = GpuTrack()
    for n in range(360):
        moving.read(n * 10 * S, 100.0, 60_000.0 + 500 * n, None)
    assert moving.seen(0, HOUR).still_ms == 0
    pinned = track("p")
    assert (pinned.seen(0, NOW).picture, pinned.seen(0, NOW).still_ms) == (Picture.PINNED, 2000 * S)
    pinned.read(NOW + 10 * S, 95.0, 60_000.0, 600.0)
    assert pinned.seen(0, NOW + 10 * S).longest_ms == 2010 * S


def test_a_member_whose_log_ended_clearly_earlier_is_named() -> None:
    def seen(*ends_s: int) -> GangSeen:
        told = [pulse(every(10, until_s=end_s), NOW) for end_s in ends_s]
        members = tuple(
            MemberSeen(member=index, node=f"n{index}", heard_ms=S, devices=8, logs=logs)
            for index, logs in enumerate(told)
        )
        return GangSeen(members=members, logs=max((one for one in told if one), key=lambda one: -one.age_ms))

    silence = judge(seen(5000, 5010, 4800, 5000))
    assert silence is not None
    assert (silence.case, silence.nodes, silence.ranks) == (SignCase.LOGS_ENDED_EARLIER, ("n2",), ())
    assert "the log of n2 ended earlier" in silence.message
    for close in ((5000, 5010, 4980, 5000), (5000, 4800, 4800, 5000), (5000, 4000)):
        one = judge(seen(*close))
        assert one is not None
        assert (one.case, one.nodes) == (SignCase.SILENT, ())


def test_it_is_over_once_the_sign_or_a_better_one_comes_again() -> None:
    seen = gang(metrics=pulse(every(10, until_s=7190), NOW), logs=QUIET_LOGS)
    assert moved_since(seen, Source.METRICS, 60 * S)
    assert moved_since(seen, Source.LOGS, 60 * S)
    quiet = gang(metrics=QUIET_METRICS, logs=pulse(every(10, until_s=7190), NOW), gpus="pp")
    assert not moved_since(quiet, Source.METRICS, 60 * S)
    assert not moved_since(quiet, Source.GPU, 5 * S)
    assert moved_since(gang(gpus="pw"), Source.GPU, 60 * S)
    assert not moved_since(gang(), Source.LOGS, 60 * S), "a server that was just started knows nothing"


def test_what_comes_in_one_second_is_one_sign() -> None:
    found = Pulse()
    for step in range(20):
        for n in range(100):
            found.beat(60 * S * step + 5 * n)
    told = found.told(20 * MINUTE)
    assert told is not None
    assert (told.beats, told.usual_ms) == (20, 60 * S - 495)
    steady = Pulse()
    for at_ms in range(0, 100 * S, 100):
        steady.beat(at_ms)
    told = steady.told(100 * S)
    assert told is not None
    assert (told.beats, told.usual_ms) == (100, 100)
