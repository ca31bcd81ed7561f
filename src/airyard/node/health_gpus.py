"""What the watch learns from NVML: readings and counters now and then, load more often while a run has a GPU.

Owns: what is asked when, the generation's limits, a driver that does not answer. Must not know: what a reading means.
"""

from __future__ import annotations

import time

from airyard.checks.gpu_watch import GpuWatch, silent
from airyard.checks.nvml import Gpus
from airyard.checks.nvml_client import NvmlClient, NvmlRefused, NvmlSilent
from airyard.checks.thresholds import generation_of
from airyard.core.health.sightings import Sighting
from airyard.core.triage.kernel_lines import pci_address
from airyard.node.health_kernel import Places
from airyard.node.health_limits import MachineLimits
from airyard.node.health_settings import HealthSettings

ANSWER_S = 10.0


class GpuRules:
    """The rules of this machine's GPUs, once it is known of which generation they are."""

    def __init__(self, limits: MachineLimits) -> None:
        self._limits = limits
        self._watch: GpuWatch | None = None
        self._generation = ""

    def of(self, gpus: Gpus | None = None) -> GpuWatch:
        """Return them; without GPUs read before, those of no generation."""
        if self._watch is None:
            name = next((gpu.name for gpu in gpus.gpus if gpu.name), "") if gpus is not None else ""
            self._generation = generation_of(name)
            watch = GpuWatch(self._limits.of(self._generation))
            if not name:
                return watch
            self._watch = watch
        self._watch.limits = self._limits.of(self._generation)
        return self._watch


class GpuReadings:
    """Memory errors, links, PCIe, what the driver asks for."""

    def __init__(self, client: NvmlClient, rules: GpuRules, places: Places) -> None:
        self._client = client
        self._rules = rules
        self._places = places

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.counters_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``. Blocks for seconds where the driver does not answer."""
        try:
            gpus = self._client.readings(wait_s=ANSWER_S)
            for gpu in gpus.gpus:
                if gpu.pci and gpu.uuid:
                    self._places.note(pci_address(gpu.pci), gpu.index, gpu.uuid)
            watch = self._rules.of(gpus)
            found = watch.read(gpus)
            if gpus.error is None:
                found += watch.count(self._client.counts(wait_s=ANSWER_S), _now_ms())
            return found
        except NvmlSilent as error:
            return list(silent(self._client.hung, str(error)))
        except NvmlRefused:
            return []  # the next reading says why


class GpuLoads:
    """Clocks, heat and power."""

    def __init__(self, client: NvmlClient, rules: GpuRules) -> None:
        self._client = client
        self._rules = rules
        self.busy = False
        """Whether a run has a GPU; set from outside."""

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.gpus_s if self.busy else settings.gpus_idle_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``."""
        try:
            return self._rules.of().work(self._client.loads(wait_s=ANSWER_S), _now_ms())
        except (NvmlSilent, NvmlRefused):
            return []  # the readings tell of it


def _now_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
