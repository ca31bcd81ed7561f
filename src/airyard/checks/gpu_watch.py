"""The rules over GPUs that are watched: what changed since they were read last, and what that says of the node.

Owns: changes of state, growth of counters, throttling over time. Must not know: how anything was read. What is right
at rest is judged by the rules of ``gpu_checks``: here it counts when it goes wrong. Pure: time is an argument.

What was wrong before the watch began is the preflight's matter, but for what only a remedy takes away. Counters that
fell were reset; one that leaps is not believed; what a device does not tell says nothing.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from airyard.checks import gpu_checks, nvml
from airyard.checks.contract import Thresholds
from airyard.checks.limit import with_layer
from airyard.checks.nvml import Gpu, Gpus
from airyard.checks.nvml_load import Counts, Load
from airyard.core.health import clock_reasons
from airyard.core.health.check_events import line_of
from airyard.core.health.facts import CheckResult, CheckStatus, Component, Remedy, Retest, Severity, Source
from airyard.core.health.sightings import Sighting

LEAP = 1 << 32
"""A counter that grows by so much between two looks was misread."""
_SW_POWER_CAP = 0x004
_WINDOW_MS = 60_000
_MINUTES = 10
_PEERS = 3
_LINK_WINDOWS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edge:
    """How a check of ``gpu_checks`` counts while it is watched.

    ``twice``: only when it is so at two looks. ``at_first``: also when it was so before the watch began.
    """

    severity: Severity
    twice: bool = False
    at_first: bool = False


_EDGES: dict[str, _Edge] = {
    "gpu.lost": _Edge(severity=Severity.CRITICAL, at_first=True),
    "gpu.recovery": _Edge(severity=Severity.CRITICAL, at_first=True),
    "gpu.rows": _Edge(severity=Severity.CRITICAL, at_first=True),
    "gpu.ecc_corrected": _Edge(severity=Severity.WARNING),
    "gpu.pcie_width": _Edge(severity=Severity.HIGH, twice=True),
    "gpu.nvlink": _Edge(severity=Severity.CRITICAL, twice=True),
    "gpu.fabric": _Edge(severity=Severity.CRITICAL, twice=True),
}
RULES: dict[str, tuple[str, str]] = {
    "gpu.lost": ("critical", "a call says that the GPU is lost"),
    "gpu.recovery": ("critical; high for a drain", "the driver asks for a reset or a reboot"),
    "gpu.rows": ("critical; warning while a reset will do", "a row of memory could not be replaced, or waits for it"),
    "gpu.ecc_uncorrected": ("critical", "uncorrected memory errors grew"),
    "gpu.ecc_corrected": ("warning", "more corrected errors than ecc_corrected_fail"),
    "gpu.pcie_width": ("high", "the PCIe link lost lanes, at two looks"),
    "gpu.nvlink": ("critical", "an NVLink went down, at two looks"),
    "gpu.fabric": ("critical", "the NVSwitch fabric was lost, at two looks"),
    "gpu.count": ("critical", "fewer GPUs answer than before, at two looks"),
    "gpu.pcie_replays": ("warning", "the PCIe link repeats more than pcie_replays_fail a second"),
    "gpu.nvlink_errors": ("high", "new NVLink errors in more than half of 30 looks"),
    "driver.mismatch": ("high", "the driver's library and its kernel module came apart"),
    "driver.away": ("high", "NVML does not open any more, at two looks"),
    "nvml.hang": ("high", "two processes in a row got no answer from NVML for 45 s each"),
    "gpu.throttled": ("warning, by effect", "slowed by heat or hardware in 10 % of a minute at work"),
    "gpu.throttled_long": ("high, by effect", "... in half of it, or in 6 minutes out of 10"),
    "gpu.slow_clock": ("high, by effect", "for two minutes the clock is below 0.85 of that of its peers at work"),
    "gpu.power_held": ("warning", "for a minute at work less than 0.8 of its power limit, and held by it"),
}  # fmt: skip
"""What each is, for people."""


@dataclass(slots=True)
class _Kept:
    """What is remembered of one device."""

    bad: dict[str, int] = field(default_factory=dict)
    """By check, how many looks in a row it was wrong."""
    well: set[str] = field(default_factory=set)
    """Checks that it has passed since the watch began."""
    counters: dict[str, int] = field(default_factory=dict)
    grown: dict[str, int] = field(default_factory=dict)
    """Growth that one look has shown, and the next one has to confirm."""
    link_looks: deque[bool] = field(default_factory=lambda: deque(maxlen=_LINK_WINDOWS))
    loads: deque[tuple[int, Load]] = field(default_factory=lambda: deque(maxlen=256))
    hard_minutes: deque[int] = field(default_factory=lambda: deque(maxlen=_MINUTES))
    slow_since_ms: int | None = None


class GpuWatch:
    """The GPUs of one machine over time."""

    def __init__(self, limits: Thresholds) -> None:
        self.limits = limits
        self._kept: dict[int, _Kept] = {}
        self._uuids: dict[int, str] = {}
        self._most = 0
        self._missing = 0
        self._away = 0
        self._counted_ms: int | None = None

    # --- readings

    def read(self, gpus: Gpus) -> list[Sighting]:
        """Judge a reading of all devices."""
        if gpus.error is not None:
            return self._not_open(gpus)
        self._away = 0
        found = list(self._fewer(gpus))
        for gpu in gpus.gpus:
            kept = self._kept.setdefault(gpu.index, _Kept())
            self._uuids[gpu.index] = gpu.uuid or self._uuids.get(gpu.index, "")
            found += self._edges(gpu, kept)
            if not (gpu.lost or gpu.mute):
                found += self._uncorrected(gpu, kept)
        return self._placed(found)

    def _placed(self, found: Iterable[Sighting]) -> list[Sighting]:
        """Name devices as they were known before they were lost."""
        return [
            replace(one, device_uuid=self._uuids.get(one.device, "")) if one.device is not None else one
            for one in found
        ]

    def _not_open(self, gpus: Gpus) -> list[Sighting]:
        if not self._most:
            return []  # nothing was here to be lost
        self._away += 1
        if gpus.error == nvml.MISMATCH:
            text = f"the driver's library and its kernel module are of two versions ({gpus.error_text})"
            return [_driver("driver.mismatch", text)] if self._away == 1 else []
        text = f"NVML does not open any more: {gpus.error_text} ({gpus.error})"
        return [_driver("driver.away", text)] if self._away == 2 else []

    def _fewer(self, gpus: Gpus) -> Iterator[Sighting]:
        count = len(gpus.gpus)
        self._missing = self._missing + 1 if count < self._most else 0
        if self._missing == 2:
            yield _sighting(
                "gpu.count",
                Severity.CRITICAL,
                f"{count} GPUs answer; there were {self._most}",
                value=count,
                remedy=Remedy.REBOOT,
                retest=Retest.T2,
            )
        self._most = max(self._most, count)

    def _edges(self, gpu: Gpu, kept: _Kept) -> Iterator[Sighting]:
        for check in gpu_checks.PROBE.checks:
            edge = _EDGES.get(check.name)
            if edge is None or ((gpu.lost or gpu.mute) and check.name not in ("gpu.lost", "gpu.recovery")):
                continue
            if check.name == "gpu.nvlink" and gpu.links is None:
                continue  # not told this time: at rest that would be a fault
            results = list(check.judge((Gpus(gpus=(gpu,)), None), self.limits))
            if any(one.status is CheckStatus.PASS for one in results):
                kept.well.add(check.name)
                kept.bad[check.name] = 0
            for result in results:
                if result.status is not CheckStatus.FAIL:
                    continue
                kept.bad[check.name] = kept.bad.get(check.name, 0) + 1
                known = edge.at_first or check.name in kept.well
                # An error that may mean anything, as while a driver starts, is seen twice before it means a lost GPU.
                twice = edge.twice or (check.name == "gpu.lost" and not gpu.said_lost)
                if known and kept.bad[check.name] == 1 + twice:
                    yield _of(gpu, result, edge.severity)

    def _uncorrected(self, gpu: Gpu, kept: _Kept) -> Iterator[Sighting]:
        """Report uncorrected errors that came: a growth that the next look shows, too."""
        more = _growth(kept.counters, "uncorrected", gpu.uncorrected)
        before = kept.grown.pop("uncorrected", 0)
        if more and not before:
            kept.grown["uncorrected"] = more
            kept.counters["uncorrected"] -= more  # not before it is confirmed
        elif more:
            yield _sighting(
                "gpu.ecc_uncorrected",
                Severity.CRITICAL,
                f"GPU {gpu.index}: {more:,} more memory errors that ECC could not correct",
                component=Component.GPU_MEMORY,
                gpu=gpu,
                value=more,
                remedy=Remedy.GPU_RESET,
                retest=Retest.T2,
                evidence=(f"uncorrected volatile errors: {gpu.uncorrected}",),
            )

    # --- counters

    def count(self, found: Sequence[Counts], now_ms: int) -> list[Sighting]:
        """Judge counters of links."""
        seconds = (now_ms - self._counted_ms) / 1000 if self._counted_ms is not None else 0.0
        self._counted_ms = now_ms
        told: list[Sighting] = []
        for one in found:
            kept = self._kept.setdefault(one.index, _Kept())
            more = _growth(kept.counters, "replays", one.replays)
            if seconds > 0 and more / seconds > self.limits["pcie_replays_fail"]:
                told.append(
                    _sighting(
                        "gpu.pcie_replays",
                        Severity.WARNING,
                        f"GPU {one.index}: its PCIe link repeated {more:,} packets in {seconds:.0f} s",
                        device=one.index,
                        value=more,
                    )
                )
            if one.link_errors is not None:
                kept.link_looks.append(_growth(kept.counters, "links", one.link_errors) > 0)
                bad = sum(kept.link_looks)
                if bad > _LINK_WINDOWS // 2:
                    kept.link_looks.clear()
                    told.append(
                        _sighting(
                            "gpu.nvlink_errors",
                            Severity.HIGH,
                            f"GPU {one.index}: new errors of its NVLinks at {bad} of the last {_LINK_WINDOWS} looks",
                            component=Component.NVLINK,
                            device=one.index,
                            value=bad,
                            retest=Retest.T3,
                        )
                    )
        return self._placed(told)

    # --- load

    def work(self, loads: Sequence[Load], now_ms: int) -> list[Sighting]:
        """Judge how fast devices at work may be."""
        busy = [one for one in loads if one.utilization is not None and one.utilization >= 50]
        clocks = [one.clock_mhz for one in busy if one.clock_mhz is not None]
        found: list[Sighting] = []
        for one in loads:
            kept = self._kept.setdefault(one.index, _Kept())
            while kept.loads and kept.loads[0][0] < now_ms - _WINDOW_MS:
                kept.loads.popleft()
            kept.loads.append((now_ms, one))
            found += _throttled(one, kept, now_ms)
            found += _held(one, kept, now_ms)
            peers = statistics.median(clocks) if one in busy and len(clocks) > _PEERS else None
            found += _slow(one, kept, peers, now_ms)
        return self._placed(found)


def _throttled(one: Load, kept: _Kept, now_ms: int) -> Iterator[Sighting]:
    if one.clock_reasons is None:
        return
    working = [
        (at, load) for at, load in kept.loads if load.utilization is not None and load.utilization >= 50
    ]
    if len(working) < 3 or working[-1][1] is not one:
        return
    hard = [load for _, load in working if (load.clock_reasons or 0) & clock_reasons.HARD]
    counted, reasons = _counted(working)
    share = max(len(hard) / len(working), counted)
    if (one.clock_reasons & clock_reasons.HARD) and (
        not kept.hard_minutes or kept.hard_minutes[-1] != now_ms // _WINDOW_MS
    ):
        kept.hard_minutes.append(now_ms // _WINDOW_MS)
    minutes = sum(minute > now_ms // _WINDOW_MS - _MINUTES for minute in kept.hard_minutes)
    if share < 0.1 and minutes < 6:
        return
    for _, load in working:
        reasons |= (load.clock_reasons or 0) & clock_reasons.SLOWED
    words = clock_reasons.in_words(reasons)
    long = (share >= 0.5 and now_ms - working[0][0] >= 0.8 * _WINDOW_MS) or minutes >= 6
    yield _sighting(
        "gpu.throttled_long" if long else "gpu.throttled",
        Severity.HIGH if long else Severity.WARNING,
        f"GPU {one.index} was slowed down in {share:.0%} of the last minute at work{f' by {words}' if words else ''}",
        component=Component.FACILITY if clock_reasons.is_brake_alone(reasons) else Component.GPU,
        device=one.index,
        value=round(share, 3),
        retest=Retest.T3,
        evidence=(
            f"clock reasons 0x{reasons:03x}, {one.temperature_c} °C, {one.clock_mhz} MHz, {one.power_w} W",
        ),
        clock_reasons=reasons,
    )


def _counted(working: Sequence[tuple[int, Load]]) -> tuple[float, int]:
    """Return in which share of time, and why, clocks were lowered, by the driver's clocks: looks miss short ones."""
    (begin_ms, first), (end_ms, last) = working[0], working[-1]
    wall_ns = (end_ms - begin_ms) * 1_000_000
    if wall_ns <= 0:
        return 0.0, 0
    grown = {
        clock_reasons.SW_THERMAL: (first.thermal_ns, last.thermal_ns),
        clock_reasons.POWER_BRAKE: (first.brake_ns, last.brake_ns),
    }
    spans = {
        bit: max(after - before, 0)
        for bit, (before, after) in grown.items()
        if before is not None and after is not None
    }
    slowed = sum(spans.values())
    if not 0.05 <= slowed / wall_ns <= 1.1:
        return 0.0, 0
    return slowed / wall_ns, sum(bit for bit, span_ns in spans.items() if span_ns > 0.1 * slowed)


