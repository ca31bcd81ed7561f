"""What failures look like in the output of jobs: one table of signatures.

Owns: the expressions, and what each speaks for. Must not know: which of several decides (``judging.py``).

A *root* may be the first failure; an *effect* follows from one elsewhere and never decides; *context* says nothing by
itself. What a job prints can be forged: nothing here confirms a fault of a machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from airyard.core.run import Cause
from airyard.core.triage.causes import Action, FailureClass


class Role(Enum):
    """What part a line plays in a failure."""

    ROOT = "root"
    EFFECT = "effect"
    CONTEXT = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Lines of one meaning. Of several roots at about one time the one with the highest ``precedence`` decides."""

    rule: str
    role: Role
    failure_class: FailureClass
    cause: Cause
    action: Action
    precedence: int
    confidence: float
    message: str
    next_step: str
    expression: re.Pattern[str]


_HW, _DRV, _NET, _CFG, _USER, _UNK = (
    FailureClass.HARDWARE,
    FailureClass.DRIVER,
    FailureClass.NETWORK,
    FailureClass.CONFIG,
    FailureClass.USER,
    FailureClass.UNKNOWN,
)


def _root(
    rule: str,
    failure_class: FailureClass,
    cause: Cause,
    action: Action,
    precedence: int,
    confidence: float,
    message: str,
    next_step: str,
    *alternatives: str,
) -> Signature:
    return Signature(
        rule=rule,
        role=Role.ROOT,
        failure_class=failure_class,
        cause=cause,
        action=action,
        precedence=precedence,
        confidence=confidence,
        message=message,
        next_step=next_step,
        expression=re.compile("|".join(alternatives), re.IGNORECASE),
    )


def _silent(rule: str, role: Role, message: str, *alternatives: str) -> Signature:
    return Signature(
        rule=rule,
        role=role,
        failure_class=_UNK,
        cause=Cause.PLATFORM,
        action=Action.RETRY_ELSEWHERE,
        precedence=0,
        confidence=0.2,
        message=message,
        next_step="look for what failed first on another rank",
        expression=re.compile("|".join(alternatives), re.IGNORECASE),
    )


_RETRY = "the run is tried elsewhere; the node is tested when it is idle"

HARDWARE = (
    _root(
        "cuda.ecc", _HW, Cause.DEVICE, Action.CORDON_RESET, 95, 0.9,
        "the GPU met a memory error that ECC cannot correct",
        "reset the GPU before it is used again; `nvidia-smi -q -d ECC,ROW_REMAPPER` shows its counters",
        r"uncorrectable ECC error", r"CUDA_ERROR_ECC_UNCORRECTABLE", r"cudaErrorECCUncorrectable",
        r"CUDA error(?: code)?:? ?[=(]?214\b",
    ),
    _root(
        "gpu.lost", _HW, Cause.DEVICE, Action.CORDON_REBOOT, 94, 0.85,
        "the driver cannot reach the GPU any more",
        "look at the kernel's log for an Xid or PCIe errors, and reboot the machine",
        r"Unable to determine the device handle for GPU", r"GPU is lost\b", r"GPU has fallen off the bus",
        r"NVML_ERROR_GPU_IS_LOST", r"NVMLError_GpuIsLost",
    ),
    _root(
        "cuda.nvlink", _HW, Cause.DEVICE, Action.CORDON_RESET, 93, 0.85,
        "an NVLink failed in a way that cannot be corrected",
        "reset all GPUs of the fabric, and test the links before the node is used again",
        r"uncorrectable NVLink error", r"CUDA_ERROR_NVLINK_UNCORRECTABLE", r"cudaErrorNvlinkUncorrectable",
    ),
)  # fmt: skip

