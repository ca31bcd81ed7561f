"""The rules over RDMA ports that are watched: how long a port was down in all, and counters that must not grow.

Owns: reading states and counters of ports once, and what follows from them over time. Must not know: which runs use
them. The rules are pure: time is an argument.

How often a port flaps says little: several of a second are harmless, one of ten seconds ends a run (NCCL gives up after
4.096 µs x 2^NCCL_IB_TIMEOUT x NCCL_IB_RETRY_CNT). A port that was never up has no cable, and is nobody's fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks.contract import text_of
from airyard.core.health.facts import Component, Remedy, Retest, Severity, Source
from airyard.core.health.sightings import Sighting

GIVES_UP_S = 4.096e-6 * 2**20 * 7
"""After so long NCCL gives up, by its own defaults."""
LONG_S = GIVES_UP_S / 2
SUSPECT_S = 30
GONE_S = 240
FLAP_S = 1
"""A port that went down and came back between two looks was down for this."""
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
SYMBOLS_AN_HOUR = 120
MISSED_LOOKS = 3
_FATAL = ("excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err")
_DOWNED, _SYMBOLS = "link_downed", "symbol_error"
_A_MINUTE = {"link_error_recovery": 5, _SYMBOLS: 600, "roce_slow_restart": 600}
"""From which growth in a minute on a link wears: 10 a second, but for recoveries, which are rare."""
MINUTE_MS = 60_000
WEARS_AGAIN = 3
COUNTERS = (_DOWNED, *_A_MINUTE, *_FATAL)
_OF_HARDWARE = frozenset({"rnr_nak_retry_err", "roce_slow_restart"})
"""In the adapter's own folder, not in that of the standard's counters."""

RULES: dict[str, tuple[str, str]] = {
    "rdma.down": ("high", f"down for {LONG_S:.0f} s at once: half of what NCCL waits"),
    "rdma.downtime": ("high", f"down for {SUSPECT_S} s in all within a day"),
    "rdma.gone": ("critical", f"down for {GONE_S // 60} min, or its adapter is away at {MISSED_LOOKS} looks"),
    "rdma.errors": (
        "high",
        "overruns of its buffer, errors of its link's integrity or retries without a receiver grew",
    ),
    "rdma.symbols": ("warning", f"more than {SYMBOLS_AN_HOUR} symbol errors in an hour"),
    "rdma.wears": (
        "warning; high at the third time in an hour",
        "its link recovers more than 5 times a minute, or has 10 symbol errors or slow restarts a second",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReading:
    """A port at one moment. ``counters`` is empty where they were not read."""

    name: str
    up: bool
    counters: Mapping[str, int] = field(default_factory=dict)


def read_ports(root: Path, *, counters: bool) -> list[PortReading]:
    """Read all ports below ``root`` but virtual functions. Cost: two small files a port, nine with counters."""
    found = []
    for folder in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        device = folder.parent.parent
        if (device / "device" / "physfn").exists():
            continue
        state, physical = text_of(folder / "state"), text_of(folder / "phys_state")
        texts = {name: text_of(_file(folder, name)) for name in COUNTERS} if counters else {}
        found.append(
            PortReading(
                name=f"{device.name}/{folder.name}",
                up=state.endswith("ACTIVE") and physical.endswith("LinkUp"),
                counters={name: int(text) for name, text in texts.items() if text.isdecimal()},
            )
        )
    return found


def _file(port: Path, counter: str) -> Path:
    return port / ("hw_counters" if counter in _OF_HARDWARE else "counters") / counter


@dataclass(slots=True)
class _Port:
    """What is remembered of one port."""

    was_up: bool = False
    down_since_ms: int | None = None
    outages: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=1_000))
    """When each ended, and how many ms it took."""
    counters: dict[str, int] = field(default_factory=dict)
    symbols: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=1_000))
    minutes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By counter of wear, when its minute began, and by how much it grew since."""
    counted_ms: int | None = None
    wore: deque[int] = field(default_factory=lambda: deque(maxlen=WEARS_AGAIN))
    missed: int = 0
    told: set[str] = field(default_factory=set)
    """What was said of the outage that lasts."""


