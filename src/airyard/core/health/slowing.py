"""Which GPUs that are throttled slow their ranks down: only then does it speak against them.

Owns: what counts as being throttled, which rank computes on which device, when one is the cause of the other, the event
that follows. Must not know: where compute times come from, who is told, how much it weighs. Pure: time is an argument.

Most throttling costs nobody anything: a rank waits for others as long. And most slow ranks are slow by their program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airyard.core.health.clock_reasons import in_words as clock_words
from airyard.core.health.clock_reasons import is_brake_alone
from airyard.core.health.facts import Component, HealthEvent, Retest, Severity, Source
from airyard.core.health.sightings import window_ms
from airyard.core.health.states import NodeHealth
from airyard.core.health.stragglers import Straggler

SLOWNESS = frozenset({"gpu.throttled", "gpu.throttled_long", "gpu.slow_clock"})
"""What monitors see of lower clocks. By itself it weighs nothing, and it ends no run."""
RULE = "gpu.slowing"
AGAIN = "gpu.slowing_again"
"""... in another run, within the day for which evidence counts."""
SLACK_MS = 180_000
"""So much later than the slowness its cause may be seen: monitors judge minutes, and looks at steps come sooner."""
LATE_MS = 120_000
"""So much later than its window a sighting that lasts may be said again."""
SAME_SHARE = 0.1
DAY_MS = 86_400_000
_SEVERITIES = tuple(Severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """The newest sighting of lower clocks on one device, by one rule; ``share`` of the last minute, where it is known.

    ``since_ms`` is its first sighting of a row. Times are of the clock of whoever collects them, as of ranks.
    """

    rule: str
    machine: str
    node: str
    device: int
    device_uuid: str
    severity: Severity
    reasons: int
    share: float | None
    message: str
    evidence: tuple[str, ...]
    brake_alone: bool
    since_ms: int
    at_ms: int

    def lasts(self, now_ms: int) -> bool:
        """True while it would not have been said again yet."""
        return now_ms - self.at_ms <= window_ms(self.severity) + LATE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank computes: ``devices`` are (index, uuid)."""

    rank: int
    node: str
    machine: str
    devices: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A rank that is slow, and the throttled device of it that explains that."""

    slow: Straggler
    throttle: Throttle
    machine: str
    device: int
    device_uuid: str


def throttle_of(event: HealthEvent, now_ms: int) -> Throttle | None:
    """Return what an event says of lower clocks; None for another, and for what a job could have printed."""
    if event.rule not in SLOWNESS or event.device is None:
        return None
    if not event.confirmed or event.source is Source.JOB_LOG:
        return None
    return Throttle(
        rule=event.rule,
        machine=event.machine,
        node=event.node,
        device=event.device,
        device_uuid=event.device_uuid,
        severity=event.severity,
        reasons=event.clock_reasons,
        share=event.value if event.rule != "gpu.slow_clock" else None,
        message=event.message[:300],
        evidence=tuple(line[:200] for line in event.evidence[:2]),
        brake_alone=event.component is Component.FACILITY or is_brake_alone(event.clock_reasons),
        since_ms=now_ms,
        at_ms=now_ms,
    )


def seats(ranks: Sequence[int], node: str, machine: str, devices: Sequence[tuple[int, str]]) -> list[Seat]:
    """Return where the ranks of one member compute: in their order, each on as many devices; else all on all."""
    each, rest = divmod(len(devices), len(ranks)) if ranks else (0, 0)
    own = each > 0 and rest == 0
    return [
        Seat(
            rank=rank,
            node=node,
            machine=machine,
            devices=tuple(devices[place * each : (place + 1) * each] if own else devices),
        )
        for place, rank in enumerate(sorted(ranks))
    ]


def judge(
    slow: Sequence[Straggler], where: Sequence[Seat], throttles: Sequence[Throttle], now_ms: int
) -> list[Effect]:
    """Return the slow ranks whose GPU is throttled, where that explains it, in their order.

    It has to have begun before the rank was slow. And of all ranks whose GPUs are throttled as much most have to be
    slow: where others are as fast as ever with the same, it costs nothing.
    """
    there: dict[str, list[Throttle]] = {}
    for throttle in throttles:
        if throttle.lasts(now_ms):
            there.setdefault(throttle.machine, []).append(throttle)
    found = {seat.rank: _worst(seat, there.get(seat.machine, ())) for seat in where}
    throttled = {rank: worst for rank, worst in found.items() if worst is not None}
    named = {one.rank for one in slow}
    effects = []
    for one in slow:
        effect = throttled.get(one.rank)
        if effect is None or (one.since_ms is not None and effect.since_ms > one.since_ms + SLACK_MS):
            continue
        alike = [rank for rank, other in throttled.items() if _as_hard(other.throttle, effect.throttle)]
        if 2 * sum(rank in named for rank in alike) > len(alike):
            effects.append(
                Effect(
                    slow=one,
                    throttle=effect.throttle,
                    machine=effect.throttle.machine,
                    device=effect.device,
                    device_uuid=effect.device_uuid,
                )
            )
    return effects


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worst:
    throttle: Throttle
    since_ms: int
    device: int
    device_uuid: str


def _worst(seat: Seat, throttles: Sequence[Throttle]) -> _Worst | None:
    """Return the worst sighting of a rank's devices, and since when that device has been throttled by any rule."""
    found = [
        (one, device, uuid)
        for one in throttles
        for device, uuid in seat.devices
        if _is(one, seat, device, uuid)
    ]
    if not found:
        return None
    worst, device, uuid = max(found, key=lambda each: (_grave(each[0]), each[0].share or 0.0, -each[1]))
    since_ms = min(one.since_ms for one, other, _ in found if other == device)
    return _Worst(throttle=worst, since_ms=since_ms, device=device, device_uuid=uuid)