DRIVER = (
    _root(
        "driver.mismatch", _DRV, Cause.NODE, Action.CORDON_REBOOT, 92, 0.9,
        "the driver's library and its kernel module are of two versions",
        "drain the node and reboot it, or load the module again: the driver was upgraded under it",
        r"Driver/library version mismatch", r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", r"cudaErrorSystemDriverMismatch",
        r"unsupported display driver / cuda driver combination",
    ),
    _root(
        "fabric.not_ready", _DRV, Cause.NODE, Action.CORDON_REBOOT, 91, 0.85,
        "the system of NVSwitches is not ready: its fabric manager does not run, or not in the driver's version",
        "start nvidia-fabricmanager on the node in the driver's version; `nvidia-smi -q` shows the fabric's state",
        r"system not yet initialized", r"CUDA_ERROR_SYSTEM_NOT_READY", r"cudaErrorSystemNotReady",
        r"NVLS\b.{0,160}invalid argument", r"transport/nvls\.cc.{0,160}(?:invalid argument|CUDA failure)",
        r"fabricmanager.{0,60}Main process exited, code=(?:killed|dumped)",
        r"fabric manager.{0,80}(?:not running|is not active|not initialized)",
        r"failed to find the GPU handle.{0,80}multicast team", r"detected NVSwitch fatal error",
    ),
    _root(
        "driver.gone", _DRV, Cause.NODE, Action.CORDON_REBOOT, 90, 0.7,
        "the driver does not answer",
        "look at the kernel's log of the node, then load the driver again or reboot",
        r"couldn't communicate with the NVIDIA driver", r"nvidia-container-cli: .{0,60}driver (?:rpc )?error",
        r"NVML_ERROR_DRIVER_NOT_LOADED", r"NVMLError_DriverNotLoaded",
    ),
)  # fmt: skip

