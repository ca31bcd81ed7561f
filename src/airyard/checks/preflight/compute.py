"""What GPUs do when they work: copies, matrix products, memory, sums over all of them, burn-in.

Owns: which tests there are, how each is judged, and the seam to what runs them. Must not know: NVML (``load.py`` reads
it meanwhile), torch (``torch_child.py`` is run by the environment's own interpreter).

All tests run one after another in one process of their own: at once they would measure each other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, warned
from airyard.checks.limit import is_own
from airyard.checks.preflight import load
from airyard.checks.preflight.setting import setting_of
from airyard.core.health.facts import CheckResult, CheckStatus, Component, Remedy, Retest
from airyard.core.health.fleet_values import GEMM

CHILD = Path(__file__).with_name("torch_child.py")
FAST_S, FULL_S = 50.0, 840.0
NEEDS_GPU = "needs a GPU"
LOAD = "load"
"""What was read of the GPUs while they worked; no test of its own."""
_KILL_S = 2.0
_NEAR = 1.05
"""A value this little above its floor is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test: how long it may take, and whether the fast profile has it."""

    name: str
    budget_s: float
    fast: bool = False


TESTS = (
    Test(name="gemm", budget_s=60, fast=True),
    Test(name="all_reduce", budget_s=90, fast=True),
    Test(name="copies", budget_s=60),
    Test(name="peers", budget_s=60),
    Test(name="memory", budget_s=120),
    Test(name="checksum", budget_s=60),
    Test(name="burn", budget_s=420),
)


NAMES = tuple(f"compute.{test.name}" for test in TESTS)
"""The check of each test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a test came to: ``values`` by what is measured, or why there are none."""

    values: Mapping[str, Any] = field(default_factory=dict)
    skipped: str = ""
    problem: str = ""
    """It crashed or was late: nothing is known."""
    took_s: float = 0.0


class ComputeProbe(Protocol):
    """What runs tests: torch on real GPUs, or a script in a test."""

    def run(self, test: str, *, full: bool, budget_s: float) -> Outcome:
        """Run one test; never raises, and is back soon after its budget."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCompute:
    """Runs tests by an interpreter that has torch."""

    python: str

    def run(self, test: str, *, full: bool, budget_s: float) -> Outcome:
        """See ``ComputeProbe``."""
        arguments = [self.python, str(CHILD), test, *(["--full"] if full else [])]
        return run_child(arguments, budget_s)


def run_child(arguments: Sequence[str], budget_s: float, environ: Mapping[str, str] | None = None) -> Outcome:
    """Run a program whose last line of output is JSON. After the budget its whole session is killed, not waited for."""
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=None if environ is None else dict(environ),
        )
    except OSError as error:
        return Outcome(problem=f"{arguments[0]} cannot be run: {error.strerror}")
    try:
        out, err = process.communicate(timeout=budget_s)
    except subprocess.TimeoutExpired:
        return Outcome(problem=_kill(process, budget_s), took_s=time.monotonic() - began)
    took_s = time.monotonic() - began
    lines = out.decode("utf-8", "replace").strip().splitlines()
    try:
        told = json.loads(lines[-1]) if process.returncode == 0 and lines else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        last = err.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return Outcome(problem=f"it crashed: {last[0][:300]}", took_s=took_s)
    if "skipped" in told:
        return Outcome(skipped=str(told["skipped"]), took_s=took_s)
    return Outcome(values=told, took_s=took_s)


def _kill(process: subprocess.Popen[bytes], budget_s: float) -> str:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        return f"it was not done within {budget_s:g} s, and process {process.pid} waits in the kernel"
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return f"it was not done within {budget_s:g} s"


Outcomes = Mapping[str, Outcome]


def collect(site: Site) -> dict[str, Outcome]:
    """Run the tests of the profile, where there are GPUs and an interpreter with torch; watch the GPUs meanwhile."""
    if not any(site.path("/dev").glob("nvidia[0-9]*")):
        return _none(NEEDS_GPU)
    python = setting_of(site).python
    if not python:
        return _none("needs an environment with torch: nobody named one")
    with load.Watch() as watch:
        found = run_tests(TorchCompute(python=python), full=site.full, only=setting_of(site).only)
    return {**found, LOAD: _watched(watch)}


def _watched(watch: load.Watch) -> Outcome:
    if watch.problem or not watch.seen:
        return Outcome(skipped=watch.problem or "no GPU was seen at work")
    return Outcome(values={"gpus": watch.seen})


