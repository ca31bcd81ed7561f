"""What the read tables hold of runs and nodes.

Owns: the projection of records into rows, and the one word that people see as a run's status.
Must not know: SQL, HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airyard.core.codec import encode
from airyard.core.run import AttemptState, Run, RunState
from airyard.core.state import ClusterState
from airyard.ports.journal import Changes, RunRow

_ACTIVE_STATUS = {
    AttemptState.PLACED: "PREPARING",
    AttemptState.PREPARING: "PREPARING",
    AttemptState.RUNNING: "RUNNING",
    AttemptState.STOPPING: "STOPPING",
    AttemptState.ENDED: "STOPPING",
}


def status_of(run: Run) -> str:
    """Return QUEUED, PREPARING, RUNNING or STOPPING; of an ended run its outcome."""
    if run.state is RunState.ENDED and run.outcome is not None:
        return run.outcome.value
    if run.state is RunState.QUEUED or run.attempt is None:
        return "QUEUED"
    if run.attempt.gone:
        return _ACTIVE_STATUS[AttemptState.STOPPING]
    return _ACTIVE_STATUS[run.attempt.state]


def run_row(run: Run) -> RunRow:
    """Project one run."""
    return RunRow(
        run_id=run.run_id,
        version=run.version,
        owner=run.owner,
        project=run.project,
        name=run.name,
        experiment=run.workload.experiment,
        state=run.state.value,
        status=status_of(run),
        accelerator=run.workload.compute.accelerator,
        submitted_ms=run.submitted_ms,
        ended_ms=run.ended_ms,
        tags=run.workload.tags,
        code_hash=run.workload.code.tree_hash if run.workload.code else None,
        record=encode(run),
    )


def node_rows(before: ClusterState, after: ClusterState) -> dict[str, Mapping[str, Any]]:
    """Project the nodes that changed, or whose machine did; each row carries its machine."""
    rows: dict[str, Mapping[str, Any]] = {}
    if before.nodes == after.nodes and before.machines == after.machines:
        return rows
    for node in after.nodes.values():
        machine = after.machines.get(node.machine)
        if before.nodes.get(node.name) != node or before.machines.get(node.machine) != machine:
            rows[node.name] = {"node": encode(node), "machine": encode(machine) if machine else None}
    return rows


def changes_between(
    before: ClusterState, after: ClusterState, touched: Iterable[int] | None, removed: tuple[int, ...]
) -> Changes:
    """Project what a batch changed, the last form of runs that left memory in it included.

    ``touched`` are the runs that its events are about; None: any run may have changed. Cost: as many records as it
    names, compared by identity, and the nodes once.
    """
    ids = {**after.runs, **after.departed} if touched is None else dict.fromkeys(touched)
    present = ((run_id, after.runs.get(run_id) or after.departed.get(run_id)) for run_id in ids)
    runs = tuple(
        run_row(run) for run_id, run in present if run is not None and before.runs.get(run_id) is not run
    )
    return Changes(
        runs=runs,
        removed_runs=removed,
        nodes=node_rows(before, after),
        removed_nodes=tuple(name for name in before.nodes if name not in after.nodes),
    )