CONFIG = (
    _root(
        "config.shm", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 86, 0.9,
        "the shared memory of the container or node is too small",
        "give the container more of it (`--shm-size`, a memory-backed volume at /dev/shm)",
        r"error while creating shared memory segment", r"/dev/shm.{0,80}No space left on device",
        r"insufficient shared memory \(shm\)", r"shared memory.{0,80}No space left",
        r"Call to (?:posix_fallocate|ftruncate) failed.{0,40}No space left",
        r"unable to (?:allocate|open) shared memory",
    ),
    _root(
        "config.memlock", _CFG, Cause.NODE, Action.FIX_CONFIG, 84, 0.8,
        "memory could not be pinned for RDMA",
        "set `memlock` to unlimited for the jobs of this node",
        r"ibv_(?:reg_mr|create_cq|create_qp)\w*.{0,80}Cannot allocate memory", r"RLIMIT_MEMLOCK",
    ),
    _root(
        "config.interface", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 56, 0.7,
        "NCCL finds no interface, or no provider of its network plugin, that it can use",
        "name the interface (NCCL_SOCKET_IFNAME), and give the container its network devices and libraries",
        r"no socket interface found", r"No interface found in the same subnet",
        r"Socket creation failed.{0,60}Address family not supported",
        r"(?:Couldn't|Could not|Unable to) find (?:any )?(?:optimal|suitable|usable) provider",
        r"provider \w+ output empty list", r"NET/OFI Creating new endpoint.{0,80}fail",
    ),
    _root(
        "config.rdma", _CFG, Cause.NODE, Action.FIX_CONFIG, 60, 0.7,
        "the RDMA library of a node refused what NCCL asked of it",
        "check nvidia-peermem or DMA-BUF, NCCL_IB_HCA, and that the container has the node's RDMA devices",
        r"Call to ibv_\w+ failed with (?:error )?(?!.{0,40}timed out)", r"ibv_reg_(?:dmabuf_)?mr\w*.{0,80} failed",
        r"Couldn't (?:allocate|register) (?:GPU )?MR\b", r"failed to modify QP to \w+(?!.{0,30}timed out)",
    ),
    _root(
        "config.ib_access", _CFG, Cause.NODE, Action.FIX_CONFIG, 46, 0.6,
        "RDMA was refused access to memory",
        "check nvidia-peermem or DMA-BUF, IOMMU and ACS of both nodes; then the run's own use of freed memory",
        r"Got completion (?:from peer )?.{0,120}(?:status=|error |status=\w+\()(?:4|10)\b",
    ),
    _root(
        "config.nccl_bootstrap", _CFG, Cause.ENVIRONMENT, Action.RETRY_ELSEWHERE, 66, 0.7,
        "somebody else spoke to NCCL's port while the ranks met",
        "keep port scanners off the job's network, or use NCCL 2.27.3 or newer, which ignores them",
        r"bootstrap\w*.{0,120}(?:unexpected|wrong|bad|invalid|magic|mismatch)",
        r"(?:bootstrap|socket)\w*\.cc.{0,120}Message truncated",
        r"socket\w*.{0,80}(?:wrong (?:type|magic)|bad magic|invalid magic|magic .{0,40}(?:does not match|!=))",
    ),
    _root(
        "config.nccl_version", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 83, 0.85,
        "the ranks have NCCL in several versions",
        "give all members the same environment",
        r"Mismatched NCCL version", r"NCCL version mismatch",
    ),
    _root(
        "config.driver_old", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 82, 0.85,
        "the environment's CUDA needs a newer driver than the node has",
        "take wheels built for an older CUDA, or have the driver upgraded",
        r"CUDA driver version is insufficient for CUDA runtime version", r"NVIDIA driver on your system is too old",
        r"forward compatibility was attempted on non supported HW", r"no kernel image is available for execution",
        r"(?:PTX was )?compiled with an unsupported toolchain", r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        r"CUDA_ERROR_NO_BINARY_FOR_GPU",
    ),
    _root(
        "config.toolchain", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 82, 0.8,
        "a compiler of the environment's CUDA toolkit cannot do what is asked of it",
        "give the environment one CUDA toolkit, of the version that the libraries were built with",
        r"\b(?:ptxas|nvlink|fatbinary|nvcc|cicc) (?:fatal|error) *:", r"\b(?:ptxas|nvlink|fatbinary|nvcc) exited with",
        r"libdevice not found", r"Cannot find a working (?:compiler|triton)",
        r"detected CUDA version.{0,40}mismatches the version", r"CUDAMismatchException",
        r"does not match the version torch was compiled with.{0,40}unable to compile", r"Error building extension '",
        r"ninja: build stopped", r"Ninja is required to load", r"CUDA Setup failed", r"CUDA SETUP: Setup Failed",
    ),
    _root(
        "config.cuda_libraries", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 73, 0.7,
        "cuDNN cannot start: its version does not fit the driver or the framework, or no memory is left for it",
        "pin versions that go together; if they do, leave it some of the GPU's memory",
        r"Could not create cudnn handle", r"DNN library initialization failed", r"CUDNN_STATUS_NOT_INITIALIZED",
        r"CUDNN_STATUS_\w*VERSION_MISMATCH", r"cuDNN version incompatibility",
        r"Loaded runtime CuDNN library: .{0,60}was compiled with",
    ),
    _root(
        "config.cuda_init", _CFG, Cause.ENVIRONMENT, Action.RETRY_ELSEWHERE, 79, 0.6,
        "CUDA cannot be initialised: a device file or module is away, or the environment names wrong devices",
        "look for /dev/nvidia-uvm and the module nvidia_uvm on the node, and at CUDA_VISIBLE_DEVICES",
        r"CUDA unknown error - this may be due to an incorrectly set up environment",
        r"failed call to cuInit: (?:CUDA_ERROR_UNKNOWN|UNKNOWN ERROR)", r"cuInit\(0\) failed: CUDA_ERROR_UNKNOWN",
    ),
    _root(
        "config.gpu_access", _CFG, Cause.NODE, Action.FIX_CONFIG, 71, 0.75,
        "the container cannot reach the GPUs or the driver's library of its node",
        "look at the container toolkit of the node, and at the devices that the container was given",
        r"Failed to initialize NVML: (?:Unknown Error|Insufficient Permissions)", r"could not load NVML library",
        r"nvml init failed: ERROR_LIBRARY_NOT_FOUND", r"NVML Shared Library Not Found",
        r"NVML_ERROR_LIBRARY_NOT_FOUND", r"NVMLError_LibraryNotFound",
        r'could not select device driver "[^"]*" with capabilities', r"unknown or invalid runtime name: nvidia",
        r"unresolvable CDI devices", r"nvidia-container-cli: (?:initialization|mount|device|container) error",
    ),
    _root(
        "config.no_gpu", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 58, 0.6,
        "the program sees no GPU",
        "check that the run asks for GPUs, and that its wheels are built for CUDA",
        r"No CUDA GPUs are available", r"no CUDA-capable device is detected", r"Found no NVIDIA driver on your system",
        r"Torch not compiled with CUDA enabled", r"^No devices were found$", r"CUDA_ERROR_NO_DEVICE",
    ),
    _root(
        "config.gpu_busy", _CFG, Cause.NODE, Action.RETRY_ELSEWHERE, 67, 0.6,
        "the GPU is taken by somebody else, or in a mode for one process",
        "see what holds it (`nvidia-smi`), and that its compute mode is Default",
        r"CUDA-capable device\(?s?\)? (?:are|is/are|is) busy or unavailable", r"cudaErrorDevicesUnavailable",
    ),
    _root(
        "config.bus_error", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 52, 0.5,
        "a process met a bus error, as a rule because shared memory ran out",
        "give the container more shared memory; else look at the disk below files that are mapped",
        r"\bSIGBUS\b", r"^Bus error\b", r"Signal: Bus error", r"exited on signal 7\b", r"APPLICATION.{0,60}Bus error",
        r"signal: Bus error", r"^srun: error: .{0,80}: Bus error", r"(?:exitcode ?: |return code = )-7\b",
    ),
    _root(
        "config.disk_full", _CFG, Cause.STORAGE, Action.FIX_CONFIG, 64, 0.7,
        "a disk is full",
        "free space where the run writes, or send its output to another place",
        r"No space left on device", r"Disk quota exceeded", r"\bENOSPC\b", r"Error: \[Errno (?:28|122)\]",
    ),
    _root(
        "config.storage", _CFG, Cause.STORAGE, Action.RETRY_ELSEWHERE, 64, 0.6,
        "a file system did not do what was asked of it",
        "look at the file system that the path names, on the node and on its server; the run is tried elsewhere",
        r"Stale (?:NFS )?file handle", r"Transport endpoint is not connected", r"Read-only file system",
        r"^(?:[\w.]+\.)?OSError: .{0,40}Input/output error", r"^(?:[\w.]+\.)?OSError: \[Errno (?:5|30|107|116)\]",
    ),
    _root(
        "config.import", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 63, 0.8,
        "a package or library is missing in the environment, or does not fit",
        "add it to the workload's dependencies, or pin versions that go together",
        r"^(?:ModuleNotFoundError|ImportError): ", r"cannot open shared object file", r"undefined symbol: ",
        r"version `GLIBC\w*_[\d.]+' not found",
    ),
    _root(
        "config.files", _CFG, Cause.ENVIRONMENT, Action.FIX_CONFIG, 62, 0.8,
        "the process may not open so many files",
        "raise `nofile` for the jobs, or open fewer (fewer loader workers, file_system sharing)",
        r"Too many open files", r"\bEMFILE\b",
    ),
    _root(
        "config.batch", _CFG, Cause.NODE, Action.FIX_CONFIG, 61, 0.7,
        "the batch system could not start the job",
        "look at the node's own log of the batch system, and at its spool folder",
        r"^slurmstepd: error: (?:execve|couldn't chdir|could not open|Unable to)", r"^slurmd: (?:error: )?fatal",
        r"^(?:srun|sbatch): error: (?:Unable to (?:allocate|create)|Invalid|Batch job submission failed)",
    ),
    _root(
        "config.port", _CFG, Cause.NETWORK, Action.RETRY_SAME, 61, 0.7,
        "the port where the ranks meet is in use",
        "take $MASTER_PORT as it is given, and no fixed one",
        r"Address already in use", r"\bEADDRINUSE\b",
    ),
    _root(
        "config.names", _CFG, Cause.NETWORK, Action.RETRY_ELSEWHERE, 59, 0.6,
        "a host name could not be resolved",
        "check DNS on the node; inside a gang use $MASTER_ADDR",
        r"Temporary failure in name resolution", r"Name or service not known",
        r"getaddrinfo.{0,40}(?:fail|error)",
    ),
    _root(
        "config.remote", _CFG, Cause.ENVIRONMENT, Action.RETRY_ELSEWHERE, 61, 0.6,
        "a service outside, such as a hub of models, could not be reached",
        "check the nodes' way out and the service's state, or keep what is fetched on a shared disk",
        r"HTTPS?ConnectionPool\(host=", r"Max retries exceeded with url", r"\bLocalEntryNotFoundError\b",
        r"\b50[234] (?:Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)",
        r"429 (?:Client Error|Too Many Requests)",
    ),
)  # fmt: skip