def _held(one: Load, kept: _Kept, now_ms: int) -> Iterator[Sighting]:
    """Report a card that its power limit holds although it takes far less."""

    def held(load: Load) -> bool:
        return bool(
            load.utilization is not None
            and load.utilization >= 90
            and load.power_w is not None
            and load.limit_w
            and (load.clock_reasons or 0) & _SW_POWER_CAP
            and load.power_w < 0.8 * load.limit_w
        )

    span_ms = now_ms - kept.loads[0][0]
    if span_ms >= 0.8 * _WINDOW_MS and all(held(load) for _, load in kept.loads):
        yield _sighting(
            "gpu.power_held",
            Severity.WARNING,
            f"GPU {one.index} takes {one.power_w:.0f} W at full work, held by a limit of {one.limit_w:.0f} W",
            device=one.index,
            value=one.power_w,
            unit="W",
        )


def _slow(one: Load, kept: _Kept, peers_mhz: float | None, now_ms: int) -> Iterator[Sighting]:
    if peers_mhz is None or one.clock_mhz is None or one.clock_mhz >= 0.85 * peers_mhz:
        kept.slow_since_ms = None
        return
    if kept.slow_since_ms is None:
        kept.slow_since_ms = now_ms
    if now_ms - kept.slow_since_ms >= 2 * _WINDOW_MS:
        yield _sighting(
            "gpu.slow_clock",
            Severity.HIGH,
            f"GPU {one.index} works at {one.clock_mhz} MHz for two minutes, its peers at {peers_mhz:.0f} MHz",
            device=one.index,
            value=one.clock_mhz,
            unit="MHz",
            retest=Retest.T3,
        )


