"""Reads the beats that user code leaves by ``airyard.step``, and looks at the ranks of a member that makes no steps.

Owns: reading the files (``airyard.steps`` has their layout), what is sent of a rank, when stacks are taken.
Must not know: other members, what a stall means (``core.health.hangs`` judges), HTTP.

The files are user code's: nothing in them is believed further than the verdict on its own run. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airyard.core.health import hangs
from airyard.core.triage.rank_notes import where_ranks_run
from airyard.node.flight import FlightReader
from airyard.node.identity import Identity
from airyard.node.job_files import read_small
from airyard.steps import HEAD, MAGIC, RING, SIZE, SLOT

EVERY_MS = 2000
SEND_EVERY_MS = 5000
ANEW_MS = 30_000
"""So often what has not changed is told: the server may have been started anew meanwhile."""
_MOST_FILES = 512
_MOST_RANKS = 64
_STACK_BYTES = 64 * 1024
_STACK_CHARACTERS = 2000
_WINDOW = 20
_LONGEST_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One process's file. Times in ms; ``compute_ms`` None where user code does not tell it."""

    rank: int
    pid: int
    signal: int
    step: int
    count: int
    age_ms: int
    computing: bool
    section: str
    limit_ms: int | None
    step_ms: float | None
    compute_ms: float | None
    wait_ms: float | None

    @property
    def is_late(self) -> bool:
        """True when it has made no step for longer than it may."""
        return self.limit_ms is not None and self.age_ms > self.limit_ms


def decode(data: bytes, now_s: float, timeout_s: float = 0) -> Beat | None:
    """Read a file; None for one that was being written, or is none. ``now_s`` is of CLOCK_MONOTONIC.

    ``timeout_s``: the run's own limit, where user code has none.
    """
    body = 4 + HEAD.size
    if len(data) != SIZE or data[:4] != data[body : body + 4]:
        return None
    magic, pid, rank, computing, signal, step, count, last, _, own_s, section = HEAD.unpack_from(data, 4)
    if magic != MAGIC or count < 0 or not (math.isfinite(last) and math.isfinite(own_s)):
        return None
    slots = [SLOT.unpack_from(data, body + 4 + n * SLOT.size) for n in range(min(RING, max(0, count - 1)))]
    took = sorted(slot[0] for slot in slots if 0 <= slot[0] < _LONGEST_S)
    p99_ms = 1000 * took[math.ceil(0.99 * len(took)) - 1] if took else 0.0
    oldest = (count - 1) % RING if count - 1 > RING else 0
    recent = [*slots[oldest:], *slots[:oldest]][-_WINDOW:]
    return Beat(
        rank=rank,
        pid=pid,
        signal=signal,
        step=step,
        count=count,
        age_ms=round(1000 * min(_LONGEST_S, max(0.0, now_s - last))),
        computing=bool(computing),
        section=section.rstrip(b"\0").decode(errors="replace"),
        limit_ms=hangs.limit_ms(
            p99_ms, count, own_ms=round(1000 * min(_LONGEST_S, own_s if own_s > 0 else timeout_s))
        ),
        step_ms=_median_ms([slot[0] for slot in recent]),
        compute_ms=_median_ms([slot[1] for slot in recent]),
        wait_ms=_median_ms([slot[2] for slot in recent]),
    )


def _median_ms(seconds: list[float]) -> float | None:
    told = [value for value in seconds if 0 <= value < _LONGEST_S]
    return round(1000 * statistics.median(told), 3) if told and 2 * len(told) > len(seconds) else None


