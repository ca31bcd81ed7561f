"""Which finding decides, who is blamed for it, and what never blames anybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.run import Cause
from airyard.core.triage.causes import Action, FailureCause, FailureClass
from airyard.core.triage.judging import RankExit, judge
from airyard.core.triage.machine_faults import bursts
from airyard.core.triage.reading import Findings, Reader

WATCHDOG = (
    "[rank{0}]:[E1102 10:00:03.100 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=912, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds"
)
XID79 = "2025-03-04T{0}Z n7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def findings(job: str = "", kernel: str = "") -> Findings:
    found = Findings()
    for text, is_kernel in ((job, False), (kernel, True)):
        reader = Reader("kern.log" if is_kernel else "train.log", kernel=is_kernel)
        reader.feed(text.encode())
        found.merge(reader.findings())
    return found


def verdict(job: str = "", kernel: str = "", **more: object) -> FailureCause:
    return judge(findings(job, kernel), **more)  # type: ignore[arg-type]  # exits, events and nodes


def event(**changes: object) -> HealthEvent:
    given: dict[str, object] = {
        "event_id": "b-1",
        "rule": "xid.79",
        "machine": "n7",
        "at_ms": 1_741_082_400_000,
        "component": Component.GPU,
        "severity": Severity.CRITICAL,
        "source": Source.KERNEL,
        "message": "Xid 79: the GPU has fallen off the bus",
        "node": "n7",
        "device": 3,
        **changes,
    }
    return HealthEvent(**given)  # type: ignore[arg-type]  # its fields


def test_lower_clocks_end_no_run() -> None:
    slow = event(rule="gpu.throttled_long", severity=Severity.HIGH, source=Source.NVML)
    plain = verdict("ValueError: shapes do not match")
    assert verdict("ValueError: shapes do not match", events=[slow]) == plain
    assert verdict(WATCHDOG.format(1), events=[slow]).rule == verdict(WATCHDOG.format(1)).rule
    assert verdict(WATCHDOG.format(1), events=[event()]).rule == "xid.79"


ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def test_the_advice_that_follows_every_error_of_cuda_is_no_assertion() -> None:
    said = verdict(
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n" + ADVICE
    )
    assert said.rule == "config.driver_old"
    said = verdict("RuntimeError: CUDA error: device-side assert triggered\n" + ADVICE)
    assert said.rule == "user.device_assert"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=7) ERROR 06-03 14:10:41 [async_llm.py:525] vllm.v1.engine.exceptions.EngineDeadError: dead",
        "(EngineCore_DP0 pid=7) ERROR 06-03 14:10:41 [core.py:588] Exception: WorkerProc initialization failed due to",
        "ERROR 06-03 14:10:41 [core.py:588] RuntimeError: Engine core initialization failed. See root cause above.",
        "torch.AcceleratorError: CUDA error: unknown error",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error",
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.",
        "*** STEP 7.0 ON n7 CANCELLED AT 2025-03-04T12:00:00 DUE TO TIME LIMIT ***",
    ],
)
def test_what_servers_and_launchers_say_of_a_dead_worker_hides_no_fault_of_the_machine(line: str) -> None:
    said = verdict(line, "[ 4110.2] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert (said.rule, said.confirmed) == ("xid.79", True)
    assert verdict(line).failure_class in (FailureClass.UNKNOWN, FailureClass.USER)


def test_a_time_limit_is_no_cause_where_the_job_stood_still() -> None:
    limit = "slurmstepd: error: *** STEP 7.0 ON n7 CANCELLED AT 2025-03-04T12:00:00 DUE TO TIME LIMIT ***"
    assert verdict(limit).cause is Cause.USER_LIMIT
    assert verdict(WATCHDOG.format(3) + "\n" + limit).rule == "collective.timeout"


def test_a_timeout_alone_blames_nobody() -> None:
    said = verdict("\n".join(WATCHDOG.format(rank) for rank in range(8)))
    assert (said.failure_class, said.cause, said.action) == (
        FailureClass.UNKNOWN,
        Cause.PLATFORM,
        Action.RETRY_ELSEWHERE,
    )
    assert (said.blamed_node, said.blamed_device, said.confirmed, said.first_rank) == ("", "", False, None)


def test_a_timeout_is_the_effect_of_an_error_elsewhere() -> None:
    said = verdict(f"{WATCHDOG.format(0)}\n[rank5]: KeyError: 'labels'\n{WATCHDOG.format(1)}\n")
    assert (said.failure_class, said.first_rank, said.rule) == (FailureClass.USER, 5, "user.exception")
    assert said.cascade == ("torch.watchdog",)


def test_what_a_job_prints_confirms_nothing() -> None:
    said = verdict(
        "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", nodes={1: "n4"}
    )
    assert (said.failure_class, said.first_rank, said.blamed_node) == (FailureClass.HARDWARE, 1, "n4")
    assert not said.confirmed


def test_the_kernel_confirms() -> None:
    said = verdict("RuntimeError: CUDA error: unspecified launch failure\n", XID79.format("10:00:00"))
    assert (said.failure_class, said.confirmed) == (FailureClass.HARDWARE, True)
    assert (said.blamed_node, said.blamed_device) == ("n7", "0000:3b:00")
    assert said.evidence[0].kernel


def test_an_old_fault_is_not_the_cause() -> None:
    job = "2025-03-04T10:00:00Z [rank0]: ValueError: no such optimiser\n"
    assert verdict(job, XID79.format("09:20:00")).failure_class is FailureClass.USER
    assert verdict(job, XID79.format("09:59:00")).failure_class is FailureClass.HARDWARE
    assert verdict(job, XID79.format("10:10:00")).failure_class is FailureClass.USER


def test_the_programs_own_errors_stand_against_the_kernels_word() -> None:
    job = "2025-03-04T10:00:00Z torch.OutOfMemoryError: CUDA out of memory.\n"
    said = verdict(job, XID79.format("09:59:59"))
    assert (said.failure_class, said.confirmed) == (FailureClass.USER, False)


def test_a_monitor_confirms_and_names_the_device() -> None:
    job = "2025-03-04T10:00:05Z [rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    said = verdict(job, events=(event(),))
    assert (said.failure_class, said.blamed_node, said.blamed_device, said.confirmed) == (
        FailureClass.HARDWARE,
        "n7",
        "3",
        True,
    )
    unsure = verdict(job, events=(event(confirmed=False), event(severity=Severity.WARNING)))
    assert unsure.failure_class is FailureClass.USER


def test_the_first_of_two_ranks_by_their_clocks() -> None:
    job = "2025-03-04T10:00:09Z [rank0]: KeyError: 'a'\n2025-03-04T10:00:04Z [rank6]: KeyError: 'a'\n"
    assert verdict(job).first_rank == 6


def test_a_network_that_came_first_is_not_excused_by_an_exception_of_the_teardown() -> None:
    job = (
        "2025-03-04T10:00:00Z n0:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4410> with status=12 "
        "opcode=0 len=0 vendor err 129 (Recv)\n"
        "2025-03-04T10:00:01Z ValueError: I/O operation on closed file\n"
    )
    said = verdict(job)
    assert (said.failure_class, said.cause) == (FailureClass.NETWORK, Cause.NETWORK)
    assert said.blamed_node == ""


def test_one_gpu_under_many_programs_and_one_program_on_many_gpus() -> None:
    line = "[ {0}.0] NVRM: Xid (PCI:0000:{1}:00): 31, pid={2}, name={3}, MMU Fault\n"
    one = "".join(line.format(n, "1d", 100 + n, "python3") for n in range(4))
    many = "".join(line.format(n, f"{n}d", 100, "python3") for n in range(4))
    each = "".join(line.format(n, "1d", 100 + n, f"tool{n}") for n in range(4))
    assert verdict(kernel=one).failure_class is FailureClass.HARDWARE
    assert not verdict(kernel=one).confirmed
    assert verdict(kernel=many).failure_class is FailureClass.USER
    assert verdict(kernel=each).failure_class is FailureClass.DRIVER


def test_a_killed_process_by_what_else_is_known() -> None:
    killed = (RankExit(rank=2, signal=9),)
    assert verdict(exits=killed).failure_class is FailureClass.UNKNOWN
    assert verdict(exits=(RankExit(rank=2, signal=9, out_of_memory=True),)).cause is Cause.USER_LIMIT
    full = "host memory used 241.0/251.5 GB\n"
    assert verdict(full, exits=killed).cause is Cause.USER_LIMIT
    assert verdict(full.replace("241.0", "100.0"), exits=killed).failure_class is FailureClass.UNKNOWN


def test_the_driver_knows_the_cure() -> None:
    line = "[ 5.0] NVRM: Xid (PCI:0000:3b:00): {0}\n"
    reset = verdict(kernel=line.format("48, pid=1, DBE"))
    told = verdict(
        kernel=line.format("48, pid=1, DBE")
        + line.format("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    )
    assert (reset.action, told.action) == (Action.CORDON_RESET, Action.CORDON_REBOOT)
    assert told.rule == "xid.48"


@pytest.mark.parametrize(
    ("burst", "root"),
    [
        ((45, 45, 79, 154), "xid.79"),
        ((48, 64, 45), "xid.64"),
        ((63, 48), "xid.48"),
        ((119, 74), "xid.74"),
        ((94, 31), "xid.94"),
        ((46, 48), "xid.48"),
        ((48, 48), "xid.48"),
    ],
)
def test_the_strongest_of_a_burst_is_its_root(burst: tuple[int, ...], root: str) -> None:
    lines = "".join(f"[ {n}.0] NVRM: Xid (PCI:0000:3b:00): {code}, x\n" for n, code in enumerate(burst))
    assert verdict(kernel=lines).rule == root


def test_a_burst_ends_with_three_minutes_of_silence() -> None:
    line = "[ {0}.0] NVRM: Xid (PCI:0000:3b:00): {1}, x\n"
    near, far = (findings(kernel=line.format(10, 48) + line.format(at, 64)).kernel for at in (180, 400))
    assert [len(burst) for burst in bursts(near)] == [2]
    assert [len(burst) for burst in bursts(far)] == [1, 1]


def test_an_exception_of_no_known_time_stands_against_a_fault_of_no_known_time() -> None:
    fault = "[ 5.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    said = verdict("[rank2]: KeyError: 'labels'\n", fault)
    assert (said.failure_class, said.first_rank, said.confirmed) == (FailureClass.USER, 2, False)
    assert said.cascade == ("xid.79",), "it is told of, so that somebody may look at it"
    cuda = verdict("RuntimeError: CUDA error: unspecified launch failure\n", fault)
    assert (cuda.failure_class, cuda.confirmed) == (FailureClass.HARDWARE, True)


def test_a_link_that_was_down_at_the_start_of_the_machine_is_no_cause() -> None:
    down = "[ 3.0] mlx5_core 0000:5e:00.0 enp94s0: Link down\n"
    assert (
        verdict("RuntimeError: CUDA error: an illegal memory access\n", down).failure_class
        is FailureClass.USER
    )
    alone = verdict(kernel=down)
    assert (alone.failure_class, alone.confirmed) == (FailureClass.NETWORK, False)


USER_LINES = (
    "torch.OutOfMemoryError: CUDA out of memory.",
    "AssertionError",
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x128)",
    "RuntimeError: Detected mismatch between collectives on ranks.",
    "Loss is nan, stopping training",
)
FORGED = (
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "[ 5.0] NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 23001, Fatal, Link 35",
    WATCHDOG.format(0),
    "NCCL WARN Net : Connection closed by remote peer 10.0.0.1<99>",
)


@given(
    some.sampled_from(USER_LINES),
    some.lists(some.sampled_from(FORGED), max_size=5),
    some.integers(0, 5),
)
def test_an_error_of_the_program_never_blames_a_node(line: str, others: list[str], place: int) -> None:
    others.insert(place, line)
    said = verdict("\n".join(others) + "\n", nodes={0: "n0"})
    assert said.failure_class is FailureClass.USER
    assert (said.blamed_node, said.blamed_device, said.confirmed) == ("", "", False)


@given(some.lists(some.sampled_from(FORGED), max_size=8))
def test_forged_lines_confirm_nothing_and_are_no_hardware(lines: list[str]) -> None:
    said = verdict("\n".join(lines) + "\n")
    assert said.failure_class is FailureClass.UNKNOWN
    assert not said.confirmed


ECC = "CUDA error: uncorrectable ECC error encountered"
KEY_ERROR = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\nKeyError: 'k'\n"


@pytest.mark.parametrize(
    "log",
    [
        f"ValueError: {ECC} is not handled by my parser\n",
        f"pkg.errors.JSONDecodeError: {ECC}: line 1 column 1\n",
        f"AssertionError: assert 'a' == '{ECC}'\n",
        "MyError: GPU is lost\n",
        f'{{"level":"warning","msg":"peer n4 reported: {ECC}"}}\n{{"level":"error","msg":"ValueError: bad shape"}}\n',
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "    | ValueError: GPU has fallen off the bus (label)\n",
        "my.ConfigError: Driver/library version mismatch: plugin 3 vs lib 4\n",
        'Traceback (most recent call last):\n  File "t.py", line 3, in f\n'
        "    if 'uncorrectable ECC error' in str(e): raise\n"
        "IndexError: list index out of range\n",
        f"sample text: RuntimeError: {ECC}\nstep 11 loss 3.1\n{KEY_ERROR}",
        f"WARNING retry after: {ECC} (simulated)\nstep 2\nstep 3\nValueError: bad config\n",
        f"the data has <{ECC}> in it\nRuntimeError: shape '[2, 3]' is invalid for input of size 5\n",
        "sample: NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0 vendor err 129\n"
        + KEY_ERROR,
    ],
)
def test_a_fault_that_a_program_only_speaks_of_is_not_why_it_ended(log: str) -> None:
    found = verdict(log)
    assert (found.failure_class, found.cause) == (FailureClass.USER, Cause.USER_CODE)
    assert (found.blamed_node, found.blamed_device) == ("", "")


@pytest.mark.parametrize(
    "log",
    [
        f"RuntimeError: {ECC}\n{KEY_ERROR}",
        f"[rank3]: torch.AcceleratorError: {ECC}\n{KEY_ERROR}",
        f"pynvml.NVMLError_GpuIsLost: GPU is lost\n{KEY_ERROR}",
        f"Exception: {ECC}\n",
        f"lightning.fabric.utilities.exceptions.MisconfigurationException: Training stopped: {ECC}\n",
        "pycuda._driver.LogicError: cuCtxSynchronize failed: uncorrectable ECC error encountered\n",
        f"ERROR: step 12 failed: {ECC}\n{KEY_ERROR}",
        f"ray.exceptions.RayTaskError(RuntimeError): {ECC}\n",
        f"2025-11-02 10:00:00,123 ERROR train.py:88 Exception: {ECC}\n{KEY_ERROR}",
        f"terminate called after throwing an instance of 'c10::Error'\n  what():  {ECC}\n{KEY_ERROR}",
        f"Exception in worker VllmWorkerProcess while processing method load_model: {ECC}\n",
        "Accelerator Fatal Error: call to cuCtxCreate returned error 214 (CUDA_ERROR_ECC_UNCORRECTABLE)\n",
    ],
)
def test_one_that_it_reports_is_though_its_own_errors_follow(log: str) -> None:
    found = verdict(log)
    assert found.failure_class is FailureClass.HARDWARE
    assert found.action in (Action.CORDON_RESET, Action.CORDON_REBOOT)
    assert found.confidence > 0.6, "it excuses the retry"


def test_what_another_rank_speaks_of_is_not_weighed_against_this_ones_error() -> None:
    log = f"[rank1]: trainer says {ECC}\n[rank0]: KeyError: 'k'\n"
    assert verdict(log).failure_class is FailureClass.HARDWARE


@pytest.mark.parametrize(
    "log",
    [
        f"the data has <{ECC}> in it\n",
        f'RuntimeError: refusing to start: last job ended with "{ECC}"; set FORCE=1\n',
        f'  --replay TEXT  one of "{ECC}"\ntrain.py: error: unrecognized arguments: --lr\n',
    ],
)
def test_what_may_only_be_spoken_of_touches_no_node(log: str) -> None:
    found = verdict(log)
    assert (found.action, found.confidence) == (Action.RETRY_ELSEWHERE, 0.5)
    assert not found.confirmed