class PortWatch:
    """The ports of one machine over time."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}

    def look(self, readings: list[PortReading], now_ms: int) -> list[Sighting]:
        """Judge a look at all ports."""
        found: list[Sighting] = []
        seen = {one.name for one in readings}
        for one in readings:
            port = self._ports.setdefault(one.name, _Port())
            port.missed = 0
            found += _counted(one, port, now_ms)
            found += _state(one.name, one.up, port, now_ms)
        for name, port in self._ports.items():
            if name in seen or not port.was_up:
                continue
            port.missed += 1
            if port.missed == MISSED_LOOKS:
                text = f"{name}: the adapter is not there any more"
                found.append(_sighting("rdma.gone", Severity.CRITICAL, name, text, remedy=Remedy.REBOOT))
        return found


def _state(name: str, up: bool, port: _Port, now_ms: int) -> Iterator[Sighting]:
    if up:
        if port.down_since_ms is not None:
            port.outages.append((now_ms, now_ms - port.down_since_ms))
        port.was_up, port.down_since_ms = True, None
        port.told.clear()
    elif port.was_up and port.down_since_ms is None:
        port.down_since_ms = now_ms
    while port.outages and port.outages[0][0] < now_ms - DAY_MS:
        port.outages.popleft()
    lasts_ms = now_ms - port.down_since_ms if port.down_since_ms is not None else 0
    total_s = (sum(took for _, took in port.outages) + lasts_ms) / 1000
    lasts_s = lasts_ms / 1000
    if lasts_s >= GONE_S and "rdma.gone" not in port.told:
        port.told.add("rdma.gone")
        text = f"{name} is down for {lasts_s:.0f} s"
        yield _sighting("rdma.gone", Severity.CRITICAL, name, text, value=lasts_s)
    if lasts_s >= LONG_S and "rdma.down" not in port.told:
        port.told.add("rdma.down")
        text = f"{name} is down for {lasts_s:.0f} s; NCCL gives up after {GIVES_UP_S:.0f} s by its defaults"
        yield _sighting("rdma.down", Severity.HIGH, name, text, value=lasts_s)
    if total_s >= SUSPECT_S and (lasts_ms or (port.outages and port.outages[-1][0] == now_ms)):
        text = f"{name} was down for {total_s:.0f} s in all within a day, {len(port.outages) + bool(lasts_ms)} times"
        yield _sighting("rdma.downtime", Severity.HIGH, name, text, value=total_s)


def _counted(one: PortReading, port: _Port, now_ms: int) -> Iterator[Sighting]:
    grown = {}
    for counter, now in one.counters.items():
        before = port.counters.get(counter)
        port.counters[counter] = now
        if before is not None and before < now < before + (
            1 << 31
        ):  # else a first look, a reset or a misreading
            grown[counter] = now - before
    if grown.get(_DOWNED) and one.up and port.was_up and port.down_since_ms is None:
        # It was down and up again since the last look.
        port.outages.append((now_ms, FLAP_S * 1000 * min(grown[_DOWNED], 1_000)))
    fatal = {name: grown[name] for name in _FATAL if name in grown}
    if fatal:
        text = f"{one.name}: " + ", ".join(f"{name} +{more}" for name, more in fatal.items())
        yield _sighting("rdma.errors", Severity.HIGH, one.name, text, value=sum(fatal.values()))
    if _SYMBOLS in grown:
        port.symbols.append((now_ms, grown[_SYMBOLS]))
    while port.symbols and port.symbols[0][0] <= now_ms - HOUR_MS:
        port.symbols.popleft()
    if one.counters:
        yield from _worn(one.name, port, grown, now_ms)
    symbols = sum(more for _, more in port.symbols)
    if _SYMBOLS in grown and symbols > SYMBOLS_AN_HOUR:
        text = f"{one.name}: {symbols:,} symbol errors within an hour"
        yield _sighting("rdma.symbols", Severity.WARNING, one.name, text, value=symbols)


def _worn(name: str, port: _Port, grown: Mapping[str, int], now_ms: int) -> Iterator[Sighting]:
    """Judge how fast a link's errors grow, a minute at a time; what comes again within the hour is no chance."""
    fast = {}
    span_ms = now_ms - port.counted_ms if port.counted_ms is not None else 0
    port.counted_ms = now_ms
    for counter, most in _A_MINUTE.items():
        since_ms, so_far = port.minutes.get(counter, (now_ms, 0))
        # Where nobody looked for longer, what grew was spread over that time.
        so_far += grown.get(counter, 0) * MINUTE_MS // max(span_ms, MINUTE_MS)
        if so_far > most:
            fast[counter] = so_far
        over = counter in fast or now_ms - since_ms >= MINUTE_MS
        port.minutes[counter] = (now_ms, 0) if over else (since_ms, so_far)
    if not fast or (port.wore and now_ms - port.wore[-1] < MINUTE_MS):
        return  # one bad minute is one
    port.wore.append(now_ms)
    again = len(port.wore) == WEARS_AGAIN and port.wore[0] > now_ms - HOUR_MS
    text = f"{name}: within a minute " + ", ".join(f"{counter} +{more:,}" for counter, more in fast.items())
    if again:
        text += ", the third such minute within an hour"
    severity = Severity.HIGH if again else Severity.WARNING
    yield _sighting("rdma.wears", severity, name, text, value=max(fast.values()))


def _sighting(
    rule: str,
    severity: Severity,
    port: str,
    message: str,
    *,
    value: float | None = None,
    remedy: Remedy = Remedy.NONE,
) -> Sighting:
    return Sighting(
        rule=rule,
        component=Component.NETWORK,
        severity=severity,
        source=Source.RDMA,
        message=message,
        place=port,
        value=value,
        unit="s" if rule in ("rdma.down", "rdma.downtime", "rdma.gone") and value is not None else "",
        remedy=remedy,
        retest=Retest.T4,
        evidence=(message,),
    )
