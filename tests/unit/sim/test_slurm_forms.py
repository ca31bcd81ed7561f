"""The small forms of Slurm: times, durations, limits, resources, host lists, states."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.sim.slurm.hostlists import first_host, hosts
from airyard.sim.slurm.states import Stage, state
from airyard.sim.slurm.times import Limit, duration_ms, limit_ms, seconds_ms, time_ms
from airyard.sim.slurm.tres import generic_resources, is_slice, model_name, resources
from airyard.sim.trace.records import TraceOutcome
from airyard.sim.trace.refusal import Place

HERE = Place(source="jobs.txt", line=7, column="X")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01", 1000),
        ("2026-03-02T08:00:00", 1_772_438_400_000),
        ("2026-03-02T09:00:00+01:00", 1_772_438_400_000),
        ("1772438400", 1_772_438_400_000),
        ("Unknown", None),
        ("None", None),
        ("", None),
    ],
)
def test_a_time_is_unix_milliseconds(text: str, expected: int | None) -> None:
    assert time_ms(HERE, text) == expected


@pytest.mark.parametrize(
    "text", ["2026-13-02T08:00:00", "08:00:00", "yesterday", "-1", "1969-12-31T23:59:59", "2026-03-02"]
)
def test_what_is_no_time_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(UserError) as caught:
        time_ms(HERE, text)
    assert caught.value.code == "BAD_TRACE"
    assert caught.value.message.startswith("jobs.txt, line 7, column X: found ")
    assert caught.value.details["value"] == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0),
        ("01:30", 90),
        ("02:03:04", 7384),
        ("1-02:03:04", 93_784),
        ("30-00:00:00", 2_592_000),
        ("00:01.500", 1.5),
    ],
)
def test_a_duration_may_have_days_and_fractions(text: str, seconds: float) -> None:
    assert duration_ms(HERE, text) == seconds * 1000


@pytest.mark.parametrize("text", ["", "90", "1:2:3:4", "00:00:60", "00:60:00", "-00:01:00", "1-2", "INVALID"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected a duration"):
        duration_ms(HERE, text)


def test_seconds_are_whole_and_not_negative() -> None:
    assert seconds_ms(HERE, "90") == 90_000
    for text in ("-5", "1.5", "", "９"):
        with pytest.raises(UserError, match="a number of seconds"):
            seconds_ms(HERE, text)


def test_a_limit_is_a_duration_or_a_word() -> None:
    assert limit_ms(HERE, "2-00:00:00") == 172_800_000
    assert limit_ms(HERE, "90", in_minutes=True) == 5_400_000
    assert limit_ms(HERE, "UNLIMITED") is Limit.UNLIMITED
    assert limit_ms(HERE, "Partition_Limit", in_minutes=True) is Limit.PARTITION
    assert limit_ms(HERE, "") is Limit.NOT_GIVEN
    for text in ("00:00:00", "soon"):
        with pytest.raises(UserError):
            limit_ms(HERE, text)


def test_the_typed_gpus_are_part_of_all_gpus() -> None:
    found = resources(HERE, "billing=64,cpu=64,gres/gpu:h100=8,gres/gpu=8,license/abc=1,mem=62.50G,node=2")
    assert (found.gpus, dict(found.types), found.nodes, found.parts) == (8, {"h100": 8}, 2, 0)
    assert found.licences == ("abc",)
    assert resources(HERE, "").gpus == 0


def test_a_site_that_counts_only_types_has_their_sum() -> None:
    assert resources(HERE, "gres/gpu:h100=4,gres/gpu:a100=2,node=1").gpus == 6


@pytest.mark.parametrize(
    "text", ["gres/gpu:1g.10gb=2,gres/gpu=2", "gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=2", "gres/shard=2"]
)
def test_parts_of_a_gpu_are_no_gpus(text: str) -> None:
    found = resources(HERE, text)
    assert (found.gpus, found.parts) == (0, 2)


@pytest.mark.parametrize("text", ["gpu", "=8", "gres/gpu=eight", "gres/gpu=-3", "gres/gpu=99999999999"])
def test_what_are_no_resources_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        resources(HERE, text)


def test_a_cleared_limit_is_no_limit() -> None:
    assert resources(HERE, "gres/gpu=-1").gpus == 0


@pytest.mark.parametrize(
    ("text", "types", "parts"),
    [
        ("gpu:h100:8(S:0-1)", {"h100": 8}, 0),
        ("gpu:8", {"": 8}, 0),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1),nic:2", {"h100": 8}, 0),
        ("gpu:a100:4(S:0,2-3),gpu:h100:4", {"a100": 4, "h100": 4}, 0),
        ("gpu:h100:no_consume:8", {"h100": 8}, 0),
        ("gpu:1g.10gb:4,gpu:a100:2", {"a100": 2}, 4),
        ("shard:h100:32", {}, 32),
        ("(null)", {}, 0),
    ],
)
def test_a_node_says_its_gpus_by_type(text: str, types: dict[str, int], parts: int) -> None:
    found = generic_resources(HERE, text)
    assert (dict(found.types), found.gpus, found.parts) == (types, sum(types.values()), parts)


def test_models_are_named_as_the_live_yard_names_them() -> None:
    names = {
        name: model_name(name) for name in ("h100", "nvidia_h100_80gb_hbm3", "nvidia_a100-sxm4-80gb", "l40s")
    }
    assert list(names.values()) == ["H100", "H100", "A100", "L40S"]
    assert is_slice("a100_3g.20gb")
    assert not is_slice("nvidia_h100_80gb_hbm3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[001-002],login1", ["n001", "n002", "login1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("None assigned", []),
        ("(null)", []),
    ],
)
def test_host_lists_are_expanded(text: str, expected: list[str]) -> None:
    assert hosts(HERE, text) == expected
    assert first_host(HERE, text) == (expected[0] if expected else None)


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n[]", ",n1", "n1,,n2", "n[3-1]", "n[1-9999999]", "n 1"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        hosts(HERE, text)


def test_states_end_a_job_or_do_not() -> None:
    assert state(HERE, "CANCELLED by 1000").outcome is TraceOutcome.CANCELLED
    assert state(HERE, "NODE_FAIL").outcome is TraceOutcome.NODE_FAILED
    assert state(HERE, "RUNNING").stage is Stage.LIVE
    assert state(HERE, "REQUEUED").stage is Stage.CONTINUES
    newer = state(HERE, "TELEPORTED")
    assert (newer.known, newer.outcome) == (False, TraceOutcome.UNKNOWN)
    with pytest.raises(UserError, match="expected a job state"):
        state(HERE, "2026-03-02T08:00:00")
