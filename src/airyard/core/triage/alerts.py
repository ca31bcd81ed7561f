"""Lines of a log that a person wants to be told of at once, by kind.

Owns: the patterns. Must not know: whose line it is, what is done about it. A kind is a hint for the watcher, never
the cause of a failure: that is judged from exits and evidence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST_LINE = 1024
"""Only the start of a longer line is looked at: what is searched for stands in the first words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertPattern:
    """Lines that hold one of ``hints`` (lower case) and in which ``expression`` is found."""

    kind: str
    hints: tuple[str, ...]
    expression: re.Pattern[str]


def _pattern(kind: str, hints: str, expression: str) -> AlertPattern:
    return AlertPattern(
        kind=kind, hints=tuple(hints.split("|")), expression=re.compile(expression, re.IGNORECASE)
    )


PATTERNS: tuple[AlertPattern, ...] = (
    _pattern(
        "CUDA_OUT_OF_MEMORY",
        "out of memory|outofmemory|alloc_failed",
        r"cuda.{0,80}out of memory|hip out of memory|OutOfMemoryError: (cuda|hip|allocation on device)"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _pattern(
        "HOST_OUT_OF_MEMORY",
        "out of memory|oom-kill|oom_kill|oom killer|memoryerror|bad_alloc|cannot allocate memory",
        r"out of memory: kill|oom-kill|oom_kill|oom killer|memory cgroup out of memory|^\w*MemoryError\b"
        r"|std::bad_alloc|cannot allocate memory",
    ),
    _pattern("XID", "xid", r"\bNVRM: Xid\b|\bXid\b.{0,40}\b(48|63|64|79|94|95)\b"),
    _pattern(
        "GPU_LOST",
        "fallen off|is lost|no cuda-capable|system not yet initialized|driver/library version",
        r"gpu has fallen off the bus|gpu is lost|no cuda-capable device|CUDA_ERROR_SYSTEM_NOT_READY"
        r"|system not yet initialized|driver/library version mismatch",
    ),
    _pattern(
        "CUDA_ERROR",
        "cuda error|cuda_error|cudaerror|illegal memory|device-side assert|cudnn_status|cublas_status|cusolver",
        r"cuda error|\bCUDA_ERROR_\w+|\bcudaError\w+|illegal memory access|device-side assert"
        r"|CUDNN_STATUS_(?!SUCCESS)\w+|CUBLAS_STATUS_(?!SUCCESS)\w+|CUSOLVER_STATUS_(?!SUCCESS)\w+",
    ),
    _pattern(
        "NCCL_TIMEOUT",
        "watchdog|collective operation timeout|heartbeat monitor",
        r"watchdog caught collective operation timeout|collective operation timeout"
        r"|NCCL watchdog.{0,80}(timeout|timed out|terminat|hang|exception)|heartbeat monitor timed out",
    ),
    _pattern(
        "NCCL_NETWORK",
        "nccl",
        r"NCCL WARN.{0,160}(net/|socket|connect|connection|timed? ?out|closed by remote|unreachable|refused)"
        r"|ncclRemoteError|ncclSystemError|NCCL.{0,40}(remote process|unhandled system) error",
    ),
    _pattern(
        "NCCL_ERROR",
        "nccl",
        r"NCCL error|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage|NCCL WARN",
    ),
    _pattern(
        "INFINIBAND",
        "ibv_|mlx5|ib_|net/ib|rdma|infiniband",
        r"NET/IB.{0,120}(error|got completion|timed? ?out|fail)|ibv_\w+.{0,60}(fail|error|timed? ?out)"
        r"|(mlx5|rdma|infiniband).{0,80}(error|fail|link down|port down|timed? ?out)|IBV_WC_\w*ERR",
    ),
    _pattern(
        "RENDEZVOUS",
        "store|rendezvous|eaddrinuse|address already in use",
        r"(TCPStore|\bstore\b).{0,100}(timed? ?out|connection (reset|refused|closed)|failed to connect|wait timeout)"
        r"|rendezvous\w*.{0,60}(timed? ?out|timeout|closed|fail|connection\w*error)|EADDRINUSE"
        r"|address already in use",
    ),
    _pattern(
        "DISTRIBUTED_ERROR",
        "error|torch.distributed|gloo|connection closed by peer",
        r"\bDist(Backend|Network|Store)?Error\b|ChildFailedError|torch\.distributed.{0,80}(error|fail|timed? ?out)"
        r"|gloo.{0,100}(connection|timed? ?out|error)|connection closed by peer",
    ),
    _pattern(
        "SEGMENTATION_FAULT",
        "segmentation|sigsegv|sigbus|bus error|core dumped",
        r"segmentation fault|\bSIGSEGV\b|\bSIGBUS\b|^bus error|\(core dumped\)",
    ),
    _pattern(
        "KILLED",
        "killed|sigkill|sigterm|signal 9|signal 15|exitcode: -9|exitcode: -15",
        r"^(\S+: line \d+: +\d+ )?killed(\s*$|\s{2,})|\bSIGKILL\b|\bSIGTERM\b|\bsignal (9|15)\b|exitcode: -(9|15)\b",
    ),
    _pattern(
        "DATASET_ERROR",
        "streaming|webdataset|dataloader|shard|parquet|arrowinvalid",
        r"\bstreaming\b.{0,80}(error|timed? ?out|corrupt|exception)|webdataset.{0,80}error"
        r"|dataloader worker.{0,80}(exited|killed|died)|(shard|parquet).{0,60}(corrupt|truncated|missing|not found)"
        r"|ArrowInvalid",
    ),
    _pattern(
        "STORAGE_ERROR",
        "no space left|disk quota|stale file handle|input/output error|read-only file system|transport endpoint",
        r"no space left on device|disk quota exceeded|stale (nfs )?file handle|input/output error"
        r"|read-only file system|transport endpoint is not connected",
    ),
    _pattern(
        "DEPENDENCY_ERROR",
        "modulenotfounderror|importerror|cannot open shared object|undefined symbol",
        r"^\s*(ModuleNotFoundError|ImportError):|cannot open shared object file|undefined symbol:",
    ),
    _pattern(
        "COMMAND_NOT_FOUND", "not found", r"(: |^)command not found\b|^\S+: (line )?\d+: .{1,200}: not found$"
    ),
    _pattern(
        "NOT_A_NUMBER",
        "nan|inf",
        r"\bloss\b\s*[:=]?\s*(is )?[-+]?(nan|inf)\b|(loss|gradients?|grad_norm).{0,30}"
        r"\b(nan|inf(inite)?|non-?finite)\b",
    ),
    _pattern(
        "STALLED",
        "stall|no progress|hang|hung",
        r"\b(metric|training|step|progress)\w*.{0,40}\bstall(ed|ing)?\b|no progress (for|in|since)"
        r"|appears to (be )?(hang|hung)|hang detected",
    ),
    _pattern(
        "EXIT_CODE",
        "exit code|exit status|exitcode|exited with",
        r"\b(exit(ed)?( with)?( exit)? ?(code|status)|exitcode|exited with)\s*[:=]?\s*(?!0\b)-?\d+",
    ),
    _pattern(
        "EXCEPTION",
        "error|exception",
        r"^\s*(raise\s|throw\s)?([A-Za-z_]\w*\.)*_?[A-Z]\w*(Error|Exception)\b(:|$)|^terminate called after throwing",
    ),
)


def _fewest(hints: set[str]) -> tuple[str, ...]:
    """Leave out what contains another hint: it is there only where that one is."""
    return tuple(sorted(hint for hint in hints if not any(other in hint for other in hints - {hint})))


_HINTS = _fewest({hint for pattern in PATTERNS for hint in pattern.hints})


def alert_kind(line: str) -> str | None:
    """Return the kind of alert that a line is, or None. The first pattern in the order above wins.

    Cost: a few microseconds for an ordinary line; expressions only where a hint was found.
    """
    line = line[:_LONGEST_LINE]
    lowered = line.lower()
    for hint in _HINTS:
        if hint in lowered:
            break
    else:
        return None
    for pattern in PATTERNS:
        if any(hint in lowered for hint in pattern.hints) and pattern.expression.search(line) is not None:
            return pattern.kind
    return None