def _none(why: str) -> dict[str, Outcome]:
    return {name: Outcome(skipped=why) for name in (*(test.name for test in TESTS), LOAD)}


def run_tests(compute: ComputeProbe, *, full: bool, only: Collection[str] = ()) -> dict[str, Outcome]:
    """Run the tests of a profile one after another, within its time. What did not get its turn is a problem.

    ``only``: the checks that are wanted; none: all.
    """
    until = time.monotonic() + (FULL_S if full else FAST_S)
    found = {}
    for test in TESTS:
        left = until - time.monotonic()
        if only and f"compute.{test.name}" not in only:
            found[test.name] = Outcome(skipped="in another part")
        elif not (full or test.fast):
            found[test.name] = Outcome(skipped="only in the full profile")
        elif left < 1:
            found[test.name] = Outcome(problem="no time was left for it")
        else:
            found[test.name] = compute.run(test.name, full=full, budget_s=min(test.budget_s, left))
    return found


# --- rules


def _known(read: Outcomes, test: str, check: str, component: Component) -> CheckResult | None:
    """Return the result where nothing was measured; None where something was."""
    outcome = read.get(test, Outcome(skipped=NEEDS_GPU))
    if outcome.skipped:
        return skipped(check, outcome.skipped)
    if outcome.problem:
        return CheckResult(
            check=check,
            status=CheckStatus.UNKNOWN,
            message=f"the test of {test} says nothing: {outcome.problem}",
            next_step="run it again; when it stays so, look at the machine by hand",
            component=component,
        )
    return None


def _floor(
    check: str, what: str, values: Mapping[str, float], floor: float | None, unit: str, component: Component
) -> Iterator[CheckResult]:
    """Judge values by device (or pair) against a floor. Without a floor it only tells."""
    fine, lowest = True, min(values.values(), default=0.0)
    for device, value in values.items():
        if floor is None or value >= floor * _NEAR:
            continue
        fine = False
        index = int(device) if device.isdigit() else None
        text = f"GPU {device}: {what} {value:,.1f} {unit}, {floor:,.0f} are the least"
        more: dict[str, Any] = {"device": index, "value": value, "threshold": floor, "unit": unit}
        if value >= floor:
            yield warned(check, f"{text} (near)", "look at it again in the full profile", **more)
        else:
            yield failed(
                check,
                text,
                "run it again alone; if it stays so, reset the GPU, then reboot the machine",
                component,
                Remedy.GPU_RESET,
                Retest.T3,
                **more,
            )
    if fine:
        yield passed(
            check,
            f"{what}: {lowest:,.1f} {unit} at least" if values else what,
            value=lowest,
            threshold=floor,
            unit=unit,
        )


def _numbers(values: Any) -> dict[str, float]:
    return {str(name): float(value) for name, value in dict(values).items()}


