"""Whether a gang that tells of no steps has stopped, by the other signs that it gives: metrics, log lines, GPUs.

Owns: which sign is trusted, how long it may be away, what may speak against a stall, whom a verdict names. Must not
know: how signs are got and counted (``pulses.py``), ``airyard.step`` (``hangs.py``), what is done about a verdict.

Of the signs the most trusted one that has shown a rhythm judges: metrics, else log lines, else GPUs. They say less than
steps do: an evaluation logs no metric, a program that computes prints nothing, one that loads data lets its GPUs idle.
So a false alarm is taken to be worse than one that comes late:

- A sign can be missed only once it came often enough, for at least as long as it may be away: what spoke for one
  minute, as downloads do, is not missed after thirty.
- It may be away for five times what was usual lately and twice the longest silence that ever ended, and for minutes at
  least: after the first evaluation its length is known.
- While log lines keep coming as they use to, or a GPU is seen at work, missing metrics are no stall. Missing log lines
  are none either while a GPU works; without GPUs' word on it they are waited for twice as long.
- By GPUs alone only those count that waited without any change for half an hour, one of them at 100 %: all idle may be
  a notebook, a download, an upload of results.
- A checkpoint that was saved is progress, whatever else is silent.
- What a node that is not heard of does is unknown: its signs may be on their way.

With ``own_ms``, the run's own limit, metrics are judged by it alone; of log lines GPUs at work still speak for the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from airyard.core.health.hangs import StallCase
from airyard.core.health.pulses import Gpu, Picture, Told


class Source(Enum):
    """What a verdict rests on, the most trusted first."""

    STEPS = "steps"
    METRICS = "metrics"
    LOGS = "logs"
    GPU = "gpu"


class SignCase(Enum):
    """What tells the members apart."""

    GPU_IDLE = "GPU_IDLE"
    """A minority of the GPUs idles while all others are pinned: they wait for it."""
    LOGS_ENDED_EARLIER = "LOGS_ENDED_EARLIER"
    """A minority of the members stopped to print clearly before the others."""
    SILENT = "SILENT"
    """Nothing differs."""


MINUTE_MS = 60_000
METRICS_MS = 10 * MINUTE_MS
LOGS_MS = 15 * MINUTE_MS
GPU_MS = 30 * MINUTE_MS
METRICS_BEATS = 10
LOGS_BEATS = 30
GPU_READINGS = 30
FACTOR = 5
OWN_FACTOR = 2
"""A run's own limit is meant for steps; metrics and lines may come more seldom by their nature."""
LONGEST_FACTOR = 2
UNHEARD_MS = MINUTE_MS
"""A node that was not heard of for so long may have signs that nobody has got yet."""
FRESH_MS = MINUTE_MS
"""A GPU that was not read for so long may do anything."""
CLEARLY_MS = MINUTE_MS

CONFIDENCE = {Source.METRICS: 0.4, Source.LOGS: 0.3, Source.GPU: 0.2}
"""That it hangs at all. Where GPUs show it, too, it is surer by ``BY_GPU``."""
BY_GPU = 0.2
_UNIT = {Source.METRICS: "metric", Source.LOGS: "log line"}
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSeen:
    """One member. ``heard_ms``: since its runner was heard of; ``devices``: how many GPUs or slots it holds."""

    member: int
    node: str
    heard_ms: int
    devices: int
    logs: Told | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSeen:
    """All signs of one attempt. ``step``: the newest that a metric named; ``own_ms``: the run's own limit, or 0."""

    members: tuple[MemberSeen, ...]
    metrics: Told | None = None
    logs: Told | None = None
    step: int = 0
    own_ms: int = 0
    checkpoint_ms: int | None = None
    """Since a checkpoint was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """By what a gang is judged, how long ago that was seen, and how long it may be away."""

    source: Source
    age_ms: int
    limit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The verdict. ``nodes``: where something differs clearly from the rest; ``ranks`` where each has one GPU."""

    source: Source
    case: SignCase | StallCase
    """The second where a look at the ranks told more."""
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    confidence: float
    silent_ms: int
    limit_ms: int
    step: int
    message: str
    evidence: tuple[str, ...] = ()
    suspect_node: str = ""


