"""Which nodes could ever, and can now, hold a member of a gang; and the choice among those that can.

Owns: fit of shape, type, pool and size, and packing. Must not know: order of the queue or priorities.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from airyard.core.placement import Seat
from airyard.core.scheduling.plan import NodeView, Reason, Refusal, Waiting

Free = Mapping[str, tuple[int, ...]]
"""Node name → indexes of devices that may be given away now."""


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which ``n10`` comes after ``n9``."""
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name) if p)


def fits_pool(node: NodeView, want: Waiting) -> bool:
    """True when the node's type and pool are what the run asks for."""
    if want.pool is not None and node.pool.lower() != want.pool.lower():
        return False
    return node.model == want.model and (want.model is not None or node.accelerator == want.accelerator)


def fits_size(node: NodeView, want: Waiting) -> bool:
    """True when the node, were it empty, could hold a member."""
    return (
        node.total >= want.devices_per_node
        and node.cpus >= (want.cpus or 0)
        and node.memory_bytes >= (want.memory_bytes or 0)
    )


def candidates(nodes: Sequence[NodeView], want: Waiting) -> list[NodeView]:
    """Return the nodes that could hold a member if they were up, open and empty."""
    return [node for node in nodes if fits_pool(node, want) and fits_size(node, want)]


def place(nodes: Iterable[NodeView], free: Free, want: Waiting) -> tuple[Seat, ...] | None:
    """Choose seats for the whole gang among ``nodes``, or None when it does not fit now.

    Part-node gangs are packed: the smallest node type that serves, then the node with the fewest free devices, so that
    whole nodes stay free. Avoided nodes come last. Ranks follow the nodes' natural order.
    """
    count = want.devices_per_node
    usable = [n for n in nodes if n.alive and not n.cordoned and len(free[n.name]) >= count]
    if len(usable) < want.nodes:
        return None
    key: Callable[[NodeView], object] = lambda n: (  # noqa: E731  # a sort key reads best beside its use
        n.name in want.avoid_nodes,
        n.total,
        len(free[n.name]),
        natural(n.name),
    )
    chosen = sorted(usable, key=key)[: want.nodes]  # type: ignore[arg-type]  # tuples of one shape compare
    chosen.sort(key=lambda n: natural(n.name))
    return tuple(Seat(node=n.name, machine=n.machine, devices=free[n.name][:count]) for n in chosen)


def shape(want: Waiting) -> str:
    """Return the gang in words: ``2 nodes of GPU_8xH100``."""
    return f"{want.nodes} node{'s' if want.nodes != 1 else ''} of {want.accelerator}"


def impossible(nodes: Sequence[NodeView], want: Waiting) -> Refusal | None:
    """Return why the run can never start on the yard as it is, or None when it could on an empty yard."""
    offered = sorted({node.accelerator for node in nodes}, key=natural)
    of_pool = [node for node in nodes if fits_pool(node, want)]
    if not of_pool:
        where = f" in pool {want.pool}" if want.pool else ""
        return Refusal(
            run_id=want.run_id,
            reason=Reason.NO_SUCH_ACCELERATOR,
            message=f"no node offers {want.accelerator}{where}; this yard has {', '.join(offered) or 'no nodes yet'}",
            evidence={"offered": offered},
        )
    fitting = [node for node in of_pool if fits_size(node, want)]
    if len(fitting) >= want.nodes:
        return None
    largest = max(node.total for node in of_pool)
    if not fitting:
        message = _too_large(of_pool, want)
    else:
        message = f"it asks {shape(want)}; the yard has {len(fitting)} that could serve"
    return Refusal(
        run_id=want.run_id,
        reason=Reason.EXCEEDS_POOL,
        message=message,
        evidence={"nodes_asked": want.nodes, "nodes_fitting": len(fitting), "largest_node_devices": largest},
    )


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
