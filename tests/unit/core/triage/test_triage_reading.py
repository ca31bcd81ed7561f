"""Logs read in blocks: the same findings however they are cut, and a bounded record."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from airyard.core.triage.judging import judge
from airyard.core.triage.reading import KEPT_LINES, Findings, Reader
from airyard.core.triage.signatures import TABLE, signature_of

LOG = (
    b"step 1 loss 2.1\n"
    b" 41%|####1 | 410/1000 [02:11<03:09]\r 42%|####2 | 420/1000 [02:14<03:06]\rRuntimeError: CUDA out of memory\n"
    b"[rank1]: ValueError: bad value\r\n"
    b"last line without an end: Segmentation fault (core dumped)"
)


def read(content: bytes, cuts: list[int], *, kernel: bool = False) -> Findings:
    reader = Reader("a.log", kernel=kernel)
    places = [0, *sorted({cut % (len(content) + 1) for cut in cuts}), len(content)]
    for begin, end in itertools.pairwise(places):
        reader.feed(content[begin:end])
    return reader.findings()


@given(some.lists(some.integers(0, 10_000), max_size=12))
def test_it_does_not_matter_how_a_log_is_cut(cuts: list[int]) -> None:
    found = read(LOG, cuts)
    said = [(each.signature.rule, each.number, each.rank) for each in found.findings]
    assert said == [("user.gpu_memory", 2, None), ("user.exception", 3, 1), ("user.segfault", 4, None)]
    assert (found.lines, found.octets) == (4, len(LOG))


@given(some.binary(max_size=3000), some.booleans())
@settings(max_examples=60)
def test_no_octets_are_too_odd(content: bytes, kernel: bool) -> None:
    judge(read(content, [len(content) // 2], kernel=kernel))


FOREIGN_THEN_ITS_REST = (
    "12,5,77,-;hello\rNVRM: Xid (PCI:0000:3b:00): 79, it has fallen off the bus",
    "12,5,77,-;hello\n NVRM: Xid (PCI:0000:3b:00): 79, it has fallen off the bus",
    "Dec  2 10:00:00 node-a train[3]: hello\nmore\nNVRM: Xid (PCI:0000:3b:00): 79, it has fallen off the bus",
    "Dec  2 10:00:00 node-a train[3]: hello\nNVRM: GPU 0000:3b:00 has fallen off the bus",
)


@pytest.mark.parametrize("text", FOREIGN_THEN_ITS_REST)
@given(cuts=some.lists(some.integers(0, 10_000), max_size=6))
def test_the_rest_of_a_message_is_of_whoever_wrote_its_start(text: str, cuts: list[int]) -> None:
    found = read(text.encode() + b"\n", cuts, kernel=True)
    assert found.kernel == []
    assert not judge(found).confirmed


@given(some.lists(some.integers(0, 10_000), max_size=6))
def test_the_rest_of_a_message_of_the_kernel_is_the_kernels(cuts: list[int]) -> None:
    text = (
        b"Dec  2 10:00:00 node-a train[3]: hello\n"
        b"Dec  2 10:00:01 node-a kernel: NVRM: The NVIDIA GPU 0000:3b:00.0\n"
        b"NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        b"NVRM: fallen off the bus and is not responding to commands.\n"
    )
    verdict = judge(read(text, cuts, kernel=True))
    assert verdict.confirmed
    assert verdict.blamed_device == "0000:3b:00"


def test_a_log_without_headings_is_the_kernels() -> None:
    found = read(b"usb 1-1: new device\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1\n", [], kernel=True)
    assert judge(found).confirmed


def test_lines_that_differ_in_their_numbers_are_still_counted_and_told_apart() -> None:
    lines = [b"step %d loss %d.5" % (n, n) for n in range(1000)]
    lines[700] = b"NET/IB: Got completion from peer 10.0.0.1<99> with status=12 opcode=0 len=0 vendor err 129"
    lines[701] = b"NET/IB: Got completion from peer 10.0.0.1<99> with status=5 opcode=0 len=0 vendor err 249"
    reader = Reader("a.log")
    reader.feed(b"".join(line + b"\n" for line in lines))
    found = reader.findings()
    assert [(each.signature.rule, each.number) for each in found.findings] == [
        ("net.transport", 701),
        ("net.peer_gone", 702),
    ]


def test_a_flood_is_counted_and_not_kept() -> None:
    reader = Reader("a.log", rank=0)
    reader.feed(b"ValueError: again\n" * 50_000)
    found = reader.findings()
    assert len(found.findings) == KEPT_LINES
    assert found.counts["user.exception"] == 50_000


def test_findings_of_several_logs_are_merged() -> None:
    first, second = read(LOG, []), read(b"[ 1.5] NVRM: Xid (PCI:0000:3b:00): 79, x\n", [], kernel=True)
    first.merge(second)
    assert len(first.findings) == 3
    assert [each.event.code for each in first.kernel] == [79]
    assert first.lines == 5


def test_every_rule_has_a_step_and_a_name_of_its_own() -> None:
    assert len({each.rule for each in TABLE}) == len(TABLE)
    assert all(each.next_step and each.message for each in TABLE)


SAMPLES = {
    "cuda.ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "gpu.lost": "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error",
    "cuda.nvlink": "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "driver.mismatch": "Failed to initialize NVML: Driver/library version mismatch",
    "fabric.not_ready": "Error 802: system not yet initialized",
    "cuda.unknown": "RuntimeError: CUDA error: unknown error",
    "driver.gone": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "config.shm": "RuntimeError: DataLoader worker is out of shared memory: insufficient shared memory (shm)",
    "config.memlock": "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    "config.ib_access": "NCCL WARN NET/IB : Got completion with error 10, opcode 0, len 0, vendor err 136",
    "config.nccl_bootstrap": "bootstrap.cc:90 NCCL WARN Bootstrap : unexpected message from 10.0.0.9",
    "config.nccl_version": "NCCL WARN Mismatched NCCL version detected : rank 0 version 21805 rank 1 version 22005",
    "config.driver_old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "config.no_gpu": "RuntimeError: No CUDA GPUs are available",
    "config.gpu_busy": "RuntimeError: cuda runtime error (46) : all CUDA-capable devices are busy or unavailable",
    "config.bus_error": "[ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -7",
    "config.disk_full": "OSError: [Errno 28] No space left on device",
    "config.storage": "OSError: [Errno 116] Stale file handle: '/data/shard-0031'",
    "config.import": "ModuleNotFoundError: No module named 'flash_attn'",
    "config.files": "OSError: [Errno 24] Too many open files",
    "config.port": "OSError: [Errno 98] Address already in use",
    "config.names": "socket.gaierror: [Errno -2] Name or service not known",
    "user.collectives": "RuntimeError: Detected mismatch between collectives on ranks.",
    "user.device_assert": "RuntimeError: CUDA error: device-side assert triggered",
    "user.gpu_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
    "user.shape": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x128)",
    "user.assertion": "AssertionError: labels",
    "user.nan": "Loss is nan, stopping training",
    "user.illegal_address": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "user.host_memory": "RuntimeError: DataLoader worker (pid 4110) is killed by signal: Killed.",
    "user.interrupted": "KeyboardInterrupt",
    "user.exception": "KeyError: 'labels'",
    "user.command": "bash: line 1: torchrunn: command not found",
    "user.segfault": "Segmentation fault (core dumped)",
    "net.port": "NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
    "net.transport": "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<99> with status=IBV_WC_RETRY_EXC_ERR(12)",
    "net.connect": "NCCL WARN Net : Connect to 10.0.0.1<99> failed : No route to host",
    "process.killed": "failed (exitcode: -9) local_rank: 2 (pid: 19013) of binary: python",
    "torch.watchdog": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    "net.peer_gone": "NCCL WARN Net : Connection closed by remote peer 10.42.0.19<41842>",
    "nccl.error": "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
    "rendezvous.timeout": "[E socket.cpp:922] [c10d] The client socket has timed out after 1800s",
    "launcher.teardown": "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "config.rdma": "misc/ibvwrap.cc:177 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address",
    "config.batch": "slurmstepd: error: execve(): /tmp/slurmd/job00089/slurm_script: No such file or directory",
    "config.interface": "NCCL WARN Bootstrap : no socket interface found",
    "config.toolchain": "INTERNAL: ptxas exited with non-zero error code 65280, output: ptxas fatal   : Unsupported",
    "config.cuda_libraries": "E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
    "config.cuda_init": "cuda_driver.cc:268] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
    "config.gpu_access": "Failed to initialize NVML: Unknown Error",
    "config.remote": "HTTPSConnectionPool(host='hub.example', port=443): Max retries exceeded with url: /m/config.json",
    "user.nccl_usage": "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
    "user.kernel_resources": "OutOfResources: out of resource: shared memory, Required: 663808, Hardware limit: 101376",
    "user.loss_scale": "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    "user.access": "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66f4b037)",
    "user.bad_file": "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    "batch.time_limit": "slurmstepd: error: *** STEP 7.0 ON n4 CANCELLED AT 2025-03-04T10:00 DUE TO TIME LIMIT ***",
    "process.stopped": "slurmstepd: error: *** JOB 608 ON n4 CANCELLED AT 2025-03-04T10:00:00 DUE TO PREEMPTION ***",
    "engine.dead": "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    "kernel.text": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
}


@pytest.mark.parametrize("rule", sorted(SAMPLES))
def test_a_line_of_each_rule_is_found_in_a_log(rule: str) -> None:
    reader = Reader("a.log")
    reader.feed(b"a line before\n" + SAMPLES[rule].encode() + b"\n")
    assert [each.signature.rule for each in reader.findings().findings] == [rule]


def test_there_is_a_sample_of_every_rule() -> None:
    assert set(SAMPLES) == {each.rule for each in TABLE}


@pytest.mark.parametrize(
    "text",
    [
        "epoch 1 error 0.113 accuracy 0.97",
        "INFO: 0 failed, 0 errors",
        "NCCL INFO Connected all rings",
        "loss nan is not what it says",
        "WARNING: retrying connection",
    ],
)
def test_ordinary_words_are_no_signature(text: str) -> None:
    assert signature_of(text) is None


def test_an_endless_word_before_a_fault_is_read_once() -> None:
    """What stands before a fault is of the job: one word of 2,000 letters must not cost as much as a hundred lines."""
    took_s = []
    for before in (" ".join(["aaaa"] * 380), "a" * 1_900):
        began = time.process_time()
        reader = Reader("log")
        for rank in range(20):
            reader.feed(f"[rank{rank}]: {before} CUDA error: uncorrectable ECC error encountered\n".encode())
        found = reader.findings()
        took_s.append(time.process_time() - began)
        assert [one.quoted for one in found.findings] == [True] * 20
    assert took_s[1] < 25 * took_s[0]