def _copies(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    if (none := _known(read, "copies", "compute.copies", Component.GPU)) is not None:
        yield none
        return
    values = read["copies"].values
    lowest = {
        device: min(speed, _numbers(values["to_host"]).get(device, speed))
        for device, speed in _numbers(values["to_device"]).items()
    }
    yield from _floor(
        "compute.copies", "to and from the host", lowest, limits.get("copy_gb_s"), "GB/s", Component.GPU
    )


def _peers(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.peers"
    if (none := _known(read, "peers", check, Component.NVLINK)) is not None:
        yield none
        return
    values = _numbers(read["peers"].values["pairs"])
    if not values:
        yield skipped(check, "fewer than two GPUs")
        return
    relative = limits["peer_share_fail"] * median(values.values())
    floor = limits.get("peer_gb_s")
    yield from _floor(
        check,
        "between two GPUs",
        values,
        max(floor, relative / _NEAR) if floor is not None else None,
        "GB/s",
        Component.NVLINK,
    )


def _gemm(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.gemm"
    if (none := _known(read, "gemm", check, Component.GPU)) is not None:
        yield none
        return
    values = _numbers(read["gemm"].values["tflops"])
    found = list(_floor(check, "bf16 products", values, limits.get("gemm_tflops"), "TFLOPS", Component.GPU))
    behind = list(_behind(check, values, limits))
    if behind:
        slow = {one.device for one in behind}
        yield from (one for one in found if one.status is not CheckStatus.PASS and one.device not in slow)
        yield from behind
        return
    fastest = max(values.values(), default=0.0)
    spread = 1 - min(values.values()) / fastest if fastest else 0.0
    if all(one.status is CheckStatus.PASS for one in found) and spread > limits["gemm_spread_warn"]:
        slowest = min(values, key=lambda device: values[device])
        yield warned(
            check,
            f"GPU {slowest} is {spread:.0%} slower than the fastest of the machine",
            "look at its temperature, power and clocks under load",
            device=int(slowest),
            value=spread * 100,
            threshold=limits["gemm_spread_warn"] * 100,
            unit="%",
        )
        return
    yield from found


def _behind(check: str, values: Mapping[str, float], limits: Thresholds) -> Iterator[CheckResult]:
    """Name the GPUs that are slower than is usual among other nodes, but not those below the table's floor already.

    Where machine or pool declare a floor of their own, it is that floor alone.
    """
    usual = limits.fleet.get(GEMM)
    if usual is None or is_own(limits.sources.get("gemm_tflops", "")):
        return
    share, floor = limits["gemm_fleet_share"], limits.get("gemm_tflops") or 0.0
    for device, value in values.items():
        if floor <= value < share * usual.median:
            yield failed(
                check,
                f"GPU {device}: bf16 products {value:,.1f} TFLOPS, {value / usual.median:.2f} of the "
                f"{usual.median:,.0f} that are the median of {usual.nodes} other nodes of its kind, "
                f"{share:g} of it are the least",
                "run it again alone; if it stays so, look at its temperature, power and clocks under load, reset the "
                "GPU, then reboot the machine",
                Component.GPU,
                Remedy.GPU_RESET,
                Retest.T3,
                device=int(device) if device.isdigit() else None,
                value=value,
                threshold=share * usual.median,
                unit="TFLOPS",
            )


def _memory(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.memory"
    if (none := _known(read, "memory", check, Component.GPU_MEMORY)) is not None:
        yield none
        return
    wrong = _numbers(read["memory"].values["miscompares"])
    for device, count in wrong.items():
        if count:
            yield failed(
                check,
                f"GPU {device}: {count:.0f} words of memory read back otherwise than they were written",
                "take the GPU out of use: ECC did not see it",
                Component.GPU_MEMORY,
                Remedy.REPLACE,
                Retest.T3,
                device=int(device),
                value=count,
                threshold=0,
            )
    if not any(wrong.values()):
        yield from _floor(
            check,
            "memory",
            _numbers(read["memory"].values["gb_s"]),
            limits.get("memory_gb_s"),
            "GB/s",
            Component.GPU_MEMORY,
        )


def disagreeing(checksums: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the devices whose checksums of one deterministic product are wrong, and why.

    A device whose own runs differ is wrong; so is one whose runs agree with each other and not with most devices. Where
    no result has a majority of devices, nobody can tell who is right: all are named.
    """
    found = {
        device: "its own runs differ" for device, sums in checksums.items() if len(set(sums)) > 1 or not sums
    }
    steady = {device: sums[0] for device, sums in checksums.items() if device not in found}
    counts: dict[str, int] = {}
    for value in steady.values():
        counts[value] = counts.get(value, 0) + 1
    if len(counts) > 1:
        most = max(counts.values())
        right = [value for value, count in counts.items() if count == most]
        if len(right) == 1 and most > len(steady) / 2:
            others = "it differs from the machine's other GPUs"
            found.update({device: others for device, value in steady.items() if value != right[0]})
        else:
            found.update(dict.fromkeys(steady, "the GPUs differ, and none has most on its side"))
    return found


def _checksum(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.checksum"
    if (none := _known(read, "checksum", check, Component.GPU)) is not None:
        yield none
        return
    sums = {str(device): list(each) for device, each in read["checksum"].values["checksums"].items()}
    wrong = disagreeing(sums)
    for device, why in wrong.items():
        yield _corrupt(check, device, f"one product with the same numbers comes out differently: {why}")
    if not wrong:
        yield passed(
            check, f"the same to the bit on {len(sums)} GPUs, {len(next(iter(sums.values()), []))} times"
        )


def _corrupt(check: str, device: str, text: str, value: float | None = None) -> CheckResult:
    return failed(
        check,
        f"GPU {device}: {text}",
        "take the GPU out of use and have it replaced: it computes wrong without saying so",
        Component.GPU,
        Remedy.REPLACE,
        Retest.T3,
        device=int(device) if device.isdigit() else None,
        value=value,
        threshold=0,
    )


def _all_reduce(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.all_reduce"
    if (none := _known(read, "all_reduce", check, Component.NVLINK)) is not None:
        yield none
        return
    values = read["all_reduce"].values
    yield from summed(check, values, limits.get("all_reduce_gb_s"), limits["small_message_share"])


def summed(check: str, values: Mapping[str, Any], floor: float | None, small: float) -> Iterator[CheckResult]:
    """Judge a sum over many: right on every rank, and fast enough at its largest size.

    ``values``: ``wrong`` (ranks), ``gb_s`` (bus bandwidth by message size). 256 MB reads lower than 16 GB: below 8 GB
    only the part ``small`` of the floor is asked.
    """
    wrong = [str(rank) for rank in values.get("wrong", ())]
    if wrong:
        yield _corrupt(check, ", ".join(wrong), "a sum over all came out wrong", float(len(wrong)))
        return
    speeds = {int(size): float(speed) for size, speed in values["gb_s"].items()}
    largest = max(speeds)
    least = None if floor is None else floor * (1.0 if largest >= 8 << 30 else small)
    text = f"all-reduce of {largest / (1 << 20):,.0f} MiB at {speeds[largest]:,.1f} GB/s"
    more: dict[str, Any] = {"value": speeds[largest], "threshold": least, "unit": "GB/s"}
    if least is not None and speeds[largest] < least:
        step = "run it again; then look at NVLinks, NVSwitches and, over nodes, at each edge"
        yield failed(check, text, step, Component.NVLINK, Remedy.GPU_RESET, Retest.T3, **more)
    else:
        yield passed(check, text, **more)


def _burn(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    check = "compute.burn"
    if (none := _known(read, "burn", check, Component.GPU)) is not None:
        yield none
        return
    wrong = _numbers(read["burn"].values["miscompares"])
    rounds = _numbers(read["burn"].values["rounds"])
    for device, count in wrong.items():
        if count:
            yield _corrupt(
                check, device, f"{count:.0f} of {rounds[device]:.0f} results under load differ", count
            )
    if not any(wrong.values()):
        yield passed(check, f"{min(rounds.values(), default=0):.0f} rounds under load, each result the same")


def _under_load(read: Outcomes, limits: Thresholds) -> Iterator[CheckResult]:
    if (none := _known(read, LOAD, load.NAME, Component.GPU)) is not None:
        yield none
        return
    yield from load.judged(read[LOAD].values["gpus"], limits)


def _check(name: str, number: int, title: str, passes: str, judge: Any, component: Component) -> Check:
    return Check(name=name, number=number, title=title, passes=passes, judge=judge, component=component)


PROBE = Probe(
    name="compute",
    collect=collect,
    deadline_s=FULL_S + 40,
    checks=(
        _check(
            "compute.copies",
            40,
            "copies to and from the host",
            "copy_gb_s on every GPU, all at once",
            _copies,
            Component.GPU,
        ),
        _check(
            "compute.peers",
            41,
            "copies between GPUs",
            "peer_gb_s, and peer_share_fail of the median, for each pair",
            _peers,
            Component.NVLINK,
        ),
        _check(
            "compute.gemm",
            42,
            "products of matrices (bf16)",
            "gemm_tflops on every GPU, and gemm_fleet_share of the median of other nodes of its pool and kind; within "
            "gemm_spread_warn of each other (else a warning)",
            _gemm,
            Component.GPU,
        ),
        _check(
            "compute.memory",
            43,
            "patterns in memory, and its speed",
            "no word differs; memory_gb_s",
            _memory,
            Component.GPU_MEMORY,
        ),
        _check(
            "compute.checksum",
            44,
            "silent corruption",
            "one product is the same to the bit, three times and on all GPUs",
            _checksum,
            Component.GPU,
        ),
        _check(
            "compute.all_reduce",
            45,
            "all-reduce within the node",
            "right on every rank; all_reduce_gb_s, below 8 GB small_message_share of it",
            _all_reduce,
            Component.NVLINK,
        ),
        _check(
            "compute.burn",
            47,
            "burn-in",
            "five minutes of one product on all GPUs, every result the same",
            _burn,
            Component.GPU,
        ),
        _check(
            load.NAME,
            47,
            "GPUs at work",
            "margin_c_least to the slowdown, full PCIe generation, not slowed down, no new error",
            _under_load,
            Component.GPU,
        ),
    ),
)