USER = (
    _root(
        "user.collectives", _USER, Cause.USER_CODE, Action.FIX_CODE, 90, 0.95,
        "the ranks called different collectives, or with different shapes",
        "make all ranks of a group call the same operations in the same order with the same shapes",
        r"Detected mismatch between collectives on ranks?", r"Mismatched collective",
        r"collective.{0,40}(?:shape|type) mismatch",
    ),
    _root(
        "user.device_assert", _USER, Cause.USER_CODE, Action.FIX_CODE, 89, 0.95,
        "an assertion in a GPU kernel failed, as a rule an index out of range",
        "run it with CUDA_LAUNCH_BLOCKING=1, or on the CPU, and check labels and token ids against their ranges",
        r"device-side assert(?!ions\b)", r"Indexing\w*\.cu.{0,160}Assertion", r"\.cu:\d+: .{0,120}Assertion `",
        r"CUDA_ERROR_ASSERT", r"cudaErrorAssert",
    ),
    _root(
        "user.gpu_memory", _USER, Cause.USER_CODE, Action.FIX_CODE, 88, 0.95,
        "the GPU's memory does not suffice",
        "take a smaller batch or sequence, activation checkpointing, or shard over more GPUs",
        r"(?:CUDA|Cuda failure|Cuda error)\b.{0,30}\bout of memory",
        r"(?<!ray\.exceptions\.)OutOfMemoryError", r"HIP out of memory", r"CUDA_ERROR_OUT_OF_MEMORY",
        r"RESOURCE_EXHAUSTED: .{0,40}(?:Out of memory|failed to allocate)", r"OOM when allocating tensor",
        r"No available memory for the cache blocks",
        r"larger than the (?:maximum number of tokens|available KV cache)",
        r"cudaErrorMemoryAllocation", r"CUBLAS_STATUS_ALLOC_FAILED",
    ),
    _root(
        "user.shape", _USER, Cause.USER_CODE, Action.FIX_CODE, 80, 0.95,
        "shapes or types of tensors do not fit",
        "compare the shapes that the message names",
        r"shapes cannot be multiplied", r"must match the size of tensor", r"size mismatch", r"shape mismatch",
        r"is invalid for input of size", r"Expected (?:input )?batch_size",
        r"Expected all tensors to be on the same device",
        r"expected scalar type \w+ but found", r"Sizes of tensors must match",
    ),
    _root(
        "user.assertion", _USER, Cause.USER_CODE, Action.FIX_CODE, 78, 0.95,
        "an assertion of the program failed", "look at the assertion's line in the traceback",
        r"^AssertionError\b",
    ),
    _root(
        "user.nan", _USER, Cause.USER_CODE, Action.FIX_CODE, 70, 0.8,
        "the loss or the gradients are not numbers any more",
        "lower the learning rate, clip gradients, check the data; a replay on other nodes tells code from hardware",
        r"\bloss\b.{0,20}\b(?:is|=|:) ?(?:nan|inf)\b.{0,60}(?:stop|abort|exit|terminat|raise)",
        r"(?:FloatingPointError|ValueError|RuntimeError): .{0,80}\b(?:nan|inf)s?\b",
        r"Loss is (?:nan|inf|infinite)", r"NaN or Inf found", r"Non-?finite (?:loss|grad)", r"found NaN in",
    ),
    _root(
        "user.illegal_address", _USER, Cause.USER_CODE, Action.FIX_CODE, 68, 0.75,
        "a GPU kernel touched an address that is not its own",
        "run it under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1; update the library whose kernel it is",
        r"illegal memory access", r"CUDA_ERROR_ILLEGAL_ADDRESS", r"cudaErrorIllegalAddress",
        r"misaligned address", r"unspecified launch failure", r"illegal instruction was encountered",
        r"CUDA_ERROR_(?:LAUNCH_FAILED|ILLEGAL_INSTRUCTION|MISALIGNED_ADDRESS|INVALID_PC)", r"invalid program counter",
    ),
    _root(
        "user.nccl_usage", _USER, Cause.USER_CODE, Action.FIX_CODE, 85, 0.9,
        "NCCL was called as it must not be, as a rule with two ranks on one GPU",
        "give each rank its own GPU: `torch.cuda.set_device(LOCAL_RANK)` before the first collective",
        r"Duplicate GPU detected", r"peer mapping resources exhausted", r"invalid device ordinal",
        r"ncclInvalidUsage", r"(?:NCCL error|ncclCommInit\w+).{0,160}invalid usage",
    ),
    _root(
        "user.kernel_resources", _USER, Cause.USER_CODE, Action.FIX_CODE, 74, 0.9,
        "a GPU kernel asks for more shared memory, registers or threads than this GPU has",
        "take smaller blocks or fewer stages, or a GPU of the kind that the kernel was written for",
        r"out of resource: (?:shared memory|tensor memory|threads|registers)",
        r"too many resources requested for launch",
    ),
    _root(
        "user.loss_scale", _USER, Cause.USER_CODE, Action.FIX_CODE, 70, 0.8,
        "gradients overflowed until the loss scale could fall no further",
        "train in bfloat16, lower the learning rate, look at the data",
        r"loss scale already at minimum", r"Minimum loss scale reached",
    ),
    _root(
        "user.access", _USER, Cause.USER_CODE, Action.FIX_CODE, 64, 0.8,
        "a model, data set or service refused access",
        "ask for access to it, and give the run a token that has it",
        r"\bGatedRepoError\b", r"\bRepositoryNotFoundError\b", r"Cannot access gated repo",
        r"\b40[134] Client Error", r"You are trying to access a gated repo",
    ),
    _root(
        "user.bad_file", _USER, Cause.USER_CODE, Action.FIX_CODE, 66, 0.8,
        "a checkpoint or file of data is damaged or cut short",
        "fetch or write it again, and compare its size and checksum",
        r"PytorchStreamReader failed", r"Error while deserializing header", r"\bSafetensorError\b",
        r"UnpicklingError", r"invalid header or archive is corrupted", r"Bad CRC-32", r"\bBadZipFile\b",
        r"unexpected EOF, expected \S+ more bytes", r"Parquet magic bytes not found", r"Corrupt \w+ compressed data",
        r"Compressed file ended before the end-of-stream", r"\bBadGzipFile\b", r"^zlib\.error", r"tarfile\.ReadError",
        r"\bArrowInvalid\b", r"image file is truncated", r"cannot identify image file", r"CRC check failed",
    ),
    _root(
        "user.host_memory", _USER, Cause.USER_LIMIT, Action.FIX_CODE, 72, 0.85,
        "the host's memory did not suffice, and a process was killed for it",
        "keep less in memory (fewer loader workers, no growing lists of tensors, streaming data), or ask for more",
        r"DataLoader worker \(pid[^)]*\) is killed by signal: Killed", r"\boom[-_]kill",
        r"Out of memory: Killed process", r"killed due to (?:the node running low on memory|memory pressure)",
        r"^srun: error: .{0,80}: Out Of Memory", r"Memory cgroup out of memory",
        r"\bOOMKilled\b", r"^MemoryError\b", r"std::bad_alloc", r"DefaultCPUAllocator: can't allocate memory",
        r"(?:Cannot|can't) allocate memory",
    ),
    _root(
        "user.interrupted", _USER, Cause.USER_CODE, Action.NONE, 20, 0.5,
        "the program was interrupted", "nothing, if somebody stopped it",
        r"^KeyboardInterrupt\b",
    ),
    _root(
        "user.exception", _USER, Cause.USER_CODE, Action.FIX_CODE, 60, 0.85,
        "the program raised an exception", "look at the traceback's last lines",
        r"^(?:[A-Za-z_][\w.]*\.)?(?!Dist\w*Error|Connection\w*Error|BrokenPipeError|EOFError|ChildFailedError"
        r"|SignalException"
        r"|\w*(?:RuntimeError|AcceleratorError|InternalError|UnknownError): .{0,160}(?:NCCL|CUDA|gloo|connection"
        r"|Connection closed|timed out|Broken pipe|[Ee]ngine core|EngineCore|Worker failed"
        r"|[Ee]ngine (?:loop|process)|[Bb]ackground loop)|Exception: WorkerProc"
        r"|(?:Xla|Jax)RuntimeError: (?:INTERNAL|UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|UNKNOWN|CANCELLED)\b"
        r"|(?:Unavailable|Aborted|DeadlineExceeded|Cancelled|HorovodInternal)Error|(?:MQ)?EngineDeadError|AsyncEngineDeadError"
        r"|(?:Ray)?Actor\w*Error|WorkerCrashedError|NodeDiedError|RayTaskError"
        r"|TimeoutError|nccl\w*Error|RendezvousTimeoutError|RendezvousConnectionError|ProcessExitedException"
        r"|ProcessRaisedException|subprocess\.CalledProcessError|CalledProcessError)"
        r"[A-Z]\w*(?:Error|Exception)\b(?::|$)",
    ),
    _root(
        "user.command", _USER, Cause.USER_CODE, Action.FIX_CODE, 57, 0.8,
        "the shell could not run the command", "check its spelling and that it is installed",
        r": command not found$", r": Permission denied$", r": syntax error near unexpected token",
    ),
    _root(
        "user.segfault", _USER, Cause.USER_CODE, Action.RETRY_ELSEWHERE, 50, 0.5,
        "a process crashed in native code",
        "run it with PYTHONFAULTHANDLER=1 to see where; update the library that is named there",
        r"Segmentation fault", r"Fatal Python error: (?:Segmentation|Bus|Aborted)", r"(?<!due to )\bSIGSEGV\b",
        r"exitcode ?: -11\b",
        r"Caught signal 11", r"exited on signal 11\b", r"Signal: Segmentation fault",
        r"free\(\): |double free|corrupted size vs", r"return code = -11\b",
    ),
)  # fmt: skip

