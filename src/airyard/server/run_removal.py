"""What is left of a run after its record is gone: logs, output, tracked runs, the unshared code snapshot.

Owns: the order of their removal. Must not know: whether the run may be removed. Blocks.
"""

from __future__ import annotations

import shutil
from typing import Any

import structlog

from airyard.core.errors import AiryardError
from airyard.core.run import Run
from airyard.server.context import ServerContext

_log = structlog.get_logger("airyard.removal")


def remove_remains(context: ServerContext, run: Run) -> dict[str, Any]:
    """Remove what the run left behind; return what went and what could not.

    The journal has the removal already, so a part that fails here is left to retention.
    """
    left: list[str] = []
    freed = context.logs.delete_run(run.run_id)
    shutil.rmtree(context.home / "node" / "runs" / str(run.run_id), ignore_errors=True)
    for attempt in run.attempts:
        context.steps.drop(attempt.key)
        for member in attempt.members:
            context.progress.pop(attempt.member_key(member.index), None)
            context.clock_offsets_ns.pop(attempt.member_key(member.index), None)
            context.older_runners.discard(attempt.member_key(member.index))
        if attempt.tracking.run_id:
            try:
                context.tracker.delete_run(attempt.tracking.run_id)
            except AiryardError as error:
                _log.warning("tracked_run_stays", run=run.run_id, error=error.message)
                left.append(f"tracked run {attempt.tracking.run_id}: {error.message}")
    code = run.workload.code
    if code is not None and code.tree_hash not in context.reads.code_hashes():
        context.blobs.delete(code.tree_hash)
    return {"log_bytes": freed, "left": left}
