"""Measures the machine for the attempts on it, by MLflow's own metric names.

Owns: which values are taken and how rates become totals since an attempt's first sample.
Must not know: the server, MLflow's API, attempts beyond their key, node and devices.
Source: mlflow/system_metrics/metrics/ (names and units: megabytes are 10^6 bytes).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airyard.node.inventory import Nvml

EVERY_S = 10.0
RARE_EVERY = 3
"""Of so many samples of an attempt one has what seldom changes; the server forgets a value after a minute."""
_MEGA = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """An attempt to be measured; ``devices`` are real GPU indices (none for simulated nodes and CPU slots)."""

    key: str
    node: str
    devices: tuple[int, ...]


class Sampler:
    """Takes one sample of the machine for all its attempts."""

    def __init__(self, disk_folder: Path, nvml: Nvml | None) -> None:
        self._disk_folder = disk_folder
        self._nvml = nvml
        self._network_start: dict[str, tuple[int, int]] = {}
        self._taken: dict[str, int] = {}
        psutil.cpu_percent(None)  # the first call has no interval to speak of

    def sample(self, attempts: list[Sampled]) -> list[dict[str, Any]]:
        """Return the ``samples`` entries, one an attempt. Cost: a few ms, and a few a GPU."""
        if not attempts:
            self._network_start.clear()
            self._taken.clear()
            return []
        machine = self._machine()
        network = psutil.net_io_counters()
        received, sent = (network.bytes_recv, network.bytes_sent) if network else (0, 0)
        now_ms = time.time_ns() // 1_000_000
        live = {attempt.key for attempt in attempts}
        self._network_start = {key: at for key, at in self._network_start.items() if key in live}
        self._taken = {key: self._taken.get(key, -1) + 1 for key in live}
        samples = []
        for attempt in attempts:
            first = self._network_start.setdefault(attempt.key, (received, sent))
            values = {
                **machine,
                "network_receive_megabytes": (received - first[0]) / _MEGA,
                "network_transmit_megabytes": (sent - first[1]) / _MEGA,
                **self._gpus(attempt),
            }
            samples.append({"key": attempt.key, "node": attempt.node, "time_ms": now_ms, "values": values})
        return samples

    def _machine(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(str(self._disk_folder))
        return {
            "cpu_utilization_percentage": psutil.cpu_percent(None),
            "system_memory_usage_megabytes": memory.used / _MEGA,
            "system_memory_usage_percentage": round(memory.used / memory.total * 100, 1),
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / _MEGA,
            "disk_available_megabytes": disk.free / _MEGA,
        }

    def _gpus(self, attempt: Sampled) -> dict[str, float]:
        if self._nvml is None:
            return {}
        rare = self._taken[attempt.key] % RARE_EVERY == 0
        return {
            f"gpu_{index}_{name}": value
            for index in attempt.devices
            for name, value in self._nvml.values(index, rare=rare).items()
        }
