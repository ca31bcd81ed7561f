"""Whether a gang could ever stand on the yard as it is, and why not.

Owns: fit of shape, type, pool and size. Must not know: the queue, priorities, what is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.core.scheduling.nodes import natural, starts_as
from airyard.core.scheduling.plan import NodeView, Reason, Refusal, Waiting


def fits_pool(node: NodeView, want: Waiting) -> bool:
    """True when the node's type and pool are what the run asks for."""
    if want.pool is not None and node.pool.lower() != want.pool.lower():
        return False
    return node.model == want.model and (want.model is not None or node.accelerator == want.accelerator)


def fits_size(node: NodeView, want: Waiting) -> bool:
    """True when the node, were it empty, could hold a member, and start it as the account that it is to run as."""
    return (
        node.total >= want.devices_per_node
        and node.cpus >= (want.cpus or 0)
        and node.memory_bytes >= (want.memory_bytes or 0)
        and starts_as(node.run_as, want.unix_user)
    )


def shape_in_words(want: Waiting) -> str:
    """Return the gang in words: ``2 nodes of GPU_8xH100``."""
    return f"{want.nodes} node{'s' if want.nodes != 1 else ''} of {want.accelerator}"


def impossible(offers: Sequence[tuple[NodeView, int]], want: Waiting) -> Refusal | None:
    """Return why the run can never start on the yard as it is, or None when it could on an empty yard.

    ``offers`` are nodes with the number of those that are like them, fabric included. A gang stands in one pool.
    """
    offered = sorted({node.accelerator for node, _ in offers}, key=natural)
    of_pool = [(node, count) for node, count in offers if fits_pool(node, want)]
    if not of_pool:
        where = f" in pool {want.pool}" if want.pool else ""
        return Refusal(
            run_id=want.run_id,
            reason=Reason.NO_SUCH_ACCELERATOR,
            message=f"no node offers {want.accelerator}{where}; this yard has {', '.join(offered) or 'no nodes yet'}",
            evidence={"offered": offered},
        )
    switching = [(node, count) for node, count in of_pool if starts_as(node.run_as, want.unix_user)]
    if not switching:
        return _nobody_switches(of_pool, want)
    blocks: dict[tuple[str, str], int] = {}
    for node, count in of_pool:
        if fits_size(node, want):
            block = node.pool, node.fabric if want.same_fabric else ""
            blocks[block] = blocks.get(block, 0) + count
    most = max(blocks.values(), default=0)
    if most >= want.nodes:
        return None
    largest = max(node.total for node, _ in switching)
    if not most:
        message = _too_large([node for node, _ in switching], want)
    else:
        message = f"it asks {shape_in_words(want)}{_too_many(blocks, most, same_fabric=want.same_fabric)}"
    return Refusal(
        run_id=want.run_id,
        reason=Reason.EXCEEDS_POOL,
        message=message,
        evidence={"nodes_asked": want.nodes, "nodes_fitting": most, "largest_node_devices": largest},
    )


def _nobody_switches(of_pool: Sequence[tuple[NodeView, int]], want: Waiting) -> Refusal:
    """Say whom the agents of the nodes that would serve start members as."""
    count = sum(count for _, count in of_pool)
    others = sorted({node.run_as for node, _ in of_pool if node.run_as})
    named = f" but as {', '.join(others[:5])}" if others else ""
    return Refusal(
        run_id=want.run_id,
        reason=Reason.CANNOT_SWITCH_USER,
        message=f"it runs as Unix user {want.unix_user}, and the agents of the {count} nodes of {want.accelerator} "
        f"here start nobody{named}: an agent that switches users runs as root",
        evidence={"unix_user": want.unix_user, "nodes": count, "agents_run_as": others},
    )


def _too_many(blocks: dict[tuple[str, str], int], most: int, *, same_fabric: bool) -> str:
    """Name the pool, or the fabric, that has most of such nodes."""
    pool, fabric = min(block for block, count in blocks.items() if count == most)
    if same_fabric:
        return f" on one fabric; the largest, {fabric or 'without a label'} in pool {pool}, has {most} that could serve"
    where = "the yard" if len(blocks) == 1 else f"pool {pool}"
    return f"; {where} has {most} that could serve"


def _too_large(nodes: Sequence[NodeView], want: Waiting) -> str:
    """Compare what a member asks with the largest of each; only what was asked is named."""
    asked = [f"{want.devices_per_node} devices"]
    there = [f"{max(node.total for node in nodes)} devices"]
    if want.cpus:
        asked.append(f"{want.cpus:g} CPU cores")
        there.append(f"{max(node.cpus for node in nodes):g} cores")
    if want.memory_bytes:
        asked.append(f"{want.memory_bytes / 2**30:.4g} GiB of memory")
        there.append(f"{max(node.memory_bytes for node in nodes) / 2**30:.4g} GiB")
    return f"it asks {', '.join(asked)} a node; such a node has at most {', '.join(there)}"
