"""Real lines of real tools, and the ordinary lines that look like them."""

from __future__ import annotations

import pytest

from airyard.core.triage.alerts import PATTERNS, alert_kind

LINES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...": "CUDA_OUT_OF_MEMORY",
    "RuntimeError: CUDA error: out of memory": "CUDA_OUT_OF_MEMORY",
    "Out of memory: Killed process 4242 (python) total-vm:1234kB": "HOST_OUT_OF_MEMORY",
    "[Tue] Memory cgroup out of memory: Killed process 77": "HOST_OUT_OF_MEMORY",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB": "EXCEPTION",
    "MemoryError": "HOST_OUT_OF_MEMORY",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.": "XID",
    "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.": "GPU_LOST",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "CUDA_ERROR",
    "RuntimeError: CUDA error: device-side assert triggered": "CUDA_ERROR",
    "[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL": "NCCL_TIMEOUT",
    "n1:77:91 [0] NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.2<4242>": "NCCL_NETWORK",
    "n1:77:91 [0] NCCL WARN Cuda failure 'invalid argument'": "NCCL_ERROR",
    "NET/IB : Got completion from peer 10.0.0.3<41> with error 12, opcode 1": "INFINIBAND",
    "[W TCPStore.cpp:140] recvValue failed: Connection reset on TCPStore: store connection reset": "RENDEZVOUS",
    "RuntimeError: The server socket has failed to bind (errno: 98 - Address already in use).": "RENDEZVOUS",
    "torch.distributed.DistBackendError: NCCL communicator was aborted": "DISTRIBUTED_ERROR",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ": "DISTRIBUTED_ERROR",
    "Segmentation fault (core dumped)": "SEGMENTATION_FAULT",
    "bash: line 1: 4242 Killed                  python train.py": "KILLED",
    "Killed": "KILLED",
    "  exitcode: -9 (pid: 4242)": "KILLED",
    "RuntimeError: DataLoader worker (pid 99) exited unexpectedly": "DATASET_ERROR",
    "OSError: [Errno 28] No space left on device": "STORAGE_ERROR",
    "ModuleNotFoundError: No module named 'flash_attn'": "DEPENDENCY_ERROR",
    "bash: line 1: trainn.py: command not found": "COMMAND_NOT_FOUND",
    "/bin/sh: 1: torchrun: not found": "COMMAND_NOT_FOUND",
    "step 120 loss=nan lr=1e-4": "NOT_A_NUMBER",
    "warning: training appears stalled: no progress for 300 s": "STALLED",
    "command failed with exit code 7": "EXIT_CODE",
    "ValueError: too many values to unpack": "EXCEPTION",
    "my.module.CustomError: no": "EXCEPTION",
}
ORDINARY = [
    "",
    "epoch 3 step 120 loss 0.23 accuracy 0.97",
    "mean error 0.12, max error 0.5",
    "0 errors, 0 warnings",
    "finished with exit code 0",
    "process exited with 0",
    "loading shard 12 of 64",
    "NCCL version 2.21.5+cuda12.4",
    "n1:77:91 [0] NCCL INFO Connected all rings",
    "killed 3 zombies in the game",
    "Using banana as the inference engine",
    "the quick brown fox " * 50,
    "cache entry not found, building",
    "info: nanoseconds per step 12",
    "x" * 100_000,
]


@pytest.mark.parametrize(("line", "kind"), LINES.items())
def test_lines_that_alert(line: str, kind: str) -> None:
    assert alert_kind(line) == kind


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_do_not(line: str) -> None:
    assert alert_kind(line) is None


def test_every_kind_has_an_example_and_lower_case_hints() -> None:
    assert {pattern.kind for pattern in PATTERNS} == set(LINES.values())
    assert all(hint == hint.lower() and hint for pattern in PATTERNS for hint in pattern.hints)