NETWORK = (
    _root(
        "net.port", _NET, Cause.NETWORK, Action.RETRY_ELSEWHERE, 65, 0.7,
        "a port of the RDMA network failed",
        "look at the port's state and counters on the node (`ibstat`); " + _RETRY,
        r"NET/IB.{0,120}async (?:fatal )?event", r"Got async event ?: ?(?:port error|device fatal)",
        r"port (?:is )?(?:down|error).{0,40}mlx5",
    ),
    _root(
        "net.transport", _NET, Cause.NETWORK, Action.RETRY_ELSEWHERE, 45, 0.6,
        "a transfer over RDMA was not answered in time: the network between two nodes, or the peer itself",
        "both ends are suspects until a test of the pair tells; " + _RETRY,
        r"Got completion (?:from peer )?.{0,120}(?:status=|error |status=\w+\()(?:12|13)\b",
        r"IBV_WC_(?:RNR_)?RETRY_EXC_ERR", r"(?:transport|RNR) retry (?:counter )?exceeded",
        r"NET/OFI.{0,80}completed with error", r"efa_rdm_\w+_handle_error.{0,40}err: \d+",
        r"UCX +ERROR.{0,120}(?:[Ee]ndpoint timeout|Connection reset by remote peer)",
    ),
    _root(
        "net.connect", _NET, Cause.NETWORK, Action.RETRY_ELSEWHERE, 44, 0.6,
        "a rank could not connect to another",
        "check that the nodes reach each other on the interface that is chosen (firewall, routes, NCCL_SOCKET_IFNAME)",
        r"NCCL WARN.{0,160}(?:No route to host|Connection timed out|Connection refused|Network is unreachable)",
        r"socketStartConnect.{0,160}fail", r"connectFullMesh failed",
        r"socketPollConnect.{0,160}(?:No route to host|timed out|refused|unreachable|fail)",
        r"gloo/transport/\w+/\w+\.\w+:\d+\].{0,80}(?:connect|timeout|refused)", r"gloo::\w*Exception.{0,120}connect",
        r"NET/OFI Unable to insert remote address", r"NCCL WARN Call to connect failed",
    ),
)  # fmt: skip

