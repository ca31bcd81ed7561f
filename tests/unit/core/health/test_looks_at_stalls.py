"""What a look at all ranks adds to the verdict on a stall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.hangs import RankSeen, StallCase, judge, single_out
from airyard.core.health.stacks import normal, of_program

WAITS = "poll (libc.so.6)\nncclWait (libnccl.so)\nall_reduce (dist.py:2{n})\ntrain (run.py:40)"
LOADS = "read (libc.so.6)\nnext_batch (loader.py:7)\ntrain (run.py:31)"


def looked(rank: int, **more: object) -> RankSeen:
    fields = {"node": f"n{rank}", "step": 0, "age_ms": 0, "limit_ms": None, "told": False, **more}
    return RankSeen(rank=rank, **fields)  # type: ignore[arg-type]  # a test's shorthand


def late(rank: int, **more: object) -> RankSeen:
    return looked(rank, **{"told": True, "step": 9, "age_ms": 90_000, "limit_ms": 60_000, **more})


def test_a_stack_is_compared_without_what_differs_between_processes() -> None:
    one = "0x7f22e72a3f16 (libc.so.6)\nsleep (libc.so.6)\ninner (a.py:5)\nouter (b.py:9)\n0x7f00 (libc.so.6)"
    assert normal(one) == "sleep (libc.so.6)\ninner (a.py:5)\nouter (b.py)"
    assert normal(one) == normal(one.replace("b.py:9", "b.py:12").replace("0x7f22e72a3f16", "0x7000"))
    assert normal(one) != normal(one.replace("a.py:5", "a.py:6"))
    assert of_program(one) == "inner (a.py:5)\nouter (b.py)"


def test_who_stands_elsewhere_is_named_without_a_word_of_its_own() -> None:
    case, odd = single_out(
        [*(looked(n, looked=WAITS.format(n=0)) for n in range(3)), looked(3, looked=LOADS)]
    )
    assert (case, [one.rank for one in odd]) == (StallCase.ODD_STACK, [3])


def test_ranks_that_spin_at_different_places_of_a_library_stand_at_one_place_of_the_program() -> None:
    spinning = [looked(n, looked=f"spin_{n} (libnccl.so)\nall_reduce (dist.py:20)") for n in range(3)]
    case, odd = single_out([*spinning, looked(3, looked=LOADS)])
    assert (case, [one.rank for one in odd]) == (StallCase.ODD_STACK, [3])


def test_nobody_is_named_while_a_stack_is_missing() -> None:
    assert single_out([looked(0, looked=WAITS), looked(1, looked=WAITS), looked(2)]) == (
        StallCase.UNKNOWN,
        (),
    )


def test_a_gpu_that_is_gone_goes_before_everything_and_makes_its_node_a_suspect() -> None:
    verdict = judge([late(0), late(1, gpu_lost=True), late(2, alive=False)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.suspect_node) == (StallCase.GPU_LOST, (1,), "n1")
    assert "GPU that does not answer" in verdict.message


def test_who_idles_while_all_others_wait_is_named_unless_a_gpu_says_nothing() -> None:
    waiting = [late(n, gpu_least=100, gpu_most=100) for n in range(3)]
    verdict = judge([*waiting, late(3, gpu_least=0, gpu_most=0)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks, verdict.suspect_node) == (StallCase.GPU_IDLE, (3,), "")
    unclear = judge([*waiting[:2], late(2), late(3, gpu_least=0, gpu_most=0)])
    assert unclear is not None
    assert unclear.case is StallCase.UNKNOWN


def test_a_rank_that_tells_of_no_steps_is_not_behind() -> None:
    verdict = judge([late(0), late(1), late(2), looked(3)])
    assert verdict is not None
    assert verdict.case is StallCase.UNKNOWN


def test_steps_say_more_than_a_look() -> None:
    verdict = judge([late(0, gpu_least=0, gpu_most=0), late(1, gpu_least=99, gpu_most=100, step=8), late(2)])
    assert verdict is not None
    assert (verdict.case, verdict.ranks) == (StallCase.BEHIND, (1,))


@given(st.permutations(range(5)))
def test_the_order_of_the_ranks_does_not_matter(order: list[int]) -> None:
    ranks = [late(n, looked=LOADS if n == 2 else WAITS) for n in range(5)]
    assert judge(ranks[n] for n in order) == judge(ranks)


def test_the_evidence_says_where_all_stacks_are() -> None:
    ranks = [late(0, looked=WAITS), late(1, looked=LOADS), late(2)]
    verdict = judge(ranks, logs="airyard logs 7 --attempt 1")
    assert verdict is not None
    assert verdict.evidence[-1] == (
        "the stacks of 2 ranks, and their GPUs, are in the members' logs: airyard logs 7 --attempt 1"
    )
    unseen = judge([late(0), late(1)], logs="airyard logs 7 --attempt 1")
    assert unseen is not None
    assert "airyard logs" not in str(unseen.evidence)
