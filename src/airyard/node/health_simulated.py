"""Faults that are made up for simulated nodes, for tests and for trying out: a file of lines, judged as real ones are.

Owns: the file, and which nodes it may concern. Must not know: what a line or reading means.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airyard.checks.kernel_follow import LineFindings
from airyard.core.health.kernel_watch import KernelWatch
from airyard.core.health.sightings import Sighting
from airyard.node.health_settings import HealthSettings

if TYPE_CHECKING:
    from airyard.checks.gpu_watch import GpuWatch
    from airyard.checks.nvml import Gpu

FAULT_FILE = "simulated-faults.jsonl"
_MOST_BYTES = 1 << 20


class SimulatedFaults:
    """One fault a line; what is none is left out. Nothing in it can concern a node that is not simulated.

    ``{"node": "sim-8xh100-0", "device": 3, "kernel": "NVRM: Xid (PCI:0000:14:00): 79, ..."}`` is what its kernel says.
    ``{"node": "sim-8xh100-0", "device": 3, "nvml": {"recovery_action": 2}}`` is how its GPU reads from now on, by the
    names of ``checks/nvml.py``.
    """

    def __init__(self, path: Path, after: int) -> None:
        self._path = path
        self.position = after
        """How much of the file was read."""
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._kernels: dict[str, tuple[LineFindings, KernelWatch]] = {}
        self._gpus: dict[str, _SimulatedGpus] = {}
        self._number = 0

    def nodes(self, simulated: Mapping[str, Sequence[str]]) -> None:
        """Say which nodes are simulated, with the names of their devices. Any thread."""
        self._nodes = {name: tuple(devices) for name, devices in simulated.items()}

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.kernel_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``."""
        if not self._nodes:
            return []
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self.position:
                    self.position = 0  # another file
                file.seek(self.position)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self.position += whole
        found: list[Sighting] = []
        for line in data[:whole].splitlines():
            try:
                found += self._fault(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):
                continue
        return found

    def _fault(self, said: Mapping[str, Any]) -> list[Sighting]:
        node = str(said["node"])
        devices = self._nodes[node]
        given = said.get("device")
        device = int(given) if given is not None else None
        if "nvml" in said:
            gpus = self._gpus.setdefault(node, _SimulatedGpus(devices))
            found = gpus.changed(int(said["device"]), said["nvml"])
        else:
            found = self._said(node, str(said["kernel"]))
        uuid = devices[device] if device is not None and 0 <= device < len(devices) else ""
        return [
            replace(one, node=node, device=device, device_uuid=uuid, mark="", at_ms=None) for one in found
        ]

    def _said(self, node: str, text: str) -> list[Sighting]:
        lines, watch = self._kernels.setdefault(node, (LineFindings(node), KernelWatch()))
        self._number += 1
        finding, _ = lines.take(text.encode(), self._number)
        now_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        return watch.judge([finding], now_ms) if finding is not None else []


class _SimulatedGpus:
    """The GPUs of one simulated node: in good health until the file says otherwise."""

    def __init__(self, devices: Sequence[str]) -> None:
        # Here, because an agent needs all this only where there are GPUs, or somebody makes faults up.
        from airyard.checks.gpu_watch import GpuWatch
        from airyard.checks.nvml import Gpu
        from airyard.checks.thresholds import limits, packaged

        self._watch: GpuWatch = GpuWatch(limits(packaged(), ""))
        self._gpus: list[Gpu] = [
            Gpu(
                index=index,
                uuid=uuid,
                name="simulated",
                corrected=0,
                uncorrected=0,
                remapped_uncorrected=0,
                remap_pending=False,
                remap_failure=False,
                recovery_action=0,
                pcie_width=16,
                pcie_width_max=16,
                links=(True,) * 4,
            )
            for index, uuid in enumerate(devices)
        ]
        self._read()

    def changed(self, device: int, readings: Mapping[str, Any]) -> list[Sighting]:
        """Change what one GPU reads as; two looks, because some rules want to see it twice."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in readings.items()
        }
        self._gpus[device] = replace(self._gpus[device], **given)
        return [*self._read(), *self._read()]

    def _read(self) -> list[Sighting]:
        from airyard.checks.nvml import Gpus

        return self._watch.read(Gpus(gpus=tuple(self._gpus)))
