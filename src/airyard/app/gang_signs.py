"""The signs of progress that attempts give beside steps, in memory, and the verdicts on them.

Owns: counters of each attempt and member, when a verdict can be relied on. Must not know: HTTP, MLflow's requests, what
a log line says, the journal: nothing of it is kept over a restart of the server, which learns the rhythms anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from airyard.core.health import signs
from airyard.core.health.pulses import GpuTrack, Pulse
from airyard.core.health.signs import GangSeen, MemberSeen, Silence
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.run import Attempt, Member

MOST_GANGS = 4096
MOST_GPUS = 32
"""Of one member."""
SAME_FOR_MS = 15_000
"""A verdict counts once it was the same for so long, at two looks at least."""
_UTILIZATION = "_utilization_percentage"


@dataclass(slots=True)
class _Member:
    heard_ms: int
    logs: Pulse = field(default_factory=Pulse)
    gpus: dict[int, GpuTrack] = field(default_factory=dict)


@dataclass(slots=True)
class _Gang:
    metrics: Pulse = field(default_factory=Pulse)
    logs: Pulse = field(default_factory=Pulse)
    step: int = 0
    members: dict[int, _Member] = field(default_factory=dict)
    seen: tuple[object, ...] | None = None
    seen_ms: int = 0


class GangSigns:
    """The attempts that gave a sign, newest last. Any thread. Times are of the server's monotonic clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gangs: OrderedDict[AttemptKey, _Gang] = OrderedDict()

    def heard(self, key: MemberKey, at_ms: int) -> None:
        """Note that a member's runner is there: only then does silence mean anything."""
        with self._lock:
            self._member(key, at_ms).heard_ms = at_ms

    def logged(self, key: MemberKey, at_ms: int) -> None:
        """Note that a member printed something."""
        with self._lock:
            self._gang(key.attempt_key).logs.beat(at_ms)
            member = self._member(key, at_ms)
            member.logs.beat(at_ms)
            member.heard_ms = at_ms

    def measured(self, key: AttemptKey, step: int | None, at_ms: int) -> None:
        """Note that user code wrote a metric; ``step`` None: nobody read which."""
        with self._lock:
            gang = self._gang(key)
            gang.metrics.beat(at_ms)
            if step is not None:
                gang.step = max(gang.step, step)

    def sampled(self, key: MemberKey, values: Mapping[str, float], at_ms: int) -> None:
        """Take in the readings of a member's GPUs, by MLflow's names."""
        for name, percent in values.items():
            index = name.removeprefix("gpu_").removesuffix(_UTILIZATION)
            if not name.endswith(_UTILIZATION) or not index.isdecimal():
                continue
            with self._lock:
                gpus = self._member(key, at_ms).gpus
                if int(index) in gpus or len(gpus) < MOST_GPUS:
                    gpus.setdefault(int(index), GpuTrack()).read(
                        at_ms,
                        percent,
                        values.get(f"gpu_{index}_memory_usage_megabytes"),
                        values.get(f"gpu_{index}_power_usage_watts"),
                    )

    def keep(self, live: Collection[AttemptKey]) -> None:
        """Forget all others: they have ended."""
        with self._lock:
            for key in [key for key in self._gangs if key not in live]:
                del self._gangs[key]

    def seen(
        self, attempt: Attempt, now_ms: int, *, own_ms: int = 0, checkpoint_ms: int | None = None
    ) -> GangSeen | None:
        """Return all signs of an attempt; None for one that gave none. ``checkpoint_ms``: since it saved one."""
        with self._lock:
            gang = self._gangs.get(attempt.key)
            if gang is None:
                return None
            return GangSeen(
                members=tuple(
                    _member_seen(gang.members.get(member.index), member, now_ms) for member in attempt.members
                ),
                metrics=gang.metrics.told(now_ms),
                logs=gang.logs.told(now_ms),
                step=gang.step,
                own_ms=own_ms,
                checkpoint_ms=checkpoint_ms,
            )

    def confirmed(self, key: AttemptKey, seen: GangSeen, now_ms: int) -> tuple[bool, Silence | None]:
        """Return whether the verdict can be relied on, and it. One that somebody gave meanwhile begins anew."""
        silence = signs.judge(seen)
        with self._lock:
            gang = self._gangs.get(key)
            if gang is None:
                return False, None
            said = (silence.source, silence.case, silence.nodes) if silence is not None else None
            if said != gang.seen:
                gang.seen, gang.seen_ms = said, now_ms
            return silence is None or now_ms - gang.seen_ms >= SAME_FOR_MS, silence

    def _gang(self, key: AttemptKey) -> _Gang:
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = _Gang()
            if len(self._gangs) > MOST_GANGS:
                self._gangs.popitem(last=False)
        return gang

    def _member(self, key: MemberKey, at_ms: int) -> _Member:
        return self._gang(key.attempt_key).members.setdefault(key.member, _Member(heard_ms=at_ms))


def _member_seen(known: _Member | None, member: Member, now_ms: int) -> MemberSeen:
    plain = MemberSeen(
        member=member.index,
        node=member.node,
        heard_ms=signs.UNHEARD_MS + 1,
        devices=len(member.devices),
    )
    if known is None:  # nobody has heard of it since this server was started
        return plain
    return replace(
        plain,
        heard_ms=max(0, now_ms - known.heard_ms),
        logs=known.logs.told(now_ms),
        gpus=tuple(track.seen(number, now_ms) for number, track in sorted(known.gpus.items())),
    )
