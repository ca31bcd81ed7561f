"""The rank that a kernel's log or a monitor means is named where its process or GPU is one rank's, and never guessed.

Owns: the lines by which places of ranks are known, and when nobody is named. Must not know: files, a server.
"""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.triage.causes import FailureCause
from airyard.core.triage.judging import judge
from airyard.core.triage.places import Place, Places, nccl_address
from airyard.core.triage.rank_notes import where_ranks_run
from airyard.core.triage.reading import Findings, Reader

OOM = "Out of memory: Killed process 2186 (python) total-vm:98765432kB, anon-rss:65432100kB, file-rss:0kB"
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def comm(host: str, pid: int, rank: int, ranks: int = 8, *, card: str = "3b000", device: int = 0) -> str:
    return (
        f"{host}:{pid}:{pid + 90} [{device}] NCCL INFO comm 0x55d0c0de rank {rank} nranks {ranks} "
        f"cudaDev {device} nvmlDev {device} busId {card} commId 0xfeed - Init COMPLETE"
    )


def read(text: str, name: str = "job.log", *, rank: int | None = None, kernel: bool = False) -> Findings:
    reader = Reader(name, rank=rank, kernel=kernel)
    reader.feed(text.encode())
    return reader.findings()


def of(job: str, kernel: str) -> FailureCause:
    found = read(job)
    found.merge(read(kernel, "dmesg", kernel=True))
    return judge(found)


def headed(message: str, host: str = "n7") -> str:
    return f"Dec  3 10:11:12 {host} kernel: [ 4242.123456] {message}\n"


GANG = (
    "\n".join(comm("n7", 2183 + rank, rank, card=f"{0x3B + rank:x}000", device=rank) for rank in range(8))
    + "\n"
)


def test_the_killed_process_is_the_rank_that_told_of_it() -> None:
    verdict = of(GANG, headed(OOM))

    assert (verdict.rule, verdict.first_rank) == ("host.oom", 3)
    assert "process 2186 of n7" in verdict.rank_why


def test_the_log_of_another_host_names_nobody() -> None:
    verdict = of(GANG, headed(OOM, "n8"))

    assert verdict.first_rank is None
    assert "no line says which rank process 2186 of n8 is" in verdict.rank_why


def test_a_domain_makes_no_other_host() -> None:
    assert of(GANG, headed(OOM, "n7.cluster.example")).first_rank == 3


def test_a_kernels_log_without_its_host_is_of_the_only_one() -> None:
    one = of(GANG, f"[ 4242.123456] {OOM}\n")
    other = comm("n8", 2186, 11, 16) + "\n"
    two = of(GANG.replace("nranks 8", "nranks 16") + other, f"[ 4242.123456] {OOM}\n")

    assert one.first_rank == 3
    assert two.first_rank is None
    assert "does not say of which host" in two.rank_why


def test_a_gpu_that_fell_off_the_bus_is_the_rank_that_computed_on_it() -> None:
    verdict = of(GANG, headed(XID_79))

    assert (verdict.rule, verdict.first_rank) == ("xid.79", 0)
    assert "GPU 0000:3b:00" in verdict.rank_why


def test_a_gpu_that_two_ranks_share_names_neither() -> None:
    shared = comm("n7", 2183, 0, 2) + "\n" + comm("n7", 2184, 1, 2) + "\n"

    assert of(shared, headed(XID_79)).first_rank is None


def test_numbers_within_smaller_communicators_are_no_ranks() -> None:
    world = comm("n7", 2183, 5, 8) + "\n"
    group = comm("n7", 2183, 1, 2) + "\n"

    assert of(group + world, headed(OOM.replace("2186", "2183"))).first_rank == 5


def test_a_group_on_each_of_two_hosts_is_not_all_there_is() -> None:
    both = comm("n7", 2183, 0) + "\n" + comm("n8", 2183, 0) + "\n"

    assert of(both, headed(OOM.replace("2186", "2183"))).first_rank is None


def test_ranks_of_prefixes_beyond_the_communicator_go_before_it() -> None:
    line = f"[rank11]: {comm('n8', 2186, 3)}\n"

    assert of(line, headed(OOM, "n8")).first_rank == 11