EFFECTS = (
    _silent(
        "torch.watchdog", Role.EFFECT, "a collective was not finished in time",
        r"Watchdog caught collective operation timeout", r"collective operation timeout",
        r"detected by watchdog at work", r"watchdog thread terminated with exception",
        r"ran for \d+ milliseconds before timing out", r"watchdog got stuck", r"Heartbeat monitor timed out",
        r"Some NCCL operations have failed or timed out", r"To avoid data inconsistency",
        r"Timed out waiting \d+ms for (?:send|recv) operation",
    ),
    _silent(
        "net.peer_gone", Role.EFFECT, "another rank went away",
        r"Connection (?:closed|reset) by (?:remote )?peer", r"Broken pipe", r"remote process exited",
        r"socketProgress.{0,60}(?:fail|clos)", r"recvBytes.{0,60}(?:fail|error)", r"sendBytes.{0,60}(?:fail|error)",
        r"Got completion (?:from peer )?.{0,120}(?:status=|error |status=\w+\()5\b",
    ),
    _silent(
        "nccl.error", Role.EFFECT, "NCCL gave up",
        r"unhandled (?:cuda|system) error", r"ncclInternalError", r"ncclSystemError", r"ncclRemoteError",
        r"NCCL error\b", r"ncclUnhandledCudaError", r"^(?:[\w.]+\.)?Dist\w*Error\b",
    ),
    _silent(
        "rendezvous.timeout", Role.EFFECT, "a rank waited in vain for the others to meet",
        r"client socket has (?:timed out|failed)", r"Timed out (?:after \d+ seconds )?waiting for clients",
        r"Wait timeout.{0,60}store", r"rendezvous.{0,60}timed? ?out", r"DEADLINE_EXCEEDED",
        r"coordination service.{0,160}(?:fail|error|timeout|unhealthy)", r"stopped sending heartbeats",
        r"heartbeat timeout",
    ),
    _silent(
        "engine.dead", Role.EFFECT, "the part of a server that computes ended, and the rest with it",
        r"EngineDeadError", r"EngineCore encountered (?:an issue|a fatal error)",
        r"[Ee]ngine core initialization failed",
        r"WorkerProc (?:hit an exception|failed to start)", r"\b(?:Ray)?Actor\w*Error\b",
        r"\bWorkerCrashedError\b", r"\bactor (?:died|is dead)\b",
        r"WorkerProc initialization failed", r"Engine (?:loop|process).{0,40}(?:died|dead|fail)",
        r"Engine is already dead",
        r"worker died or was killed", r"RPC call to \w+ timed out",
    ),
    _silent(
        "launcher.teardown", Role.EFFECT, "the launcher ended the others",
        r"ChildFailedError", r"Sending process \d+ closing signal", r"SignalException", r"Signal 15 \(SIGTERM\)",
        r"exitcode ?: -?(?:1|6|9|15)\b", r"Root Cause \(first observed failure\)", r"\bSIGABRT\b", r"\bSIGKILL\b",
        r"RendezvousTimeoutError", r"RendezvousConnectionError", r"terminate called after throwing",
        r"\bDUE TO NODE FAIL", r"MPI_ABORT was invoked",
        r"^slurmstepd: error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED",
    ),
)  # fmt: skip

