"""Makes pools, which do not overlap, of Slurm's partitions, which may.

Owns: which node and which run belong to which pool. Must not know: the form of Slurm's output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from airyard.sim.slurm.nodes import SlurmNode
from airyard.sim.slurm.sacct import Start
from airyard.sim.slurm.topology import feature_labels
from airyard.sim.slurm.tres import model_name
from airyard.sim.trace.records import TraceNode
from airyard.sim.trace.tally import Left, Tally


def partition_of(start: Start) -> str:
    """Name the pool of a start where no nodes are known: its partition."""
    return start.partition or "unknown"


class Pools:
    """The pools of a set of nodes.

    Partitions that share nodes are joined; what is joined is split by type of node (so many GPUs of such a model). A
    pool is named after the largest of its partitions, and, where that is split, after the type too.
    """

    def __init__(
        self, nodes: Iterable[SlurmNode], topology: Mapping[str, Mapping[str, str]] | None, tally: Tally
    ) -> None:
        serving = [node for node in nodes if _serves(node, tally)]
        self._names = _joined(serving, tally)
        self._tally = tally
        kinds: dict[str, set[tuple[str, int]]] = {}
        for node in serving:
            kinds.setdefault(self._names[node.partitions[0]], set()).update(_kinds(node))
        tally.add_all(Left.SPLIT_PARTITIONS, sorted(name for name, found in kinds.items() if len(found) > 1))
        self.nodes: list[TraceNode] = []
        self._by_host: dict[str, list[TraceNode]] = {}
        self._by_partition: dict[str, Counter[str]] = {}
        self._models: dict[str, str | None] = {}
        for node in serving:
            name = self._names[node.partitions[0]]
            for part in _parts(node, name, split=len(kinds[name]) > 1, labels=_labels(node, topology, tally)):
                self.nodes.append(part)
                self._models[part.pool] = part.model
                self._by_host.setdefault(node.name, []).append(part)
                for partition in node.partitions:
                    self._by_partition.setdefault(partition, Counter())[part.pool] += part.devices

    def pool_of(self, start: Start) -> str | None:
        """Name the pool of a start: that of the first node it ran on, else the largest of its partition."""
        model = model_name(next(iter(start.held.types))) if start.held.types else None
        parts = self._by_host.get(start.first_node or "")
        if parts:
            return next((part.pool for part in parts if part.model == model), parts[0].pool)
        sizes = self._by_partition.get(start.partition)
        if sizes is None:
            return None
        self._tally.add(Left.OTHER_NODES, start.first_node or "")
        fitting = [pool for pool in sizes if self._models[pool] == model]
        return max(fitting or sizes, key=lambda pool: (sizes[pool], pool))


def _serves(node: SlurmNode, tally: Tally) -> bool:
    if node.gpus.parts:
        tally.add(Left.GPU_PART_NODES, node.name)
    if not node.gpus.gpus:
        if not node.gpus.parts:
            tally.add(Left.CPU_NODES)
        return False
    if not node.partitions:
        tally.add(Left.NO_PARTITION, node.name)
    return bool(node.partitions)


def _joined(nodes: Iterable[SlurmNode], tally: Tally) -> dict[str, str]:
    """Return the pool name of each partition; partitions that share a node have the same."""
    parents: dict[str, str] = {}
    sizes: Counter[str] = Counter()

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    for node in nodes:
        for partition in node.partitions:
            parents[root(partition)] = root(node.partitions[0])
            sizes[partition] += 1
    groups: dict[str, list[str]] = {}
    for partition in sizes:
        groups.setdefault(root(partition), []).append(partition)
    names: dict[str, str] = {}
    for group in groups.values():
        name = min(group, key=lambda partition: (-sizes[partition], partition))
        names.update(dict.fromkeys(group, name))
        if len(group) > 1:
            tally.add(Left.JOINED_PARTITIONS, "+".join(sorted(group)), count=len(group))
    return names


def _kinds(node: SlurmNode) -> list[tuple[str, int]]:
    types = node.gpus.types or {"": node.gpus.gpus}
    return [(model_name(kind) if kind else "", count) for kind, count in types.items()]


def _parts(node: SlurmNode, pool: str, *, split: bool, labels: Mapping[str, str]) -> list[TraceNode]:
    """Return one trace node for each model of GPU in the node, with its share of cores and memory."""
    kinds = _kinds(node)
    return [
        TraceNode(
            name=node.name if len(kinds) == 1 else f"{node.name}-{model.lower() or 'gpu'}",
            pool=f"{pool}-{count}x{model.lower() or 'gpu'}" if split else pool,
            devices=count,
            model=model or None,
            cpus=node.cpus * count // node.gpus.gpus,
            memory_bytes=node.memory_bytes * count // node.gpus.gpus,
            partitions=node.partitions,
            labels=labels,
            usable=node.usable,
        )
        for model, count in kinds
    ]


def _labels(
    node: SlurmNode, topology: Mapping[str, Mapping[str, str]] | None, tally: Tally
) -> dict[str, str]:
    """Return the labels of a node; what a feature names outright goes before the topology."""
    placed = (topology or {}).get(node.name)
    if topology is not None and placed is None:
        tally.add(Left.TOPOLOGY, node.name)
    return {**(placed or {}), **feature_labels(node.features)}
