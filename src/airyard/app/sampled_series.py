"""What machines sampled, in Prometheus's manner: base units, ``_total`` for what only grows, a label for each reason.

Owns: names, units and help of these series. Must not know: the text form, where samples come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_GPU = re.compile(r"gpu_(\d+)_(.+)")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_]")
_SAMPLED = "As sampled for MLflow, while a run is on the node."
REASONS = {
    0x001: "idle",
    0x002: "application_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}
"""NVML's bits of why a clock is not at its highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How a sampled value is shown."""

    name: str
    factor: float = 1.0
    about: str = _SAMPLED


@dataclass(slots=True, kw_only=True)
class Family:
    """One metric with its series."""

    kind: str
    about: str
    series: list[tuple[Mapping[str, str], float]] = field(default_factory=list)


_SHOWN = {
    "utilization_percentage": Shown(name="utilization_ratio", factor=0.01),
    "memory_utilization_percentage": Shown(name="memory_utilization_ratio", factor=0.01),
    "power_usage_watts": Shown(name="power_watts"),
    "power_limit_watts": Shown(name="power_limit_watts", about="The limit that is in force."),
    "slowdown_margin_celsius": Shown(
        name="slowdown_margin_celsius", about="How much hotter it may become before clocks are lowered."
    ),
    "ecc_uncorrected_errors": Shown(name="ecc_uncorrected_total", about="Since the last reset."),
    "ecc_corrected_errors": Shown(name="ecc_corrected_total", about="Since the last reset."),
    "ecc_lifetime_uncorrected_errors": Shown(
        name="ecc_lifetime_uncorrected_total", about="Since it was made."
    ),
    "ecc_lifetime_corrected_errors": Shown(name="ecc_lifetime_corrected_total", about="Since it was made."),
    "remapped_rows_pending": Shown(name="remapped_rows_pending", about="1: a row waits for a reset."),
    "remapped_rows_failure": Shown(name="remapped_rows_failure", about="1: a row could not be replaced."),
    "pcie_replays": Shown(name="pcie_replays_total", about="Packets that the PCIe link repeated."),
    "pcie_transmit_megabytes_per_second": Shown(
        name="pcie_transmit_bytes_per_second", factor=1e6, about="From the GPU to the machine."
    ),
    "pcie_receive_megabytes_per_second": Shown(
        name="pcie_receive_bytes_per_second", factor=1e6, about="From the machine to the GPU."
    ),
    "nvlink_errors": Shown(name="nvlink_errors_total", about="Of all its links: repeats and recoveries."),
}


def families(samples: Iterable[tuple[str, str, float]]) -> dict[str, Family]:
    """Return the metrics by name, of (node, MLflow's name, value)."""
    found: dict[str, Family] = {}
    for node, name, value in samples:
        for title, about, labels, shown in _series(node, name, value):
            kind = "counter" if title.endswith("_total") else "gauge"
            found.setdefault(title, Family(kind=kind, about=about)).series.append((labels, shown))
    return found


def _series(node: str, name: str, value: float) -> Iterator[tuple[str, str, Mapping[str, str], float]]:
    gpu = _GPU.fullmatch(name)
    if gpu is None:
        yield _NO_NAME.sub("_", f"airyard_node_{name}"), _SAMPLED, {"node": node}, value
        return
    labels = {"node": node, "gpu": gpu[1]}
    if gpu[2] == "clock_event_reasons" and math.isfinite(value):
        about = "1: why the clock is not at its highest; idle and sw_power_cap are usual."
        for bit, reason in REASONS.items():
            yield (
                "airyard_gpu_clock_event",
                about,
                {**labels, "reason": reason},
                float(bool(int(value) & bit)),
            )
        return
    shown = _SHOWN.get(gpu[2], Shown(name=gpu[2]))
    yield _NO_NAME.sub("_", f"airyard_gpu_{shown.name}"), shown.about, labels, value * shown.factor