def test_a_prefix_that_counts_tasks_is_no_rank() -> None:
    tasks = "".join(f"1: {line}\n" for line in GANG.splitlines())

    assert of(tasks, headed(OOM)).first_rank == 3


def test_torchs_launcher_tells_rank_host_and_process() -> None:
    summary = """
Root Cause (first observed failure):
[0]:
  time      : 2026-12-03_10:11:13
  host      : n7.cluster.example
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 2186)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 2186
"""
    assert of(summary, headed(OOM)).first_rank == 3
    assert read(summary).places == [Place(rank=3, host="n7.cluster.example", pid=2186)]


@pytest.mark.parametrize(
    "line",
    [
        f"[rank3]: {comm('n7', 2186, 3)}",
        f"{where_ranks_run({2: 2185, 3: 2186})}",
        "look at the stall: rank 3, process 2186, state D",
        "[rank3]: Process 2186: python train.py",
    ],
)
def test_lines_that_tell_whose_a_process_is(line: str) -> None:
    found = Reader("node 0 airyard", host="n7")
    found.feed(line.encode() + b"\n")

    assert Places(found.findings().places).of_process("n7", 2186) == 3


def test_two_who_tell_of_two_ranks_name_nobody() -> None:
    places = Places([Place(rank=3, host="n7", pid=2186), Place(rank=4, host="n7", pid=2186)])

    assert places.of_process("n7", 2186) is None


@pytest.mark.parametrize(
    ("text", "address"),
    [("3b000", "0000:3b:00"), ("1000", "0000:01:00"), ("13b000", "0001:3b:00"), ("e10b0", "0000:e1:0b")],
)
def test_nccls_number_of_a_card(text: str, address: str) -> None:
    assert nccl_address(text) == address


def lost(**fields: Any) -> HealthEvent:
    said: dict[str, Any] = {
        "event_id": "e", "rule": "gpu.lost", "machine": "m7", "node": "n7", "at_ms": 5,
        "component": Component.GPU, "severity": Severity.CRITICAL, "source": Source.NVML, "message": "lost",
    }  # fmt: skip
    return HealthEvent(**{**said, **fields})


def test_a_monitors_gpu_is_the_rank_whose_number_it_is_among_the_nodes_devices() -> None:
    verdict = judge(read(GANG), events=[lost(device=6)], devices={"n7": tuple(range(4, 12))})

    assert verdict.first_rank == 2


def test_a_monitors_gpu_is_nobodys_where_each_process_sees_its_own_only() -> None:
    alone = "".join(comm("n7", 2183 + rank, rank, card=f"{0x3B + rank:x}000") + "\n" for rank in range(8))
    verdict = judge(read(alone), events=[lost(device=0)], devices={"n7": tuple(range(8))})

    assert verdict.first_rank is None
    assert "no line says which rank GPU 0 of n7 is" in verdict.rank_why


def test_a_monitors_kernel_line_names_the_process() -> None:
    line = "NVRM: Xid (PCI:0000:3e:00): 119, pid=2186, name=python, Timeout after 6s of waiting for RPC"
    verdict = judge(read(GANG), events=[lost(rule="xid.119", evidence=(line,))])

    assert verdict.first_rank == 3


def test_a_process_on_another_ranks_gpu_names_nobody() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 119, pid=2186, name=python, Timeout after 6s of waiting for RPC"

    assert judge(read(GANG), events=[lost(rule="xid.119", evidence=(line,))]).first_rank is None


def test_a_hidden_process_leaves_the_gpu() -> None:
    """In a container a process has another number than for the kernel."""
    line = "NVRM: Xid (PCI:0000:3b:00): 119, pid=77001, name=python, Timeout after 6s of waiting for RPC"

    assert of(GANG, headed(line)).first_rank == 0


def test_who_waits_for_others_is_not_named_and_it_is_said_why() -> None:
    verdict = of("[rank2]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n", "\n")

    assert verdict.first_rank is None
    assert "all ranks waited for each other" in verdict.rank_why
