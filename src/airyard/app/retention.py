"""What is kept how long: a pure plan of what goes, and the executor that carries it out.

Owns: ages and caps per kind, the order of removal, the report of a dry run. Must not know: where things lie. What
a kind's removal does comes as a callback; environments and scratch lie on nodes, so even their inventory does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from airyard.core.errors import AiryardError
from airyard.core.run import RunState
from airyard.ports.blob_store import BlobStore
from airyard.ports.journal import Journal
from airyard.ports.log_store import LogStore
from airyard.ports.read_store import ReadStore, RunFilter

DAY_MS = 24 * 3600 * 1000
GIB = 1 << 30
_PAGE_RUNS = 500


class Kind(Enum):
    """What takes space. In the order of removal: a run that goes takes its log along."""

    RUNS = "runs"
    LOGS = "logs"
    CODE = "code"
    ENVIRONMENTS = "environments"
    SCRATCH = "scratch"
    JOURNAL = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long one kind is kept after its last use, and how much of it; None is without end."""

    age_ms: int | None = None
    cap_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What is kept of each kind. The journal keeps the events of ``journal.age_ms``, and all that recovery needs."""

    runs: Keep = Keep(age_ms=180 * DAY_MS)
    logs: Keep = Keep(age_ms=30 * DAY_MS, cap_bytes=50 * GIB)
    code: Keep = Keep(age_ms=30 * DAY_MS)
    environments: Keep = Keep(age_ms=30 * DAY_MS, cap_bytes=20 * GIB)
    scratch: Keep = Keep(age_ms=DAY_MS)
    journal: Keep = Keep(age_ms=180 * DAY_MS)

    def keep(self, kind: Kind) -> Keep:
        """Return the rule of one kind."""
        rule: Keep = getattr(self, kind.value)
        return rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that takes space. ``in_use``: it stays whatever its age. ``orphan``: nothing refers to it any more."""

    kind: Kind
    name: str
    bytes: int
    used_ms: int
    in_use: bool = False
    orphan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One thing that goes, and why."""

    kind: Kind
    name: str
    bytes: int
    reason: str


def plan_gc(policy: RetentionPolicy, inventory: Iterable[Item], now_ms: int) -> tuple[Removal, ...]:
    """Say what goes: first what is too old, then what was used longest ago until the rest is under the cap.

    The journal's removal is always there: what it drops is only known when it is done.
    """
    items = sorted(inventory, key=lambda item: (item.used_ms, item.name))
    removals: list[Removal] = []
    for kind in Kind:
        keep = policy.keep(kind)
        if kind is Kind.JOURNAL:
            removals += _journal(keep, now_ms)
            continue
        removals += _of_kind(kind, keep, [item for item in items if item.kind is kind], now_ms)
    return tuple(removals)


def _of_kind(kind: Kind, keep: Keep, items: list[Item], now_ms: int) -> Iterator[Removal]:
    left_bytes = sum(item.bytes for item in items)
    for item in items:
        if item.in_use:
            continue
        reason = _reason(keep, item, left_bytes, now_ms)
        if reason:
            left_bytes -= item.bytes
            yield Removal(kind=kind, name=item.name, bytes=item.bytes, reason=reason)


def _reason(keep: Keep, item: Item, left_bytes: int, now_ms: int) -> str:
    age_ms = now_ms - item.used_ms
    if item.orphan:
        return "nothing refers to it"
    if keep.age_ms is not None and age_ms > keep.age_ms:
        return f"last used {age_ms / DAY_MS:.1f} days ago; kept for {keep.age_ms / DAY_MS:g}"
    if keep.cap_bytes is not None and left_bytes > keep.cap_bytes:
        return f"{left_bytes / GIB:.2f} GiB of this kind; {keep.cap_bytes / GIB:g} GiB are kept"
    return ""


def _journal(keep: Keep, now_ms: int) -> Iterator[Removal]:
    if keep.age_ms is not None:
        yield Removal(
            kind=Kind.JOURNAL,
            name=str(now_ms - keep.age_ms),
            bytes=0,
            reason=f"events older than {keep.age_ms / DAY_MS:g} days that no kept snapshot needs",
        )


def take_inventory(
    reads: ReadStore, logs: LogStore, blobs: BlobStore, others: Iterable[Item] = ()
) -> Iterator[Item]:
    """Yield what there is: runs and their logs, code, and what the nodes reported (``others``).

    Blocks on disks. A run's last use is its end; a run without one is in use, and so is its log.
    """
    ended: dict[int, int] = {}
    for run_id, ended_ms in _ended_runs(reads):
        ended[run_id] = ended_ms
        yield Item(kind=Kind.RUNS, name=str(run_id), bytes=0, used_ms=ended_ms)
    for run_id, size in logs.runs():
        known = run_id in ended or reads.run(run_id) is not None
        yield Item(
            kind=Kind.LOGS,
            name=str(run_id),
            bytes=size,
            used_ms=ended.get(run_id, 0),
            in_use=known and run_id not in ended,
            orphan=not known,
        )
    # Blobs before references: what a submit refers to in between is then seen as referred to.
    stored = list(blobs.names())
    referred = reads.code_hashes()
    for name, size, used_ms in stored:
        yield Item(kind=Kind.CODE, name=name, bytes=size, used_ms=used_ms, in_use=name in referred)
    yield from others


def _ended_runs(reads: ReadStore) -> Iterator[tuple[int, int]]:
    before: int | None = None
    while True:
        page = reads.runs(RunFilter(states=(RunState.ENDED.value,), before=before, limit=_PAGE_RUNS))
        for row in page:
            yield row.run_id, row.ended_ms or 0
        if len(page) < _PAGE_RUNS:
            return
        before = page[-1].run_id


Remover = Callable[[str], None]
"""Removes one thing of a kind by its name. Raises: AiryardError, OSError."""


@dataclass(slots=True, kw_only=True)
class GcReport:
    """What went or, in a dry run, would go; ``failed`` says what could not and why."""

    dry_run: bool
    removed: list[Removal] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    events_dropped: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return totals per kind and each single removal."""
        kinds: dict[str, dict[str, int]] = {}
        for removal in self.removed:
            total = kinds.setdefault(removal.kind.value, {"count": 0, "bytes": 0})
            total["count"] += 1
            total["bytes"] += removal.bytes
        return {
            "dry_run": self.dry_run,
            "bytes": sum(removal.bytes for removal in self.removed),
            "kinds": kinds,
            "removals": [
                {"kind": one.kind.value, "name": one.name, "bytes": one.bytes, "reason": one.reason}
                for one in self.removed
            ],
            "failed": self.failed,
            "events_dropped": self.events_dropped,
        }


def execute(
    plan: Iterable[Removal], removers: Mapping[Kind, Remover], journal: Journal | None, *, dry_run: bool
) -> GcReport:
    """Carry a plan out, or only report it. One thing that fails does not stop the rest.

    A kind without a remover is left alone and not reported: its owner is not here. ``removers[RUNS]`` is expected
    to have the control loop remove the run, with its journalled line, and to refuse what is in use by then.
    """
    report = GcReport(dry_run=dry_run)
    for removal in plan:
        if removal.kind is Kind.JOURNAL:
            if journal is not None and not dry_run:
                _guarded(report, removal, partial(_prune, report, journal))
            continue
        remover = removers.get(removal.kind)
        if remover is None:
            continue
        if dry_run or _guarded(report, removal, remover):
            report.removed.append(removal)
    return report


def _prune(report: GcReport, journal: Journal, before_ms: str) -> None:
    report.events_dropped = journal.prune(int(before_ms))


def _guarded(report: GcReport, removal: Removal, act: Remover) -> bool:
    try:
        act(removal.name)
    except (AiryardError, OSError) as error:
        report.failed.append(f"{removal.kind.value} {removal.name}: {error}")
        return False
    return True