def watched(seen: GangSeen) -> Watched | None:
    """Return the most trusted sign that can be judged by; None while there is none."""
    for source, told, beats, floor_ms in (
        (Source.METRICS, seen.metrics, METRICS_BEATS, METRICS_MS),
        (Source.LOGS, seen.logs, LOGS_BEATS, LOGS_MS if _picture(seen) else 2 * LOGS_MS),
    ):
        if told is None or told.beats < (beats if not seen.own_ms else METRICS_BEATS):
            continue
        limit_ms = _limit_ms(told, floor_ms, seen.own_ms)
        if told.span_ms >= limit_ms:
            return Watched(source=source, age_ms=_age_ms(told.age_ms, seen), limit_ms=limit_ms)
    return _by_gpus(seen)


def judge(seen: GangSeen) -> Silence | None:
    """Return the verdict on a gang whose trusted sign is away for too long; None while it is not, or cannot be told."""
    if not seen.members or any(member.heard_ms > UNHEARD_MS for member in seen.members):
        return None
    by = watched(seen)
    if by is None or by.age_ms <= by.limit_ms or _moves(seen, by):
        return None
    case, odd = _case(seen, by)
    picture = _picture(seen)
    named = sorted({member.member for member in odd})
    nodes = [member.node for member in seen.members if member.member in named]
    alone = all(member.devices == 1 for member in seen.members) and _picture(seen) is not None
    shown = _pinned(seen) > 0 and by.source is not Source.GPU
    return Silence(
        source=by.source,
        case=case,
        ranks=tuple(named) if alone else (),
        nodes=tuple(sorted(set(nodes))),
        confidence=round(CONFIDENCE[by.source] + (BY_GPU if shown else 0.0), 2),
        silent_ms=by.age_ms,
        limit_ms=by.limit_ms,
        step=seen.step,
        message="; ".join(_sentences(seen, by, case, odd)),
        evidence=tuple(_evidence(member) for member in (odd or (seen.members if picture else ()))[:_SHOWN]),
    )


def moved_since(seen: GangSeen, source: Source, span_ms: int) -> bool:
    """Whether the source of a verdict, or a more trusted one, gave a sign within the last ``span_ms``."""
    ages = [told.age_ms for told in _trusted(seen, source) if told is not None]
    if source is Source.GPU:
        ages += [
            gpu.age_ms
            for member in seen.members
            for gpu in member.gpus
            if gpu.picture is Picture.WORKING and gpu.worked
        ]
    if seen.checkpoint_ms is not None:
        ages.append(seen.checkpoint_ms)
    return min(ages, default=span_ms) < span_ms


def _trusted(seen: GangSeen, source: Source) -> Sequence[Told | None]:
    return (seen.metrics,) if source is Source.METRICS else (seen.metrics, seen.logs)


def _limit_ms(told: Told, floor_ms: int, own_ms: int) -> int:
    if own_ms:
        return max(own_ms, OWN_FACTOR * told.usual_ms)
    return max(floor_ms, FACTOR * told.usual_ms, LONGEST_FACTOR * told.longest_ms)


def _age_ms(age_ms: int, seen: GangSeen) -> int:
    return age_ms if seen.checkpoint_ms is None else min(age_ms, seen.checkpoint_ms)


def _gpus(seen: GangSeen) -> list[Gpu]:
    return [gpu for member in seen.members for gpu in member.gpus if gpu.age_ms <= FRESH_MS]


def _picture(seen: GangSeen) -> Picture | None:
    """Return what the gang's GPUs are at; None unless all are known. If all are still, one pinned makes it PINNED."""
    gpus = _gpus(seen)
    if not gpus or any(
        sum(gpu.age_ms <= FRESH_MS for gpu in member.gpus) < member.devices for member in seen.members
    ):
        return None
    if any(gpu.picture is Picture.WORKING or gpu.still_ms < MINUTE_MS for gpu in gpus):
        return Picture.WORKING
    return Picture.PINNED if _pinned(seen) else Picture.IDLE


def _pinned(seen: GangSeen) -> int:
    return sum(gpu.picture is Picture.PINNED for gpu in _gpus(seen))


def _by_gpus(seen: GangSeen) -> Watched | None:
    gpus = _gpus(seen)
    if _picture(seen) is None or not all(gpu.worked >= GPU_READINGS for gpu in gpus):
        return None
    limit_ms = max(GPU_MS, seen.own_ms, *(LONGEST_FACTOR * gpu.longest_ms for gpu in gpus))
    if min(gpu.work_ms for gpu in gpus) < limit_ms:
        return None
    still_ms = min(gpu.still_ms if gpu.picture is not Picture.WORKING else 0 for gpu in gpus)
    return Watched(source=Source.GPU, age_ms=_age_ms(still_ms, seen), limit_ms=limit_ms)


