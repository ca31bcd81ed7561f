"""What a batch system gave, and what of the machine is offered then."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.node.allotment import Allotment, Held, own, parse_gpus, parse_memory, read
from airyard.node.inventory import Gpu, Inventory, Offer


class FourGpus:
    """A machine with four GPUs, of which a control group may hide the rest of eight."""

    def gpus(self) -> list[Gpu]:
        return [Gpu(index=i, uuid=f"GPU-{i}a", name="NVIDIA H100", pids=frozenset()) for i in range(4)]

    def values(self, index: int) -> dict[str, float]:
        return {}


def offered(tmp_path: Path, allotment: Allotment) -> list[int]:
    offer = Offer(cpu_slots=0, lock_folder=tmp_path / "locks", allotment=allotment)
    inventory = Inventory(offer, FourGpus())
    nodes = inventory.nodes(frozenset())
    inventory.close()
    return [device.index for node in nodes for device in node.devices]


def test_a_machine_of_its_own_offers_everything() -> None:
    assert read({}, Held()) == Allotment()


def test_a_slurm_job_offers_what_it_was_given() -> None:
    job = {
        "SLURM_JOB_ID": "812",
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_MEM_PER_NODE": "65536",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "SLURM_JOB_GPUS": "5,7",
    }
    found = read(job, Held(affinity=24, memory_bytes=1 << 40))
    assert found == Allotment(gpus=("1", "3"), cpus=16, memory_bytes=64 << 30, source="Slurm job 812")
    assert Allotment.from_json({"gpus": ["1", "3"], "cpus": 16.0, "memory_bytes": 64 << 30}).gpus == (
        "1",
        "3",
    )


def test_memory_by_the_cpu_and_the_tightest_limit_count() -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "2048"}
    assert read(job, Held()).memory_bytes == 16 << 30
    held = Held(affinity=4, quota_cpus=1.5, memory_bytes=1 << 30)
    assert (read(job, held).cpus, read(job, held).memory_bytes) == (1.5, 1 << 30)
    everything = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "0"}
    assert read(everything, Held()).memory_bytes is None


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_JOB_ID": "1"}, ()),  # a job without GPUs, on a machine where it can see them
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0-2,5"}, ("0", "1", "2", "5")),
        ({"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2a,GPU-0"}, ("GPU-2a", "GPU-0")),
        ({"SLURM_JOB_GPUS": "3"}, None),  # left over in a shell that is in no job
    ],
)
def test_which_gpus_were_given(variables: dict[str, str], gpus: tuple[str, ...] | None) -> None:
    assert read(variables, Held()).gpus == gpus


@pytest.mark.parametrize(
    ("gpus", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ((), []),
        (("1", "3"), [1, 3]),
        (("GPU-2a", "GPU-0"), [0, 2]),
        (
            ("4", "5", "6", "7"),
            [0, 1, 2, 3],
        ),  # their numbers on the machine; a control group hides the others
        (("9",), []),
        (("MIG-1234",), []),
    ],
)
def test_only_given_gpus_are_offered(
    tmp_path: Path, gpus: tuple[str, ...] | None, indices: list[int]
) -> None:
    assert offered(tmp_path, Allotment(gpus=gpus)) == indices


def test_cores_and_memory_are_shared_out_of_what_was_given() -> None:
    inventory = Inventory(Offer(cpu_slots=2, allotment=Allotment(cpus=1.5, memory_bytes=1 << 30)), None)
    assert (inventory.cpus, inventory.memory_bytes) == (1, 1 << 30)
    assert [(node.cpus, node.memory_bytes) for node in inventory.nodes(frozenset())] == [(1.0, 1 << 29)] * 2


def test_what_is_typed() -> None:
    assert (parse_gpus("all"), parse_gpus("none"), parse_gpus("0, 2-3")) == (None, (), ("0", "2", "3"))
    assert (parse_memory("64G"), parse_memory("1.5GiB"), parse_memory("512m")) == (
        64 << 30,
        3 << 29,
        512 << 20,
    )
    for wrong in ("", "64X", "0G", "-1G"):
        with pytest.raises(ValueError, match="no amount of memory"):
            parse_memory(wrong)


def test_this_process_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = own()
    assert (found.source, found.gpus, (found.cpus or 0) <= 1) == ("Slurm job 7", (), True)
