"""Reads GPUs while tests make them work, and judges what shows only then: heat, brakes, the link's speed, new errors.

Owns: the reading once a second through NVML, and its rules. Must not know: the tests (``compute.py``), runs.

A PCIe link is slow when nothing is sent, and a board is cool when nothing runs: at rest neither says anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from airyard.checks.contract import Thresholds, failed, passed, skipped
from airyard.checks.nvml import LOST
from airyard.core.health.clock_reasons import HARD, is_brake_alone
from airyard.core.health.facts import CheckResult, Component, Remedy, Retest

NAME = "compute.load"
_EVERY_S = 1.0
_AT_WORK = 50
"""Per cent of the time that kernels run: from here on a reading is one under load."""
_STEADY = 3
"""Readings under load after which a link has come up to its speed."""
_SLOWED_BY = {0x008: "hardware slowdown", 0x040: "hardware thermal", 0x080: "power brake"}
_SHARE = 0.1
"""So much of the readings under load have to be slowed down: one may be the ramp of a power limit."""
_LINK_COUNTERS = {214: "failed NVLink recoveries", 215: "NVLink recoveries"}


@dataclass(slots=True, kw_only=True)
class Worked:
    """What one GPU was like under load. None: it does not tell."""

    readings: int = 0
    slowed: int = 0
    lost: bool = False
    """It does not answer any more."""
    reasons: int = 0
    """All hard clock reasons that were seen, as a mask."""
    margin_c: int | None = None
    """The least distance to the temperature at which it slows down."""
    generation: int | None = None
    """The fastest PCIe generation that was seen."""
    generation_max: int | None = None
    """The fastest that board and machine are capable of together."""
    grown: dict[str, int] = field(default_factory=dict)
    """By how much each counter of errors grew from the first reading to the last."""


class Watch:
    """Reads all GPUs in a thread until it is left; ``seen`` has those that worked, by index.

    Its process is one that may be given up: a call that hangs keeps the thread, which nobody waits for.
    """

    def __init__(self, *, every_s: float = _EVERY_S) -> None:
        self.seen: dict[int, Worked] = {}
        self.problem = ""
        self._every_s = every_s
        self._first: dict[int, dict[str, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(2 * self._every_s + 1)

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            self.problem = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
            ]
        except pynvml.NVMLError as error:
            self.problem = str(error)
            return
        while True:
            for index, handle in enumerate(handles):
                self._read(pynvml, index, handle)
            if self._over.wait(self._every_s):
                return

    def _read(self, nvml: Any, index: int, handle: Any) -> None:
        kept = self.seen.get(index, Worked())

        def ask(call: str, *arguments: Any) -> Any:
            try:
                return getattr(nvml, call)(*arguments)
            except nvml.NVMLError as error:
                kept.lost |= int(error.value) == LOST
            except AttributeError:  # an older binding
                pass
            return None

        counters = _counters(ask, handle)
        first = self._first.setdefault(index, counters)
        rates = ask("nvmlDeviceGetUtilizationRates", handle)
        if kept.lost:
            self.seen[index] = kept
        if rates is not None and rates.gpu >= _AT_WORK:
            self.seen[index] = kept
            _take(kept, ask, handle)
        # A counter that fell was reset: that says nothing.
        kept.grown = {name: counters[name] - first[name] for name in counters.keys() & first.keys()
                      if counters[name] > first[name]}  # fmt: skip


def _take(kept: Worked, ask: Any, handle: Any) -> None:
    kept.readings += 1
    reasons = int(ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0) & HARD
    kept.reasons |= reasons
    kept.slowed += bool(reasons)
    margin = ask("nvmlDeviceGetMarginTemperature", handle)
    if margin is not None:
        kept.margin_c = margin if kept.margin_c is None else min(kept.margin_c, margin)
    generation = ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)
    if generation is not None:
        kept.generation = max(generation, kept.generation or 0)
    kept.generation_max = ask("nvmlDeviceGetMaxPcieLinkGeneration", handle)


def _counters(ask: Any, handle: Any) -> dict[str, int]:
    found = {
        "corrected memory errors": ask("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
        "uncorrected memory errors": ask("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
        "repeated PCIe transfers": ask("nvmlDeviceGetPcieReplayCounter", handle),
    }
    values = ask("nvmlDeviceGetFieldValues", handle, list(_LINK_COUNTERS)) or ()
    for (_, name), value in zip(_LINK_COUNTERS.items(), values, strict=False):
        if value.nvmlReturn == 0:
            found[name] = int(value.value.ullVal)
    return {name: int(value) for name, value in found.items() if value is not None}


def judged(gpus: Mapping[int, Worked], limits: Thresholds) -> Iterator[CheckResult]:
    """Judge each GPU that worked; one word for all that pass."""
    fine = 0
    for index, worked in sorted(gpus.items()):
        found = list(_one(index, worked, limits))
        fine += not found
        yield from found
    if fine:
        yield passed(NAME, f"{fine} of {len(gpus)} GPUs under load", value=fine)
    elif not gpus:
        yield skipped(NAME, "no GPU was seen at work")


def _one(index: int, worked: Worked, limits: Thresholds) -> Iterator[CheckResult]:
    if worked.lost:
        yield failed(
            NAME,
            f"GPU {index} was lost under load: it does not answer any more",
            "reboot the machine; the second time, have it replaced",
            Component.GPU,
            Remedy.REBOOT,
            Retest.T3,
            device=index,
        )
        return
    yield from _heat(index, worked, limits)
    yield from _link(index, worked)
    yield from _errors(index, worked, limits)


def _heat(index: int, worked: Worked, limits: Thresholds) -> Iterator[CheckResult]:
    margin, least = worked.margin_c, limits["margin_c_least"]
    if worked.slowed > _SHARE * worked.readings:
        words = ", ".join(words for bit, words in _SLOWED_BY.items() if worked.reasons & bit)
        yield failed(
            NAME,
            f"GPU {index} was slowed down in {worked.slowed} of {worked.readings} readings under load: {words}",
            "look at its cooling and power; a power brake on several machines of a rack is the rack's",
            Component.FACILITY if is_brake_alone(worked.reasons) else Component.GPU,
            Remedy.NONE,
            Retest.T3,
            device=index,
            value=worked.slowed / worked.readings * 100,
            threshold=_SHARE * 100,
            unit="%",
        )
    elif margin is not None and margin < least:
        yield failed(
            NAME,
            f"GPU {index} came within {margin} °C of the temperature at which it slows down",
            "look at its cooling: dust, fans, the water's flow, the air of its row",
            Component.GPU,
            Remedy.NONE,
            Retest.T3,
            device=index,
            value=margin,
            threshold=least,
            unit="°C",
        )


def _link(index: int, worked: Worked) -> Iterator[CheckResult]:
    seen, fastest = worked.generation, worked.generation_max
    if worked.readings >= _STEADY and seen and fastest and seen < fastest:
        yield failed(
            NAME,
            f"GPU {index}: its PCIe link ran at generation {seen} under load, not {fastest}",
            "reboot the machine; if it stays so, reseat the board or look at the riser",
            Component.GPU,
            Remedy.REBOOT,
            Retest.T2,
            device=index,
            value=seen,
            threshold=fastest,
        )


def _errors(index: int, worked: Worked, limits: Thresholds) -> Iterator[CheckResult]:
    harmless = {
        "repeated PCIe transfers": limits["pcie_replays_fail"],
        "corrected memory errors": limits["load_corrected_fail"],
    }
    for name, count in sorted(worked.grown.items()):
        if count < harmless.get(name, 0):
            continue
        component = Component.NVLINK if "NVLink" in name else Component.GPU
        yield failed(
            NAME,
            f"GPU {index}: {count:,} {name} while it was tested",
            "reset the GPU and burn it in again; if they come again, have it replaced",
            Component.GPU_MEMORY if "memory" in name else component,
            Remedy.REBOOT if "PCIe" in name else Remedy.GPU_RESET,
            Retest.T3,
            device=index,
            value=count,
            threshold=harmless.get(name, 0),
        )