def _is(one: Throttle, seat: Seat, device: int, uuid: str) -> bool:
    if one.node and one.node != seat.node:
        return False
    return one.device_uuid == uuid if one.device_uuid and uuid else one.device == device


def _grave(one: Throttle) -> int:
    return _SEVERITIES.index(one.severity)


def _as_hard(other: Throttle, one: Throttle) -> bool:
    if _grave(other) != _grave(one) or other.share is None or one.share is None:
        return _grave(other) >= _grave(one)
    return other.share >= one.share - SAME_SHARE


def in_words(effect: Effect) -> str:
    """Return what the device of a slow rank shows, as a sentence goes on."""
    said = effect.throttle.message
    return f"{said} (the power brake is the facility's)" if effect.throttle.brake_alone else said


def event_of(
    effect: Effect, health: NodeHealth | None, *, run_id: int, attempt: int, now_ms: int
) -> HealthEvent | None:
    """Return the event that speaks against the device; None where the power brake alone slows it down.

    ``health``: of its node, as it is known. The same attempt says the same event all day long.
    """
    slow, throttle = effect.slow, effect.throttle
    if throttle.brake_alone:
        return None
    more = slow.compute_ms / slow.median_ms - 1 if slow.median_ms else 0.0
    by = clock_words(throttle.reasons) or "its clock is low"
    return HealthEvent(
        event_id=f"{_prefix(run_id)}{attempt}/{slow.node}/{effect.device}/{throttle.severity.value}/{now_ms // DAY_MS}",
        rule=AGAIN if _known_of_another(health, effect.device, run_id) else RULE,
        machine=effect.machine,
        node=slow.node,
        at_ms=now_ms,
        component=Component.GPU,
        severity=throttle.severity,
        source=Source.NVML,
        message=f"GPU {effect.device} is throttled ({by}) and its rank is {more:.0%} slower than usual",
        device=effect.device,
        device_uuid=effect.device_uuid,
        value=round(slow.score, 3),
        retest=Retest.T3,
        evidence=(
            f"rank {slow.rank} of run {run_id}, attempt {attempt}, on {slow.node} computes {slow.compute_ms:.1f} ms "
            f"a step, the usual is {slow.median_ms:.1f} ms",
            throttle.message,
            *throttle.evidence,
        ),
        clock_reasons=throttle.reasons,
    )


def _prefix(run_id: int) -> str:
    return f"slowing/{run_id}/"


def _known_of_another(health: NodeHealth | None, device: int, run_id: int) -> bool:
    return health is not None and any(
        hit.rule == RULE and hit.device == device and not hit.event_id.startswith(_prefix(run_id))
        for hit in health.hits
    )
