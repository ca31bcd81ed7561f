"""Reads what changes while a GPU works: clocks, heat, power, counters.

Owns: these calls to nvidia-ml-py. Must not know: what a reading means (``gpu_watch.py``). Calls may hang: it runs in
the process of ``nvml_child.py``. What a device or driver does not tell is None, or left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

REPLAYS = "replays"
_THERMAL_POLICY, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE = 75, 269, 270, 271
LINK_ERRORS = (52, 59, 208, 214, 215)
"""Replays and recoveries of older links; received errors, recoveries that failed, recoveries of newer ones."""
_SM_CLOCK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One device at work. Times are nanoseconds since the driver was loaded."""

    index: int
    utilization: int | None = None
    power_w: float | None = None
    limit_w: float | None = None
    clock_reasons: int | None = None
    clock_mhz: int | None = None
    temperature_c: int | None = None
    thermal_ns: int | None = None
    brake_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counters of one device that only grow, until they are reset."""

    index: int
    replays: int | None = None
    """Of its PCIe link."""
    link_errors: int | None = None
    """Of all its NVLinks."""


class Asker:
    """One device: asks, and gives None for what it does not tell."""

    def __init__(self, nvml: ModuleType, index: int) -> None:
        self._nvml = nvml
        self.handle = self("nvmlDeviceGetHandleByIndex", index, bare=True)

    def __call__(self, call: str, *arguments: Any, bare: bool = False) -> Any:
        """Return what a call says of the device (``bare``: of its arguments alone)."""
        if not bare and self.handle is None:
            return None
        try:
            return getattr(self._nvml, call)(*(arguments if bare else (self.handle, *arguments)))
        except self._nvml.NVMLError:
            return None

    def fields(self, *numbers: int) -> dict[int, int]:
        """Return the fields that are told."""
        found = self("nvmlDeviceGetFieldValues", list(numbers)) or []
        return {
            number: int(one.value.ullVal)
            for number, one in zip(numbers, found, strict=False)
            if one.nvmlReturn == 0
        }


def load(nvml: ModuleType, index: int) -> Load:
    """Read one device at work. Cost: six calls."""
    ask = Asker(nvml, index)
    rates, power, limit = (
        ask("nvmlDeviceGetUtilizationRates"),
        ask("nvmlDeviceGetPowerUsage"),
        ask("nvmlDeviceGetEnforcedPowerLimit"),
    )
    times = ask.fields(_THERMAL_POLICY, _SW_THERMAL, _HW_THERMAL, _POWER_BRAKE)
    heat = (times.get(_THERMAL_POLICY), summed(times.get(_SW_THERMAL), times.get(_HW_THERMAL)))
    return Load(
        index=index,
        utilization=int(rates.gpu) if rates is not None else None,
        power_w=power / 1000 if power is not None else None,
        limit_w=limit / 1000 if limit is not None else None,
        clock_reasons=ask("nvmlDeviceGetCurrentClocksEventReasons"),
        clock_mhz=ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
        temperature_c=ask("nvmlDeviceGetTemperature", 0),
        thermal_ns=max((one for one in heat if one is not None), default=None),
        brake_ns=times.get(_POWER_BRAKE),
    )


def summed(*values: int | None) -> int | None:
    """Return the sum of what was told; None when nothing was."""
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def counts(nvml: ModuleType, index: int) -> Counts:
    """Read the counters of one device. Cost: two calls."""
    ask = Asker(nvml, index)
    return Counts(
        index=index,
        replays=ask("nvmlDeviceGetPcieReplayCounter"),
        link_errors=summed(*ask.fields(*LINK_ERRORS).values()),
    )
