"""Who holds up a collective, by the table of cases."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.collectives import CollectiveCase, Operation, Place, judge
from airyard.core.health.hangs import RankSeen, StallCase
from airyard.core.health.hangs import judge as judge_gang

NODES = {rank: f"n{rank // 2}" for rank in range(8)}


def at(enqueued: int, completed: int, started: int | None = None, *, group: str = "0", **last: str) -> Place:
    operation = Operation(
        seq=enqueued,
        name=last.get("name", "nccl:all_reduce"),
        sizes=last.get("sizes", "[[4]]"),
        types=last.get("types", "['Float']"),
    )
    return Place(group=group, enqueued=enqueued, completed=completed, started=started, last=(operation,))


def gang(usual: Place, **others: Place) -> dict[int, list[Place]]:
    return {rank: [others.get(f"r{rank}", usual)] for rank in range(4)}


ROWS = [
    ("all is done", gang(at(9, 9)), None, ()),
    ("another operation", gang(at(9, 8), r2=at(9, 8, name="nccl:broadcast")), CollectiveCase.MISMATCH, (2,)),
    ("another size", gang(at(9, 8), r2=at(9, 8, sizes="[[5]]")), CollectiveCase.MISMATCH, (2,)),
    ("sizes of a gather may differ", gang(at(9, 9, name="gather"), r2=at(9, 9, name="gather", sizes="[]")), None, ()),
    ("half and half differ", gang(at(9, 8), r2=at(9, 8, sizes="[]"), r3=at(9, 8, sizes="[]")),
     CollectiveCase.MISMATCH, ()),
    ("far apart", gang(at(96_120, 96_120), r1=at(64_089, 64_088)), CollectiveCase.DESYNC, ()),
    ("one has not come", gang(at(9, 8), r1=at(8, 8)), CollectiveCase.NOT_ENQUEUED, (1,)),
    ("half have not come", gang(at(9, 8), r1=at(8, 8), r2=at(8, 8)), None, ()),
    ("one GPU has not begun", gang(at(9, 8, 9), r3=at(9, 8, 8)), CollectiveCase.NOT_STARTED, (3,)),
    ("none is done", gang(at(9, 8, 9)), CollectiveCase.NOT_COMPLETED, ()),
    ("when they begin is not recorded", gang(at(9, 8)), None, ()),
]  # fmt: skip


@pytest.mark.parametrize(("places", "case", "ranks"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_table(
    places: dict[int, list[Place]], case: CollectiveCase | None, ranks: tuple[int, ...]
) -> None:
    found = judge(places, NODES)
    assert (found and found.case) == case
    assert found is None or (found.ranks, found.group) == (ranks, "0")


def test_two_ranks_say_nothing() -> None:
    assert judge({0: [at(9, 8)], 1: [at(8, 8)]}, NODES) is None


def test_who_waits_in_one_group_is_not_what_holds_up_another() -> None:
    """Rank 1 has not come to group b, because it waits in a, to which rank 0 has not come."""
    a = {rank: at(9, 8, group="a") for rank in (1, 2, 3)} | {0: at(8, 8, group="a")}
    b = {rank: at(5, 4, group="b") for rank in (4, 5, 6)} | {1: at(4, 4, group="b")}
    places = {rank: [found[rank] for found in (a, b) if rank in found] for rank in range(7)}
    found = judge(places, NODES)
    assert found is not None
    assert (found.case, found.ranks) == (CollectiveCase.NOT_ENQUEUED, (0,))


def test_the_node_that_all_stuck_groups_share_is_found() -> None:
    groups = {"a": (0, 2, 4), "b": (1, 3, 4), "c": (0, 3, 5)}
    places: dict[int, list[Place]] = {rank: [] for rank in range(8)}
    for name, ranks in groups.items():
        for rank in ranks:
            places[rank].append(at(9, 8, 9, group=name))
    found = judge(places, {**NODES, 0: "n0", 1: "n1", 2: "n2", 3: "n3", 4: "x", 5: "x"})
    assert found is not None
    assert (found.case, found.ranks) == (CollectiveCase.NOT_COMPLETED, (4, 5))


def seen(rank: int, place: Place) -> RankSeen:
    return RankSeen(rank=rank, node=f"n{rank}", step=9, age_ms=90_000, limit_ms=60_000, places=(place,))


@pytest.mark.parametrize(
    ("odd", "case", "suspect"),
    [
        (at(8, 8, 8), StallCase.NOT_ENQUEUED, ""),
        (at(9, 8, 8), StallCase.NOT_STARTED, "n3"),
        (at(9, 8, 9, name="nccl:broadcast"), StallCase.MISMATCH, ""),
    ],
)
def test_a_stall_is_judged_by_it_and_only_a_gpu_makes_a_suspect(
    odd: Place, case: StallCase, suspect: str
) -> None:
    verdict = judge_gang([*(seen(rank, at(9, 8, 9)) for rank in range(3)), seen(3, odd)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.suspect_node) == (case, (3,), suspect)
    assert "of group 0" in verdict.message


PLACES = st.builds(
    at,
    st.integers(7, 9),
    st.integers(6, 9),
    st.one_of(st.none(), st.integers(6, 9)),
    name=st.sampled_from(["nccl:all_reduce", "nccl:broadcast"]),
)


@given(st.lists(PLACES, min_size=1, max_size=8), st.integers())
def test_ranks_by_other_names_are_judged_alike(found: list[Place], seed: int) -> None:
    order = list(range(len(found)))
    Random(seed).shuffle(order)
    plain = judge({rank: [place] for rank, place in enumerate(found)}, {})
    mixed = judge({order[rank]: [place] for rank, place in enumerate(found)}, {})
    if plain is None or mixed is None:
        assert plain is mixed
    elif plain.case is not CollectiveCase.MISMATCH:  # of equally frequent kinds none is named
        assert (plain.case, {order[rank] for rank in plain.ranks}) == (mixed.case, set(mixed.ranks))
