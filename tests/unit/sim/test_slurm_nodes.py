"""Nodes, topology and pools as scontrol tells them."""

from __future__ import annotations

import pytest

from airyard.core.errors import UserError
from airyard.sim.slurm.nodes import SlurmNode, read_nodes
from airyard.sim.slurm.pools import Pools
from airyard.sim.slurm.sacct import Start, read_starts
from airyard.sim.slurm.topology import feature_labels, read_topology
from airyard.sim.trace.tally import Tally
from slurm_samples import TOPOLOGY, counts, cpu_node, jobs, node, row


def nodes(*blocks: str) -> list[SlurmNode]:
    """Read the blocks of nodes."""
    return read_nodes("\n".join(blocks).splitlines(), "nodes.txt")


def start(**changed: str) -> Start:
    """Return the record of one start."""
    (found,) = read_starts(jobs(row(**changed)), "jobs.txt", Tally())
    return found


def test_a_node_is_read_in_both_layouts() -> None:
    block = node(
        "n01", features="fabric-a,rack1", last="   Reason=slot 3, State=x Gres=y [root@2026-02-01T00:00:00]"
    )
    (long,) = nodes(block)
    (short,) = nodes(" ".join(line.strip() for line in block.splitlines()))
    assert long == SlurmNode(
        line=1,
        name="n01",
        gpus=long.gpus,
        cpus=64,
        memory_bytes=512_000 << 20,
        partitions=("h100",),
        features=("fabric-a", "rack1"),
        usable=True,
    )
    assert dict(long.gpus.types) == {"h100": 8}
    assert short == long


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        ("IDLE", True),
        ("MIXED+CLOUD", True),
        ("ALLOCATED+RESERVED", True),
        ("IDLE+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("DOWN*", False),
        ("DOWN*+DRAIN", False),
        ("MIXED+DRAIN", False),
        ("IDLE+MAINTENANCE", False),
        ("UNKNOWN+NOT_RESPONDING", False),
    ],
)
def test_nodes_that_are_down_or_drained_serve_nobody(state: str, usable: bool) -> None:
    assert nodes(node("n01", state=state))[0].usable is usable


def test_gpus_come_from_the_configured_resources_where_gres_is_silent() -> None:
    assert nodes(node("n01", "(null)"))[0].gpus.gpus == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "nodes.txt: has no node"),
        (
            "slurm_load_node error: Unable to contact slurm controller",
            "line 1: is no output of `scontrol show nodes`",
        ),
        (node("n01") + node("n01"), "describes node n01 again (first in line 1)"),
        ("NodeName=n01 CPUTot=64 Gres=gpu:8", "line 1: describes a node without State, RealMemory"),
        ("NodeName=n01 CPUTot=many RealMemory=1 State=IDLE", "line 1, column CPUTot: found 'many'"),
        ("NodeName=n01 CPUTot=1\n   RealMemory=-1 State=IDLE", "line 2, column RealMemory: found '-1'"),
        ("NodeName=n01 CPUTot=1 RealMemory=1 State=idle?", "column State: found 'idle?'"),
        ("NodeName=n01 CPUTot=1 RealMemory=1 State=IDLE Gres=gpu:h100:99999999", "column Gres"),
    ],
)
def test_what_is_no_description_of_nodes_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_nodes(text.splitlines(), "nodes.txt")
    assert caught.value.message.startswith("nodes.txt")
    assert expected in caught.value.message


def test_a_tree_of_switches_gives_the_coarsest_division_and_the_leaf() -> None:
    labels = read_topology(TOPOLOGY.splitlines(), "topology.txt")
    assert labels["n01"] == {"fabric": "row1", "rack": "leaf1"}
    assert labels["n04"] == {"fabric": "row1", "rack": "leaf2"}
    assert labels["n06"] == {"fabric": "row2", "rack": "leaf3"}


def test_under_one_spine_the_leaves_are_the_fabrics() -> None:
    lines = [
        "SwitchName=a Level=0 Nodes=n[1-2]",
        "SwitchName=b Level=0 Nodes=n3",
        "SwitchName=s Level=1 Nodes=n[1-3]",
    ]
    assert {name: label["fabric"] for name, label in read_topology(lines, "t").items()} == {
        "n1": "a",
        "n2": "a",
        "n3": "b",
    }