def _growth(counters: dict[str, int], name: str, now: int | None) -> int:
    """Return by how much a counter grew, and remember it. A leap, a reset and a first look are no growth."""
    if now is None:
        return 0
    before = counters.get(name)
    counters[name] = now
    if before is None or now < before or now - before >= LEAP:
        return 0
    return now - before


def _of(gpu: Gpu, result: CheckResult, severity: Severity) -> Sighting:
    """Return what a check that went wrong says, as gravely as it is for what runs there."""
    if result.check == "gpu.rows" and result.remedy is not Remedy.REPLACE:
        severity = Severity.WARNING  # it works on; the next start has it reset
    if result.check == "gpu.recovery" and result.value in (3, 4, 5):
        severity = Severity.HIGH  # drained first
    return _sighting(
        result.check,
        severity,
        result.message,
        component=result.component,
        gpu=gpu,
        value=result.value,
        unit=result.unit,
        remedy=result.remedy,
        retest=result.retest,
        evidence=(line_of(with_layer(result)),),
    )


def _driver(rule: str, text: str) -> Sighting:
    return _sighting(
        rule, Severity.HIGH, text, component=Component.DRIVER, remedy=Remedy.REBOOT, evidence=(text,)
    )


def silent(hung: int, why: str) -> Iterable[Sighting]:
    """Judge a driver that does not answer: one process may be unlucky, two in a row are not."""
    return [_driver("nvml.hang", f"NVML does not answer: {why}")] if hung >= 2 else []


def _sighting(
    rule: str,
    severity: Severity,
    message: str,
    *,
    component: Component = Component.GPU,
    gpu: Gpu | None = None,
    device: int | None = None,
    value: float | None = None,
    unit: str = "",
    remedy: Remedy = Remedy.NONE,
    retest: Retest = Retest.T1,
    evidence: tuple[str, ...] = (),
    clock_reasons: int = 0,
) -> Sighting:
    return Sighting(
        rule=rule,
        component=component,
        severity=severity,
        source=Source.NVML,
        message=message,
        device=gpu.index if gpu is not None else device,
        value=value,
        unit=unit,
        remedy=remedy,
        retest=retest,
        evidence=evidence or (message,),
        clock_reasons=clock_reasons,
    )
