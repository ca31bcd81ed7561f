"""The rules over a GPU's caches, the speed of its links, its power limit, and what it takes when nothing runs.

Owns: what each of these readings has to be. Must not know: how it was read (``nvml.py``). They belong to the probe of
``gpu_checks.py``, which says how devices are judged one by one.
"""

from __future__ import annotations

from airyard.checks.contract import Check, Thresholds, failed, warned
from airyard.checks.gpu_checks import each_gpu, fine, named
from airyard.checks.nvml import Gpu
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest


def _sram(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    if gpu.sram_corrected is None and gpu.sram_uncorrected is None:
        return None
    if gpu.sram_worn:
        return failed(
            "gpu.sram",
            f"{named(gpu)}: the driver counts more failures of its caches than a GPU may have",
            "have the GPU replaced",
            Component.GPU_MEMORY,
            Remedy.REPLACE,
            Retest.T3,
            device=gpu.index,
            value=gpu.sram_uncorrected,
        )
    most = limits["sram_corrected_fail"]
    for words, value, threshold in (
        ("that ECC could not correct", gpu.sram_uncorrected or 0, 0.0),
        ("that ECC corrected", gpu.sram_corrected or 0, most),
    ):
        if value > threshold:
            return failed(
                "gpu.sram",
                f"{named(gpu)}: {value:,} errors of its caches {words}, since the last reset",
                "reset the GPU, and burn it in before it is used",
                Component.GPU_MEMORY,
                Remedy.GPU_RESET,
                Retest.T3,
                device=gpu.index,
                value=value,
                threshold=threshold,
            )
    return fine("gpu.sram")


def _link_speed(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    wanted = limits.get("nvlink_mb_s")
    if gpu.mig or wanted is None or not gpu.link_mb_s:
        return None
    slowest, least = min(gpu.link_mb_s), wanted * limits["nvlink_share_fail"]
    if slowest >= least:
        return fine("gpu.nvlink_speed")
    return failed(
        "gpu.nvlink_speed",
        f"{named(gpu)}: an NVLink runs at {slowest:,} MB/s, not {wanted:,.0f}",
        "reset all GPUs of the machine; if it stays so, have it looked at",
        Component.NVLINK,
        Remedy.GPU_RESET,
        Retest.T3,
        device=gpu.index,
        value=slowest,
        threshold=least,
        unit="MB/s",
    )


def _power_limit(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    limit, wanted = gpu.power_limit_w, limits["power_limit_w"]
    usual = wanted or gpu.power_default_w
    if limit is None or not usual:
        return None
    if abs(limit - usual) <= limits["power_limit_share"] * usual:
        return fine("gpu.power_limit")
    whose = "the limit of this site" if wanted else "its own limit"
    text = f"{named(gpu)} may take {limit:.0f} W; {whose} is {usual:.0f} W"
    step = f"`nvidia-smi -i {gpu.index} -pl {usual:.0f}`"
    if wanted:
        return failed(
            "gpu.power_limit",
            text,
            step,
            Component.GPU,
            device=gpu.index,
            value=limit,
            threshold=usual,
            unit="W",
        )
    return warned(
        "gpu.power_limit",
        text,
        f"{step}, unless the machine is meant to be slower",
        device=gpu.index,
        value=limit,
        threshold=usual,
        unit="W",
    )


def _idle_power(gpu: Gpu, limits: Thresholds) -> CheckResult | None:
    least, most = limits.get("idle_power_w_least"), limits.get("idle_power_w_most")
    if gpu.power_w is None or least is None or most is None or gpu.pids:
        return None
    if least <= gpu.power_w <= most:
        return fine("gpu.idle_power")
    return warned(
        "gpu.idle_power",
        f"{named(gpu)} takes {gpu.power_w:.0f} W with nothing running; {least:.0f} to {most:.0f} W are usual",
        "look at its power supply, and at what the sensor says of its neighbours",
        device=gpu.index,
        value=gpu.power_w,
        threshold=least if gpu.power_w < least else most,
        unit="W",
    )


CHECKS = (
    Check(
        name="gpu.power_limit",
        number=15,
        title="power limit",
        passes="power_limit_w where it is set; else the board's own (else a warning)",
        judge=each_gpu("gpu.power_limit", _power_limit),
        component=Component.GPU,
    ),
    Check(
        name="gpu.sram",
        number=7,
        title="errors of the caches",
        passes="none uncorrected, at most sram_corrected_fail corrected since the last reset",
        judge=each_gpu("gpu.sram", _sram),
        component=Component.GPU_MEMORY,
    ),
    Check(
        name="gpu.nvlink_speed",
        number=18,
        title="speed of NVLinks",
        passes="nvlink_share_fail of nvlink_mb_s on every active link",
        judge=each_gpu("gpu.nvlink_speed", _link_speed),
        component=Component.NVLINK,
    ),
    Check(
        name="gpu.idle_power",
        number=15,
        title="power at idle",
        passes="idle_power_w_least to idle_power_w_most, on boards that have these (else a warning)",
        judge=each_gpu("gpu.idle_power", _idle_power),
        component=Component.GPU,
    ),
)
