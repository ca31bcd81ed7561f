"""What a look at all ranks adds to a verdict that rests on other signs than steps.

Owns: when a look names ranks that the signs could not, how sure that is. Must not know: how a look is taken, how signs
are counted (``pulses.py``). That a gang hangs at all is no surer for a rank that stands elsewhere, so that the
confidence stays that of the signs; only a GPU that is gone is proof of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airyard.core.health import hangs
from airyard.core.health.hangs import CONFIDENCE, RankSeen, StallCase
from airyard.core.health.signs import Silence

_SHOWN = 4
_WHAT = {
    StallCase.GPU_LOST: "has a GPU that does not answer any more",
    StallCase.GPU_IDLE: "has idle GPUs while all others are busy, as in waiting",
    StallCase.ODD_STACK: "stands elsewhere in the program than the others",
}


def with_look(silence: Silence, looked: Iterable[RankSeen], *, whole: bool) -> Silence:
    """Return the verdict with what the look tells. ``whole``: ranks of all members were seen.

    While some were not, nothing but a lost GPU tells one rank from the others. Stacks are evidence in any case.
    """
    ranks = sorted(looked, key=lambda one: one.rank)
    if not ranks:
        return silence
    case, odd = hangs.single_out(ranks)
    if not odd or (case is not StallCase.GPU_LOST and not whole):
        seen = tuple(hangs.rank_evidence(one) for one in ranks[:_SHOWN])
        return replace(silence, evidence=(*silence.evidence, *seen))
    who = ", ".join(f"{one.rank} on {one.node}" for one in odd[:_SHOWN])
    more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
    lost = case is StallCase.GPU_LOST
    return replace(
        silence,
        case=case,
        ranks=tuple(one.rank for one in odd),
        nodes=tuple(sorted({one.node for one in odd})),
        confidence=CONFIDENCE[case] if lost else silence.confidence,
        suspect_node=odd[0].node if lost else "",
        message=f"{silence.message.removesuffix('; nothing tells its nodes apart')}; rank {who}{more} {_WHAT[case]}",
        evidence=tuple(hangs.rank_evidence(one) for one in odd[:_SHOWN]) + silence.evidence,
    )
