"""Keeps space and truth in order: retention by the hour and on request, verification of the journal.

Owns: when it happens, and which remover serves which kind. Must not know: what is kept how long.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import structlog

from airyard.app import retention
from airyard.app.run_lookup import run_from
from airyard.app.verify import verify
from airyard.core.commands import RemoveRun
from airyard.core.errors import AiryardError
from airyard.ports.read_store import RunFilter
from airyard.server import sources
from airyard.server.context import ServerContext
from airyard.server.run_removal import remove_remains
from airyard.server.strangers import set_aside

EVERY_S = 3600.0
FIRST_AFTER_S = 300.0
BY = "retention"
PAGE_RUNS = 500

_log = structlog.get_logger("airyard.housekeeping")


def collect_garbage(context: ServerContext, *, dry_run: bool) -> dict[str, Any]:
    """Remove what is kept no longer, or say what would go. Blocks on disks."""
    inventory = retention.take_inventory(context.reads, context.logs, context.blobs)
    plan = retention.plan_gc(context.retention, inventory, context.clock.now_ms())
    removers: dict[retention.Kind, retention.Remover] = {
        retention.Kind.RUNS: lambda name: _remove_run(context, int(name)),
        retention.Kind.LOGS: lambda name: _remove_logs(context, int(name)),
        retention.Kind.CODE: context.blobs.delete,
    }
    report = retention.execute(plan, removers, context.journal, dry_run=dry_run)
    found = report.to_json()
    found["sources_removed"] = 0 if dry_run else _sweep_sources(context)
    keep = context.retention.environments
    found["environments"] = context.tidy_nodes(keep.age_ms, keep.cap_bytes, dry_run)
    return found


def _remove_run(context: ServerContext, run_id: int) -> None:
    row = context.reads.run(run_id)
    context.ask(RemoveRun(run_id=run_id, by=BY)).result(timeout=60)
    if row is not None:
        remove_remains(context, run_from(row))


def _remove_logs(context: ServerContext, run_id: int) -> None:
    context.logs.delete_run(run_id)


def _sweep_sources(context: ServerContext) -> int:
    """Remove workload files and diffs that no run has; young ones may belong to a submit that is under way."""
    folder = context.home / sources.FOLDER
    unused = sources.names(folder, before_ms=context.clock.now_ms() - retention.DAY_MS)
    before: int | None = None
    while unused and (page := context.reads.runs(RunFilter(before=before, limit=PAGE_RUNS))):
        for row in page:
            unused -= _sources_of(row.record)
        before = page[-1].run_id
    for name in unused:
        sources.remove(folder, name)
    return len(unused)


def _sources_of(record: Mapping[str, Any]) -> set[str]:
    """Return the file names of what a run was submitted from; read from the stored form, as there may be many."""
    code = record["workload"].get("code") or {}
    git = code.get("git") or {}
    named = {sources.Kind.WORKLOAD: record.get("source_hash"), sources.Kind.DIFF: git.get("diff_hash")}
    return {sources.file_name(kind, digest) for kind, digest in named.items() if digest}


def verify_journal(context: ServerContext) -> dict[str, Any]:
    """Replay the journal and compare it with memory, snapshots and read tables. Blocks."""
    memory = context.loop.query(lambda control: control.state.copy()).result(timeout=60)
    return verify(context.journal, context.reads, memory.to_json()).to_json()


class Housekeeper:
    """Collects garbage every hour on a thread of its own."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Set aside what no run of the journal owns, then begin; the first round comes after a few minutes.

        To be called before runs can be submitted.
        """
        context = self._context
        next_run_id = context.loop.query(lambda control: control.state.next_run_id).result(timeout=60)
        moved = set_aside(context.home, next_run_id=next_run_id, now_ms=context.clock.now_ms())
        if moved:
            _log.warning("set_aside", next_run_id=next_run_id, folders=[str(path) for path in moved])
        self._thread.start()

    def stop(self) -> None:
        """End after the step in progress."""
        self._stopping.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        wait_s = FIRST_AFTER_S
        while not self._stopping.wait(wait_s):
            wait_s = EVERY_S
            try:
                found = collect_garbage(self._context, dry_run=False)
                _log.info("garbage_collected", bytes=found["bytes"], failed=found["failed"])
            except AiryardError as error:
                _log.warning("garbage_not_collected", error=error.message)
            except Exception:
                # The next round may go better; the server must not lose its housekeeping to one bad hour.
                _log.exception("garbage_collection_broke")
