"""The demand that a live yard has seen: what its server says of ended runs and of nodes, as jobs and nodes.

Owns: how documents of the native API become the records of a replay. Must not know: how they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from airyard.core.errors import UserError
from airyard.core.policy import Policy
from airyard.core.policy_json import policy_from_json
from airyard.core.scheduling.plan import NodeView
from airyard.core.workload import CPU, Priority, parse_accelerator
from airyard.sim.trace.demand import Demand, Job, sorted_out
from airyard.sim.trace.records import TraceRun
from airyard.sim.trace.report import counted
from airyard.spec.yard import load_yard

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Jobs in the order of their submit, and how many runs were left out: ended without ever running, CPU slots."""

    jobs: tuple[Job, ...]
    never_ran: int
    on_cpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a yard has seen of late. ``notes`` say what was left out."""

    demand: Demand
    policy: Policy
    source: str
    notes: tuple[str, ...]


def seen(
    nodes: Sequence[Document],
    pages: Iterable[Sequence[Document]],
    policy: Document,
    *,
    since_ms: int,
    days: int,
    file: Path | None = None,
    first: int | None = None,
) -> Seen:
    """Put together what a yard's server says. ``pages`` of ended runs come newest first; older ones are not asked for.

    ``file`` is a yard.yaml that replaces the declared ``policy``; ``first`` keeps so many of the oldest runs.
    Raises: UserError when there is nothing to replay.
    """
    views = nodes_from(nodes)
    recorded = jobs_from(_since(pages, since_ms), with_cpus=all(view.model is None for view in views))
    jobs = recorded.jobs if first is None else recorded.jobs[:first]
    demand = sorted_out(jobs, views)
    if not demand.jobs:
        raise UserError(
            f"There is nothing to replay: of the runs submitted in the last {counted(days, 'day')}, {len(jobs)} have "
            f"run and ended on devices like those of this yard's nodes ({len(views)} now), and none of them fits.",
            code="NO_DEMAND",
            fix="Look further back with --days, or replay a trace with --trace FILE --gpus N.",
        )
    declared = load_yard(file).policy if file is not None else policy_from_json(policy)
    notes = []
    if recorded.never_ran:
        notes.append(f"Left out: {counted(recorded.never_ran, 'run')} that ended without ever running.")
    if recorded.on_cpus:
        notes.append(f"Left out: {counted(recorded.on_cpus, 'run')} on CPU slots.")
    closed = [view.name for view in views if not view.alive or view.cordoned]
    if closed:
        more = ", …" if len(closed) > 5 else ""
        names = ", ".join(closed[:5]) + more
        notes.append(f"Nodes that take no runs now take none here: {names} ({len(closed)} of {len(views)}).")
    if file is None:
        declared = replace(
            declared, pools=tuple(pool for pool in declared.pools if pool.name in demand.pools)
        )
    return Seen(
        demand=demand, policy=declared, source=f"the last {days} days of this yard", notes=tuple(notes)
    )


def _since(pages: Iterable[Sequence[Document]], since_ms: int) -> list[Document]:
    found: list[Document] = []
    for page in pages:
        young = [document for document in page if milliseconds(document["submitted_at"]) >= since_ms]
        found += young
        if len(young) < len(page):
            break
    return found


def milliseconds(text: str) -> int:
    """Read a time of the API as Unix milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def nodes_from(documents: Iterable[Document]) -> tuple[NodeView, ...]:
    """Return the nodes that have accelerators; of a yard of CPU slots alone, those."""
    views = [_node(document) for document in documents]
    return tuple(view for view in views if view.model is not None) or tuple(views)


def _node(document: Document) -> NodeView:
    labels = document.get("labels") or {}
    devices = document["devices"]
    accelerator = document["accelerator"]
    return NodeView(
        name=document["name"],
        machine=document["machine"],
        accelerator=accelerator,
        model=parse_accelerator(accelerator)[0],
        pool=document.get("pool") or accelerator,
        total=len(devices),
        devices=tuple(int(device["index"]) for device in devices),
        cpus=float(document["cpus"]),
        memory_bytes=int(document["memory_bytes"]),
        alive=bool(document["alive"]),
        cordoned=bool(document["cordoned"]),
        simulated=bool(document["simulated"]),
        fabric=labels.get("fabric", ""),
        rack=labels.get("rack", ""),
    )


def jobs_from(documents: Iterable[Document], *, with_cpus: bool) -> Recorded:
    """Return a job for each ended run that ever ran; of those on CPU slots only ``with_cpus``."""
    jobs: list[Job] = []
    never_ran = on_cpus = 0
    for document in sorted(documents, key=lambda one: int(one["run_id"])):
        if document["accelerator"] == CPU and not with_cpus:
            on_cpus += 1
            continue
        job = _job(document)
        if job is None:
            never_ran += 1
        else:
            jobs.append(job)
    return Recorded(jobs=tuple(jobs), never_ran=never_ran, on_cpus=on_cpus)


def _job(document: Document) -> Job | None:
    stints = [
        (milliseconds(attempt["started_at"]), milliseconds(attempt["ended_at"]))
        for attempt in document["attempts"]
        if attempt["started_at"] and attempt["ended_at"]
    ]
    if not stints:
        return None
    submit_ms = milliseconds(document["submitted_at"])
    begin = document.get("begin_at")
    begin_ms = max(submit_ms, milliseconds(begin)) if begin else submit_ms
    timeout_s = document.get("timeout_s")
    first_ms, last_ms = stints[0][0], stints[-1][1]
    run = TraceRun(
        run_id=int(document["run_id"]),
        submit_ms=submit_ms,
        begin_ms=begin_ms,
        duration_ms=max(sum(to_ms - from_ms for from_ms, to_ms in stints), 1),
        devices_per_node=max(int(document["devices_per_node"]), 1),
        nodes=int(document["nodes"]),
        project=document["project"],
        user=document["owner"],
        experiment=document["experiment"],
        pool=document.get("pool") or "",
        limit_ms=int(timeout_s) * 1000 if timeout_s else None,
        priority_class=Priority(document["priority"]),
        really_waited_ms=max(first_ms - begin_ms, 0),
        really_started_ms=first_ms,
        really_ended_ms=last_ms,
        starts=len(stints),
        name=document["name"],
    )
    return Job(
        run=run,
        accelerator=document["accelerator"],
        model=parse_accelerator(document["accelerator"])[0],
        pool=document.get("pool") or None,
        checkpoints=any(attempt.get("checkpoint") for attempt in document["attempts"]),
    )