class BeatWatch:
    """Follows the ranks of one member. ``members`` returns the ids of its processes: no other gets a signal."""

    def __init__(
        self,
        folder: Path,
        owner: Identity | None,
        members: Callable[[], set[int]],
        rules: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """``rules``: ``hang`` of the PREPARE order."""
        self._off = rules.get("action") == "off"
        self._timeout_s = float(rules.get("timeout_s") or 0)
        self._folder = folder
        self._owner = owner
        self._members = members
        self._flights = FlightReader(folder, owner)
        self._sent: list[dict[str, Any]] = []
        self._sent_ms = 0
        self._asked: dict[int, int] = {}
        """Of each process that was asked for its stack, the count of its steps then."""
        self.pids: dict[int, int] = {}
        """The process of each rank that told of steps."""

    def look(self, now_ms: int, now_s: float) -> tuple[list[dict[str, Any]], list[str]]:
        """Return what is to be sent now (nothing: an empty list), and lines for the member's log.

        Cost: one small read a rank; of a member that stands still, also one of all processes, once a stall.
        """
        beats = [] if self._off else self._read(now_s)
        pids = {beat.rank: beat.pid for beat in beats}
        told = [] if pids == self.pids or not pids else [where_ranks_run(pids)]
        self.pids = pids
        if not beats:
            return [], []
        late = any(beat.is_late for beat in beats)
        if not late:
            self._asked.clear()
        asked = set(self._asked)
        notes = [*told, *(self._ask(beats) if late else [])]
        ranks = [self._rank(beat, with_stack=beat.pid in asked) for beat in beats]
        same = [_without_age(rank) for rank in ranks]
        soon = now_ms - self._sent_ms < SEND_EVERY_MS
        # While it hangs the server hears of it again and again.
        known = same == self._sent and now_ms - self._sent_ms < ANEW_MS
        if (soon and (same == self._sent or not late)) or (known and not late):
            return [], notes
        self._sent, self._sent_ms = same, now_ms
        return ranks, notes

    def _read(self, now_s: float) -> list[Beat]:
        newest: dict[int, Beat] = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_FILES:
                    break
                if not entry.name.startswith("beats-") or entry.name.endswith(".stack"):
                    continue
                beat = self._one(Path(entry.path), now_s)
                if beat is None:
                    continue
                other = newest.get(beat.rank)
                if other is None or beat.age_ms < other.age_ms:  # a launcher that started its ranks again
                    newest[beat.rank] = beat
        return sorted(newest.values(), key=lambda beat: beat.rank)[:_MOST_RANKS]

    def _one(self, path: Path, now_s: float) -> Beat | None:
        with contextlib.suppress(OSError):
            found = read_small(path, self._owner, limit_bytes=SIZE)
            return decode(found[1], now_s, self._timeout_s) if found is not None else None
        return None

    def _ask(self, beats: list[Beat]) -> list[str]:
        """Have each rank write its stacks, once a stall; return what the log says of it."""
        fresh = [beat for beat in beats if self._asked.get(beat.pid) != beat.count]
        if not fresh:
            return []
        self._flights.ask([beat.rank for beat in beats])
        ours = self._members()
        for beat in fresh:
            self._asked[beat.pid] = beat.count
            if beat.pid in ours and beat.signal and _catches(beat.pid, beat.signal):
                with contextlib.suppress(OSError):
                    os.kill(beat.pid, beat.signal)
        return [
            f"rank {beat.rank} has made no step for {beat.age_ms / 1000:.0f} s (limit "
            f"{(beat.limit_ms or 0) / 1000:.0f} s); the last one was {beat.step}"
            for beat in fresh
            if beat.is_late
        ]

    def _rank(self, beat: Beat, *, with_stack: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "rank": beat.rank,
            "step": beat.step,
            "count": beat.count,
            "age_ms": beat.age_ms,
            "limit_ms": beat.limit_ms,
            "alive": os.path.exists(f"/proc/{beat.pid}"),
            "computing": beat.computing,
        }
        optional: dict[str, Any] = {
            "section": beat.section,
            "step_ms": beat.step_ms,
            "compute_ms": beat.compute_ms,
            "wait_ms": beat.wait_ms,
        }
        if with_stack:
            places = self._flights.of(beat.rank)
            optional.update(state=_state(beat.pid), stack=self._stack(beat), collectives=places)
        return {**told, **{name: value for name, value in optional.items() if value}}

    def _stack(self, beat: Beat) -> str:
        path = self._folder / f"beats-{beat.rank}-{beat.pid}.stack"
        with contextlib.suppress(OSError):
            found = read_small(path, self._owner, limit_bytes=_STACK_BYTES)
            if found is not None and found[1]:
                return last_stack(found[1].decode(errors="replace"))
        return ""


def last_stack(text: str) -> str:
    """Return the innermost frames of the main thread, which is written last; without what differs between processes."""
    block = text.rpartition("(most recent call first):")[2]
    return "\n".join(line.strip() for line in block.strip().splitlines()[:20])[:_STACK_CHARACTERS]


def _without_age(rank: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rank.items() if name != "age_ms"}


def _catches(pid: int, number: int) -> bool:
    """True when the process has a handler for the signal, which would end it else."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1) if number > 0 else False


def _state(pid: int) -> str:
    return _status(pid).get("State", "")[:1]


def _status(pid: int) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}
