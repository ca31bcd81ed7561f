"""The values of GPUs that are kept as metrics: by MLflow's names where it has one, else by names in its manner.

Owns: which values there are, how often each is worth a call, rates of counters. Must not know: what a value means, who
keeps it. Calls may hang: it runs in the process of ``nvml_child.py``. What a device or driver does not tell is left
out: a 0 is always one that was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import ModuleType

from airyard.checks.nvml import link_states
from airyard.checks.nvml_load import LINK_ERRORS, Asker, summed
from airyard.core.health import clock_reasons

_MEMORY_TEMPERATURE, _PCIE_SENT, _PCIE_RECEIVED = 82, 197, 198
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_SLOWDOWN = 1
"""The threshold of heat at which clocks are lowered."""
_SENT, _RECEIVED = 0, 1
"""The directions of NVML's own measurement of PCIe: as the device sees them."""
_MEGA = 1e6
_LONGEST_S = 120.0
"""Counters further apart say nothing of now."""


class GpuValues:
    """The devices of one machine; remembers the counters of which it tells rates."""

    def __init__(self, nvml: ModuleType, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._clock = clock
        self._bytes: dict[tuple[int, str], tuple[float, int]] = {}

    def of(self, index: int, *, rare: bool) -> dict[str, float]:
        """Return the metrics of one device, without ``gpu_<i>_``.

        ``rare``: also those that seldom change, or cost more: 10 calls and one a link, and where the driver does not
        count what passes PCIe, 40 ms of waiting. Without it: 11 calls.
        """
        ask = Asker(self._nvml, index)
        if ask.handle is None:
            return {}
        fields = ask.fields(_MEMORY_TEMPERATURE, _PCIE_SENT, _PCIE_RECEIVED)
        told = dict(_present(ask, fields))
        counted = {_PCIE_SENT: "pcie_transmit", _PCIE_RECEIVED: "pcie_receive"}
        for number, name in counted.items():
            if number in fields:
                told.update(self._rate(index, name, fields[number]))
        if rare:
            told.update(_seldom(ask, self._nvml))
            if not fields.keys() & counted.keys():
                told.update(_measured(ask))
        return told

    def _rate(self, index: int, name: str, now_bytes: int) -> Iterator[tuple[str, float]]:
        """Yield the rate since the look before. A first look, a counter that began anew and a long while tell none."""
        now_s = self._clock()
        before = self._bytes.get((index, name))
        self._bytes[index, name] = (now_s, now_bytes)
        if before is None or now_bytes < before[1] or not 0 < now_s - before[0] < _LONGEST_S:
            return
        yield f"{name}_megabytes_per_second", (now_bytes - before[1]) / _MEGA / (now_s - before[0])


def _present(ask: Asker, fields: dict[int, int]) -> Iterator[tuple[str, float]]:
    """Yield what changes from second to second."""
    if (memory := ask("nvmlDeviceGetMemoryInfo")) is not None:
        yield "memory_usage_percentage", round(memory.used / memory.total * 100, 1)
        yield "memory_usage_megabytes", memory.used / _MEGA
    if (rates := ask("nvmlDeviceGetUtilizationRates")) is not None:
        yield "utilization_percentage", float(rates.gpu)
        yield "memory_utilization_percentage", float(rates.memory)
    power_mw, limit_mw = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    if power_mw is not None:
        yield "power_usage_watts", power_mw / 1000
        if limit_mw:
            yield "power_usage_percentage", round(power_mw / limit_mw * 100, 1)
    if limit_mw:
        yield "power_limit_watts", limit_mw / 1000
    temperature = ask("nvmlDeviceGetTemperature", 0)
    if temperature is not None:
        yield "temperature_celsius", float(temperature)
    if fields.get(_MEMORY_TEMPERATURE):  # boards without the sensor say 0 or nothing
        yield "memory_temperature_celsius", float(fields[_MEMORY_TEMPERATURE])
    margin = ask("nvmlDeviceGetMarginTemperature")
    if margin is None and temperature is not None:  # before the driver told it by itself
        slowdown = ask("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN)
        margin = slowdown - temperature if slowdown else None
    if margin is not None:
        yield "slowdown_margin_celsius", float(margin)
    for clock, name in ((_SM_CLOCK, "sm"), (_MEMORY_CLOCK, "memory")):
        if (megahertz := ask("nvmlDeviceGetClockInfo", clock)) is not None:
            yield f"{name}_clock_megahertz", float(megahertz)
    if (reasons := ask("nvmlDeviceGetCurrentClocksEventReasons")) is not None:
        yield "clock_event_reasons", float(reasons)
        yield "throttled_by_hardware", float(bool(reasons & clock_reasons.HARD))
        yield "throttled_by_heat", float(bool(reasons & clock_reasons.HEAT))


def _seldom(ask: Asker, nvml: ModuleType) -> Iterator[tuple[str, float]]:
    """Yield what hardly ever changes, or grows slowly."""
    for counter, which in ((0, ""), (1, "lifetime_")):
        for error, name in ((0, "corrected"), (1, "uncorrected")):
            if (count := ask("nvmlDeviceGetTotalEccErrors", error, counter)) is not None:
                yield f"ecc_{which}{name}_errors", float(count)
    if (rows := ask("nvmlDeviceGetRemappedRows")) is not None:
        for name, count in zip(("correctable", "uncorrectable", "pending", "failure"), rows, strict=True):
            yield f"remapped_rows_{name}", float(count)
    plain = {
        "pcie_link_generation": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_link_width": ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter"),
        "nvlink_errors": summed(*ask.fields(*LINK_ERRORS).values()),
    }
    yield from ((name, float(value)) for name, value in plain.items() if value is not None)
    if (links := link_states(nvml, ask.handle, {})) is not None:
        yield "nvlink_links", float(len(links))
        yield "nvlink_links_up", float(sum(links))
    if (processes := ask("nvmlDeviceGetComputeRunningProcesses")) is not None:
        yield "compute_processes", float(len(processes))


def _measured(ask: Asker) -> Iterator[tuple[str, float]]:
    """Yield what passes PCIe as the driver measures it: over 20 ms each, for which the call waits."""
    for direction, name in ((_SENT, "pcie_transmit"), (_RECEIVED, "pcie_receive")):
        if (kilobytes := ask("nvmlDeviceGetPcieThroughput", direction)) is not None:
            yield f"{name}_megabytes_per_second", kilobytes / 1000
