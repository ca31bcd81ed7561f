"""What a pool asks of two of its nodes: its own ``nodes_gb_s``, for what one test between them moves.

Owns: which limit of a pool counts for pairs. Must not know: how a pair is measured, what a failure leads to.

The packaged figure does not count here: it is of fabrics that this pool may not have, and pairs are compared anyhow.
"""

from __future__ import annotations

from functools import cache

from airyard.app.control import Control
from airyard.app.loop import ControlLoop
from airyard.checks.limit import Limit, whose
from airyard.checks.thresholds import Table, generation_of, limits, of_pool, packaged
from airyard.core.cluster import Node
from airyard.core.policy_json import limits_to_json

METHODS = frozenset({"nccl", "simulated"})
"""How a pair is measured where this counts: bandwidth of the bus of an all-reduce over all GPUs."""
_packaged = cache(packaged)


def due_of(loop: ControlLoop, node: Node) -> Limit | None:
    """Return what two nodes like this one have to reach by their pool's limits as they are now; None: it has none."""

    def read(control: Control) -> Table:
        policy = control.state.policy
        pool = policy.pool(policy.pool_of(node))
        return of_pool(_packaged(), limits_to_json(pool.thresholds), pool.name)

    found = limits(loop.peek(read), generation_of(node.model or ""))
    nodes = found.get("nodes_gb_s")
    if not whose(nodes):
        return None
    # A block of a pair test is a gigabyte: below eight only a part of the figure is asked, as for an all-reduce.
    due = (nodes or 0.0) * found["small_message_share"]
    return due if isinstance(due, Limit) else None
