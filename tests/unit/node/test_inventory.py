"""Names, shares and owners of nodes and devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airyard.node.inventory import Gpu, Inventory, Offer, model_of


class TwoKinds:
    """A machine with two A10 and two H100; somebody's process is on GPU 3, ours on GPU 0."""

    def gpus(self) -> list[Gpu]:
        names = ["NVIDIA A10", "NVIDIA A10", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"]
        pids = {0: frozenset({10}), 3: frozenset({os.getpid()})}
        return [
            Gpu(index=index, uuid=f"GPU-{index}", name=name, pids=pids.get(index, frozenset()))
            for index, name in enumerate(names)
        ]

    def values(self, index: int) -> dict[str, float]:
        return {}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_models(name: str, model: str) -> None:
    assert model_of(name) == model


def test_real_gpus_form_one_node_a_model_and_strangers_own_devices(tmp_path: Path) -> None:
    inventory = Inventory(Offer(cpu_slots=0, lock_folder=tmp_path / "locks"), TwoKinds())
    a10, h100 = inventory.nodes(frozenset({10}))
    inventory.close()
    assert (a10.accelerator, h100.accelerator) == ("GPU_2xA10", "GPU_2xH100")
    assert [device.index for device in h100.devices] == [2, 3]
    assert [device.owner for device in a10.devices] == [None, None]
    assert h100.devices[0].owner is None
    assert (h100.devices[1].owner or "").startswith(f"PID {os.getpid()}, user ")
    assert a10.cpus + h100.cpus == inventory.cpus
    assert a10.name != h100.name


def test_simulated_nodes_exist_only_when_asked() -> None:
    assert [node.model for node in Inventory(Offer(cpu_slots=0), None).nodes(frozenset())] == []
    offer = Offer.from_json({"simulate": {"GPU_8xH100": 2}, "cpu_slots": 1})
    nodes = Inventory(offer, None).nodes(frozenset())
    assert [(node.name, len(node.devices), node.simulated) for node in nodes[:2]] == [
        ("sim-8xh100-0", 8, True),
        ("sim-8xh100-1", 8, True),
    ]
    assert len({device.uuid for node in nodes for device in node.devices}) == 17


def test_cpu_slots_share_the_memory() -> None:
    inventory = Inventory(Offer(), None)
    slots = inventory.nodes(frozenset())
    assert len(slots) >= 4
    assert all(slot.accelerator == "CPU" and slot.cpus >= 1 for slot in slots)
    assert sum(slot.memory_bytes for slot in slots) <= inventory.memory_bytes


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="TPU_8"):
        Offer.from_json({"simulate": {"TPU_8": 1}})


def test_in_a_fleet_nodes_carry_their_machines_name_and_labels() -> None:
    data = {
        "simulate": {"GPU_1xA10": 1},
        "cpu_slots": 1,
        "machine": "n7",
        "address": "10.0.0.7",
        "labels": {"rack": "r1"},
    }
    offer = Offer.from_json(data)
    nodes = Inventory(offer, None).nodes(frozenset())
    assert [(node.name, node.labels) for node in nodes] == [
        ("n7-sim-1xa10-0", {"rack": "r1"}),
        ("n7-cpu-0", {"rack": "r1"}),
    ]
    assert (offer.address, Offer.from_json({}).address) == ("10.0.0.7", "127.0.0.1")