SILENT = (
    _silent(
        "batch.time_limit", Role.CONTEXT, "the batch system ended the job at its time limit",
        r"\bDUE TO TIME LIMIT\b", r"job killed: walltime \d+ exceeded",
    ),
    _silent(
        "process.stopped", Role.CONTEXT, "the job was stopped from outside: preempted, requeued or cancelled",
        r"\bDUE TO (?:PREEMPTION|JOB REQUEUE)\b", r"this job is preempted", r"Received 15 death signal",
        r"got signal: 15\b",
    ),
    _silent(
        "cuda.unknown", Role.CONTEXT, "CUDA met an error that it does not know (999): the kernel's log says more",
        r"CUDA (?:driver )?error: unknown error", r"CUDA unknown error\b", r"CUDA_ERROR_UNKNOWN", r"cudaErrorUnknown",
        r"Cuda failure (?:999 )?'unknown error'",
    ),
    _silent(
        "process.killed", Role.CONTEXT, "a process was killed from outside",
        r"exitcode ?: -9\b", r"return code = -9\b", r"Signal 9 \(SIGKILL\)", r"^Killed$",
        r": \w+ \d+: +[\d#]+ +Killed\b", r"exited on signal 9\b",
        r"[Ee]xit(?:ed with exit)? ?code:? 137\b", r"^srun: error: .{0,80}: Killed$",
    ),
)  # fmt: skip

FORGED = (
    _silent(
        "kernel.text", Role.CONTEXT,
        "a line that looks like the kernel's, in what a job printed: no evidence; give the kernel's own log",
        r"\bNVRM: ", r"\bSXid \(",
    ),
)  # fmt: skip
"""Tried first: whoever prints the kernel's words must not have them taken for the kernel's."""

TABLE: tuple[Signature, ...] = (*FORGED, *HARDWARE, *DRIVER, *CONFIG, *USER, *NETWORK, *SILENT, *EFFECTS)
"""In the order in which they are tried: the first that fits a line names it."""


_LONG_NUMBER = re.compile(r"\d{4,}")
"""Numbers that no signature asks for: counters, sizes, addresses. Statuses and error codes are shorter."""


def signature_of(text: str) -> Signature | None:
    """Return what a line without prefixes is a signature of. Cost: tens of microseconds, or one for a repeated line."""
    return _signature_of(_LONG_NUMBER.sub("#", text))


@lru_cache(maxsize=20_000)
def _signature_of(text: str) -> Signature | None:
    for signature in TABLE:
        if signature.expression.search(text) is not None:
            return signature
    return None