def test_blocks_are_fabrics() -> None:
    labels = read_topology(["BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2"], "t")
    assert labels == {"n1": {"fabric": "b1", "rack": "b1"}, "n2": {"fabric": "b1", "rack": "b1"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "names no switch and no block"),
        ("hello", "line 1: is no output of"),
        ("SwitchName=a Level=x Nodes=n1", "column Level: found 'x'"),
        ("SwitchName=a Level=0 Nodes=n[1-", "column Nodes: found 'n[1-'"),
    ],
)
def test_what_is_no_topology_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_topology(text.splitlines(), "topology.txt")
    assert expected in caught.value.message


def test_features_that_name_a_rack_or_a_fabric_are_labels() -> None:
    assert feature_labels(["ib", "rack12", "fabric-a", "fabricated"]) == {
        "rack": "rack12",
        "fabric": "fabric-a",
        "features": "ib,rack12,fabric-a,fabricated",
    }
    assert feature_labels([]) == {}


def test_partitions_that_share_nodes_are_one_pool() -> None:
    tally = Tally()
    pools = Pools(
        nodes(
            node("n01", partitions="h100,long"),
            node("n02", partitions="h100"),
            node("n03", partitions="other"),
            node("n04", partitions=""),
            cpu_node("c01"),
        ),
        None,
        tally,
    )
    assert [(found.name, found.pool) for found in pools.nodes] == [
        ("n01", "h100"),
        ("n02", "h100"),
        ("n03", "other"),
    ]
    assert pools.nodes[0].partitions == ("h100", "long")
    assert counts(tally.records()) == {"cpu-nodes": 1, "joined-partitions": 2, "no-partition": 1}
    assert pools.pool_of(start(Partition="long", NodeList="n01")) == "h100"
    assert pools.pool_of(start(Partition="gone", NodeList="x9")) is None


def test_a_partition_of_several_types_is_several_pools_and_a_run_goes_where_it_ran() -> None:
    tally = Tally()
    pools = Pools(
        nodes(
            node("n01", partitions="gpu"),
            node("n02", partitions="gpu"),
            node("a01", "gpu:nvidia_a100-sxm4-80gb:4", partitions="gpu"),
        ),
        None,
        tally,
    )
    assert {found.name: (found.pool, found.model) for found in pools.nodes} == {
        "n01": ("gpu-8xh100", "H100"),
        "n02": ("gpu-8xh100", "H100"),
        "a01": ("gpu-4xa100", "A100"),
    }
    held = "gres/gpu=4,node=1"
    assert pools.pool_of(start(Partition="gpu", NodeList="a01", AllocTRES=held)) == "gpu-4xa100"
    # Of a node that is gone only the type of its GPUs is left, or else the size of the pools.
    typed = "gres/gpu:a100=4,gres/gpu=4,node=1"
    assert pools.pool_of(start(Partition="gpu", NodeList="a99", AllocTRES=typed)) == "gpu-4xa100"
    assert pools.pool_of(start(Partition="gpu", NodeList="x99", AllocTRES=held)) == "gpu-8xh100"
    assert counts(tally.records()) == {"split-partitions": 1, "other-nodes": 2}


def test_a_node_with_two_models_is_two_nodes_that_share_it() -> None:
    pools = Pools(nodes(node("n01", "gpu:h100:6,gpu:l40s:2")), None, Tally())
    assert [(found.name, found.devices, found.model, found.cpus) for found in pools.nodes] == [
        ("n01-h100", 6, "H100", 48),
        ("n01-l40s", 2, "L40S", 16),
    ]


def test_slices_of_gpus_are_left_out_of_a_node() -> None:
    tally = Tally()
    pools = Pools(nodes(node("m01", "gpu:1g.10gb:4,gpu:a100:2"), node("m02", "gpu:1g.10gb:7")), None, tally)
    assert [(found.name, found.devices) for found in pools.nodes] == [("m01", 2)]
    assert counts(tally.records()) == {"gpu-part-nodes": 2}


def test_labels_come_from_the_topology_and_a_feature_goes_first() -> None:
    tally = Tally()
    topology = read_topology(TOPOLOGY.splitlines(), "topology.txt")
    pools = Pools(nodes(node("n01"), node("n02", features="fabric-z"), node("x01")), topology, tally)
    assert [dict(found.labels) for found in pools.nodes] == [
        {"fabric": "row1", "rack": "leaf1"},
        {"fabric": "fabric-z", "rack": "leaf1", "features": "fabric-z"},
        {},
    ]
    assert counts(tally.records()) == {"topology": 1}
