"""Reads the files that Slurm's commands printed into one trace.

Owns: telling the files apart, and the order in which they are put together. Must not know: their forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

from airyard.core.workload import Priority
from airyard.sim.slurm import associations, nodes, qos, sacct, topology
from airyard.sim.slurm.jobs import join
from airyard.sim.slurm.pools import Pools, partition_of
from airyard.sim.slurm.runs import PoolOf, trace_runs
from airyard.sim.trace.lines import read_lines
from airyard.sim.trace.records import Trace, TraceProject, TraceYard
from airyard.sim.trace.refusal import Place, refused, shown
from airyard.sim.trace.tally import Tally

_T = TypeVar("_T")


class Kind(Enum):
    """What a file holds; the value is the command that prints it."""

    JOBS = sacct.COMMAND
    NODES = nodes.COMMAND
    TOPOLOGY = topology.COMMAND
    ASSOCIATIONS = associations.COMMAND
    QOS = qos.COMMAND


def read_slurm(jobs: Path, more: Sequence[Path] = ()) -> Trace:
    """Read a trace: the output of sacct, and of other commands in any order; each file says itself what it is.

    Without nodes a pool is a partition and the yard is empty; without associations there are no projects; without
    QOS every run is NORMAL. Memory: about 1 KB for each job.
    Raises: UserError for a file that is malformed, of no known kind, or of a kind that is there already.
    """
    files = _sorted_by_kind(jobs, more)
    tally = Tally()
    labels = _read(files, Kind.TOPOLOGY, topology.read_topology)
    found = _read(files, Kind.NODES, nodes.read_nodes)
    pools = Pools(found, labels, tally) if found is not None else None
    if pools is not None and not pools.nodes:
        problem = "has no node with whole GPUs in a partition"
        raise refused(
            Place(source=str(files[Kind.NODES])), problem, fix=f"Give the output of `{nodes.COMMAND}`."
        )
    projects = _read(
        files, Kind.ASSOCIATIONS, lambda lines, name: associations.read_projects(lines, name, tally)
    )
    classes = _read(files, Kind.QOS, lambda lines, name: qos.read_qos(lines, name, tally))
    runs = join(sacct.read_starts(read_lines(jobs), str(jobs), tally), str(jobs), tally)
    return _trace(runs, pools, projects, classes, tally, str(jobs))


def _trace(
    jobs: list[Sequence[sacct.Start]],
    pools: Pools | None,
    projects: tuple[TraceProject, ...] | None,
    classes: Mapping[str, Priority] | None,
    tally: Tally,
    source: str,
) -> Trace:
    pool_of: PoolOf = pools.pool_of if pools is not None else partition_of
    runs = trace_runs(jobs, pool_of, classes, tally)
    if not runs:
        problem = "has no job in a partition of the nodes given"
        raise refused(Place(source=source), problem, fix="Give the nodes of the same cluster, or no nodes.")
    yard = TraceYard(nodes=tuple(pools.nodes) if pools is not None else (), projects=projects or ())
    return Trace(runs=runs, yard=yard, not_carried=tally.records())


def _read(files: Mapping[Kind, Path], kind: Kind, read: Callable[[Iterator[str], str], _T]) -> _T | None:
    path = files.get(kind)
    return read(read_lines(path), str(path)) if path is not None else None


def _sorted_by_kind(jobs: Path, more: Sequence[Path]) -> dict[Kind, Path]:
    files = {Kind.JOBS: jobs}
    for path in more:
        kind = _kind(path)
        if kind in files:
            problem = f"is of the same kind as {files[kind]}: both are from `{kind.value}`"
            raise refused(Place(source=str(path)), problem, fix="Give one of them.")
        files[kind] = path
    return files


def _kind(path: Path) -> Kind:
    """Tell a file by its first line that is not blank."""
    head = next((line.strip() for line in read_lines(path) if line.strip()), "")
    if head.startswith("NodeName="):
        return Kind.NODES
    if head.startswith(("SwitchName=", "BlockName=")):
        return Kind.TOPOLOGY
    words = set(head.lower().split("|"))
    if {"account", "user"} <= words and "jobid" not in words:
        return Kind.ASSOCIATIONS
    if {"name", "preempt"} <= words:
        return Kind.QOS
    if "jobid" in words:
        return Kind.JOBS
    kinds = "; ".join(f"`{kind.value}`" for kind in list(Kind)[1:])
    problem = f"is not known: it begins with {shown(head)}" if head else "is empty"
    raise refused(Place(source=str(path)), problem, fix=f"Give the output of any of: {kinds}.")
