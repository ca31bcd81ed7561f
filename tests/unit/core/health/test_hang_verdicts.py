"""When a gang counts as stalled, and whom the verdict names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.hangs import RankSeen, StallCase, judge, limit_ms


def seen(rank: int, **more: object) -> RankSeen:
    told = {"node": f"n{rank}", "step": 100, "age_ms": 90_000, "limit_ms": 60_000, **more}
    return RankSeen(rank=rank, **told)  # type: ignore[arg-type]  # a test's shorthand


def gang(count: int = 4, **of_all: object) -> list[RankSeen]:
    return [seen(rank, **of_all) for rank in range(count)]


@pytest.mark.parametrize(
    ("p99_ms", "steps", "own_ms", "expected"),
    [
        (0, 0, 0, None),
        (0, 1, 0, 300_000),
        (100, 5, 0, 300_000),
        (70_000, 5, 0, 350_000),
        (100, 6, 0, 60_000),
        (30_000, 6, 0, 150_000),
        (30_000, 0, 5_000, 5_000),
    ],
)
def test_the_limit_follows_from_the_step_times(
    p99_ms: float, steps: int, own_ms: int, expected: int | None
) -> None:
    assert limit_ms(p99_ms, steps, own_ms=own_ms) == expected


def test_a_gang_that_makes_steps_is_well() -> None:
    assert judge([]) is None
    assert judge(gang(age_ms=60_000)) is None
    assert judge(gang(limit_ms=None)) is None


def test_a_rank_that_is_gone_goes_before_everything_else() -> None:
    verdict = judge([*gang(3, computing=False), seen(3, alive=False, step=90)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.nodes) == (StallCase.GONE, (3,), ("n3",))


def test_of_those_behind_the_furthest_is_named() -> None:
    verdict = judge([*gang(5), seen(5, step=99), seen(6, step=98)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks) == (StallCase.BEHIND, (6,))


def test_who_still_computes_while_the_others_wait_is_named_with_its_stack() -> None:
    verdict = judge([*gang(3), seen(3, computing=True, stack="File train.py, line 7 in load")])
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.suspect_node) == (StallCase.COMPUTING, (3,), "")
    assert "line 7 in load" in verdict.evidence[0]
    assert "rank 3 on n3 is still computing" in verdict.message


def test_a_rank_that_hangs_in_the_kernel_makes_its_node_a_suspect() -> None:
    verdict = judge([*gang(3), seen(3, step=99, process_state="D")])
    assert verdict is not None
    assert verdict.suspect_node == "n3"


def test_an_odd_stack_tells_when_nothing_else_does() -> None:
    verdict = judge([*gang(3, stack="all_reduce"), seen(3, stack="read")])
    assert verdict is not None
    assert (verdict.case, verdict.ranks) == (StallCase.ODD_STACK, (3,))


@pytest.mark.parametrize(
    "ranks",
    [
        gang(),
        [*gang(2), seen(2, step=99), seen(3, step=99)],
        [*gang(2, stack="a"), *(seen(rank, stack="b") for rank in (2, 3))],
        [*gang(3, stack="a"), seen(3)],
    ],
)
def test_a_half_is_no_minority_and_nobody_is_named(ranks: list[RankSeen]) -> None:
    verdict = judge(ranks)
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.confidence) == (StallCase.UNKNOWN, (), 0.0)


RANKS = st.lists(
    st.builds(
        seen,
        st.just(0),
        step=st.integers(95, 100),
        age_ms=st.integers(0, 120_000),
        alive=st.booleans(),
        computing=st.booleans(),
        stack=st.sampled_from(["", "a", "b"]),
    ),
    max_size=8,
)


@given(RANKS, st.randoms(use_true_random=False))
def test_the_order_of_the_ranks_does_not_matter(found: list[RankSeen], chance: object) -> None:
    ranks = [
        seen(rank, **{name: getattr(one, name) for name in ("step", "age_ms", "alive", "computing", "stack")})
        for rank, one in enumerate(found)
    ]
    mixed = list(ranks)
    chance.shuffle(mixed)  # type: ignore[attr-defined]  # a random.Random
    verdict = judge(ranks)
    assert judge(mixed) == verdict
    if verdict is not None:
        assert set(verdict.ranks) <= {one.rank for one in ranks}
        assert verdict.case in (StallCase.GONE, StallCase.UNKNOWN) or 2 * len(verdict.ranks) < len(ranks)