def _moves(seen: GangSeen, by: Watched) -> bool:
    """Whether something else says that the gang is at work although its trusted sign is away."""
    picture = _picture(seen)
    if by.source is Source.GPU:
        return picture is not Picture.PINNED
    if by.source is Source.METRICS and seen.own_ms:
        return False
    if picture is Picture.WORKING:
        return True
    logs = seen.logs
    return by.source is Source.METRICS and logs is not None and logs.beats >= LOGS_BEATS and _in_rhythm(logs)


def _in_rhythm(told: Told) -> bool:
    return told.age_ms <= max(MINUTE_MS, FACTOR * told.usual_ms, LONGEST_FACTOR * told.longest_ms)


def _case(seen: GangSeen, by: Watched) -> tuple[SignCase, tuple[MemberSeen, ...]]:
    gpus = _gpus(seen)
    idle = sum(gpu.picture is Picture.IDLE for gpu in gpus)
    if _picture(seen) is Picture.PINNED and 0 < 2 * idle < len(gpus):
        odd = tuple(
            member for member in seen.members if any(gpu.picture is Picture.IDLE for gpu in member.gpus)
        )
        return SignCase.GPU_IDLE, odd
    early = _ended_earlier(seen) if by.source is not Source.GPU else ()
    return (SignCase.LOGS_ENDED_EARLIER, early) if early else (SignCase.SILENT, ())


def _ended_earlier(seen: GangSeen) -> tuple[MemberSeen, ...]:
    """Return a minority that stopped to print by far more than its own rhythm before each of the others."""
    regular = [
        (member, member.logs)
        for member in seen.members
        if member.logs is not None and member.logs.beats >= LOGS_BEATS
    ]
    if len(regular) < 3 or len(regular) < len(seen.members):
        return ()
    regular.sort(key=lambda one: -one[1].age_ms)
    for count in range(1, (len(regular) - 1) // 2 + 1):
        (_, last), (_, following) = regular[count - 1], regular[count]
        apart_ms = last.age_ms - following.age_ms
        usual_ms = max(logs.usual_ms for _, logs in regular)
        if apart_ms >= max(CLEARLY_MS, FACTOR * usual_ms):
            return tuple(sorted((member for member, _ in regular[:count]), key=lambda one: one.member))
    return ()


def _sentences(seen: GangSeen, by: Watched, case: SignCase, odd: tuple[MemberSeen, ...]) -> list[str]:
    limit = f"(limit {by.limit_ms / 1000:.0f} s)"
    silence = f"{by.age_ms / 1000:.0f} s {limit}"
    said = [f"no {_UNIT[by.source]} for {silence}" if by.source in _UNIT else f"no GPU at work for {silence}"]
    if by.source is Source.METRICS and seen.step:
        said[0] += f", the last at step {seen.step}"
    if by.source is Source.METRICS and seen.logs is not None:
        said.append(f"no log line for {seen.logs.age_ms / 1000:.0f} s")
    if case is SignCase.GPU_IDLE:
        idle = [
            f"{gpu.index} of {member.node}"
            for member in odd
            for gpu in member.gpus
            if gpu.picture is Picture.IDLE
        ]
        more = f" and {len(idle) - _SHOWN} more" if len(idle) > _SHOWN else ""
        verb = "idles" if len(idle) == 1 else "idle"
        said.append(f"GPU {', '.join(idle[:_SHOWN])}{more} {verb} while {_pinned(seen)} others wait at 100 %")
        return said
    match _picture(seen):
        case Picture.PINNED:
            said.append(f"{_pinned(seen)} of {len(_gpus(seen))} GPUs wait at 100 %")
        case Picture.IDLE:
            said.append("its GPUs idle")
    if case is SignCase.LOGS_ENDED_EARLIER:
        nodes = [member.node for member in odd]
        more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
        said.append(f"the log of {', '.join(nodes[:_SHOWN])}{more} ended earlier than the others")
    return said if len(said) > 1 else [*said, "nothing tells its nodes apart"]


def _evidence(member: MemberSeen) -> str:
    told = [f"the last log line {member.logs.age_ms / 1000:.0f} s ago"] if member.logs is not None else []
    for gpu in member.gpus:
        what = {Picture.IDLE: "idle", Picture.PINNED: "at 100 % without a change"}.get(gpu.picture)
        told.append(f"GPU {gpu.index} " + (f"{what} for {gpu.still_ms / 1000:.0f} s" if what else "at work"))
    return f"{member.node}: " + (", ".join(told) or "no sign")
