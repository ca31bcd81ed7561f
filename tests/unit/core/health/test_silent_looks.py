"""What a look adds to the verdict on a gang that tells of no steps."""

from __future__ import annotations

from airyard.core.health.hangs import RankSeen, StallCase
from airyard.core.health.signs import SignCase, Silence, Source
from airyard.core.health.silent_looks import with_look

WAITS = "poll (libc.so.6)\nall_reduce (dist.py:20)\ntrain (run.py:40)"
LOADS = "read (libc.so.6)\nnext_batch (loader.py:7)\ntrain (run.py:31)"
SILENT = Silence(
    source=Source.METRICS,
    case=SignCase.SILENT,
    ranks=(),
    nodes=(),
    confidence=0.4,
    silent_ms=700_000,
    limit_ms=600_000,
    step=12,
    message="no metric for 700 s (limit 600 s), the last at step 12; nothing tells its nodes apart",
    evidence=("n0: the last log line 700 s ago",),
)


def seen(rank: int, stack: str = WAITS, *, lost: bool = False) -> RankSeen:
    return RankSeen(
        rank=rank,
        node=f"n{rank}",
        step=0,
        age_ms=0,
        limit_ms=None,
        told=False,
        looked=stack,
        gpu_lost=lost,
    )


def test_the_rank_that_stands_elsewhere_is_named_and_the_hang_is_no_surer_for_it() -> None:
    found = with_look(SILENT, [seen(2), seen(1, LOADS), seen(0)], whole=True)
    assert (found.case, found.ranks, found.nodes) == (StallCase.ODD_STACK, (1,), ("n1",))
    assert (found.confidence, found.suspect_node) == (0.4, "")
    assert found.message == (
        "no metric for 700 s (limit 600 s), the last at step 12; "
        "rank 1 on n1 stands elsewhere in the program than the others"
    )
    assert "next_batch (loader.py:7)" in found.evidence[0]
    assert found.evidence[-1] == SILENT.evidence[0]


def test_while_a_member_was_not_seen_only_a_lost_gpu_names_a_rank() -> None:
    ranks = [seen(0), seen(1, LOADS), seen(2)]
    found = with_look(SILENT, ranks, whole=False)
    assert (found.case, found.ranks, found.message) == (SignCase.SILENT, (), SILENT.message)
    assert len(found.evidence) == 4
    lost = with_look(SILENT, [seen(0), seen(1, lost=True)], whole=False)
    assert (lost.case, lost.ranks, lost.suspect_node) == (StallCase.GPU_LOST, (1,), "n1")
    assert lost.confidence == 0.95


def test_a_look_that_saw_nobody_changes_nothing() -> None:
    assert with_look(SILENT, [], whole=False) == SILENT


def test_ranks_that_all_wait_at_one_place_are_evidence_and_name_nobody() -> None:
    found = with_look(SILENT, [seen(n) for n in range(6)], whole=True)
    assert (found.case, found.ranks) == (SignCase.SILENT, ())
    assert len(found.evidence) == 1 + 4
    assert "all_reduce (dist.py:20)" in found.evidence[1]
