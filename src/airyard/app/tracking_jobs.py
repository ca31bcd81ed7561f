"""What of a run goes into its MLflow runs: names, parameters, tags, the end.

Owns: the mapping from records to tracked facts. Must not know: MLflow's API, threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airyard.core.run import Attempt, Outcome, Run
from airyard.ports.tracker import OpenRun, TrackedStatus

MAX_PARAMETERS = 500


def open_request(run: Run, attempt: Attempt, *, yard: str) -> OpenRun:
    """Return the request that makes an attempt's tracked run. ``yard`` keeps keys of several yards apart."""
    workload = run.workload
    tracking = workload.tracking
    directory = (tracking.experiment_directory or "").rstrip("/")
    return OpenRun(
        key=f"{yard}/{attempt.key}",
        experiment=f"{directory}/{workload.experiment}" if directory else workload.experiment,
        artifact_location=tracking.artifact_location,
        run_name=tracking.run_name or run.name,
        start_ms=attempt.placed_ms,
        user=run.owner,
        params=tuple(_parameters(run)),
        tags=tuple(_tags(run, attempt)),
    )


def _parameters(run: Run) -> Iterator[tuple[str, str]]:
    compute = run.workload.compute
    yield "accelerator_type", compute.accelerator
    yield "num_nodes", str(compute.nodes)
    yield "num_accelerators", str(compute.num_accelerators)
    flat = list(flatten(run.workload.parameters or {}))
    yield from flat[:MAX_PARAMETERS]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of a parameter tree as dotted names and text; lists are leaves of their items' positions."""
    for name, value in tree.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from flatten(value, path)
        elif isinstance(value, list):
            yield from flatten({str(index): item for index, item in enumerate(value)}, path)
        else:
            yield path, "null" if value is None else str(value)


def _tags(run: Run, attempt: Attempt) -> Iterator[tuple[str, str]]:
    yield "airyard.run_id", str(run.run_id)
    yield "airyard.attempt", str(attempt.number)
    yield "airyard.project", run.project
    yield "airyard.nodes", ",".join(member.node for member in attempt.members)
    if run.simulated:
        yield "airyard.simulated", "true"
    yield from ((f"tag.{name}", value) for name, value in run.workload.tags)
    code = run.workload.code
    if code is None:
        return
    yield "airyard.code.tree_hash", code.tree_hash
    if code.git is not None:
        known = {
            "mlflow.source.git.commit": code.git.base_commit,
            "mlflow.source.git.branch": code.git.branch,
            "mlflow.source.git.repoURL": code.git.repo_url,
            "airyard.git.dirty": str(code.git.dirty).lower(),
            "airyard.git.diff_status": code.git.diff_status,
        }
        yield from ((name, value) for name, value in known.items() if value)


_STATUS = {Outcome.SUCCEEDED: TrackedStatus.FINISHED, Outcome.CANCELLED: TrackedStatus.KILLED,
           Outcome.PREEMPTED: TrackedStatus.KILLED}  # fmt: skip


def end_status(attempt: Attempt) -> TrackedStatus:
    """Return MLflow's word for an attempt's outcome."""
    return _STATUS.get(attempt.outcome, TrackedStatus.FAILED) if attempt.outcome else TrackedStatus.FAILED


def end_tags(attempt: Attempt) -> tuple[tuple[str, str], ...]:
    """Return the tags that say how an attempt ended."""
    tags = [("airyard.outcome", attempt.outcome.value if attempt.outcome else "")]
    if attempt.cause is not None:
        tags.append(("airyard.cause", attempt.cause.value))
    if attempt.failure is not None:
        tags.append(("airyard.failure", attempt.failure.message))
        if attempt.failure.node is not None:
            tags.append(("airyard.failed_node", attempt.failure.node))
    return tuple(tags)
