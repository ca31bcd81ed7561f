"""What is asked of a yard in a replay, as the planner will see it: jobs, the nodes they may stand on, what never fits.

Owns: how recorded runs and machines become the planner's records. Must not know: time passing, policies, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airyard.core.scheduling.feasible import impossible
from airyard.core.scheduling.plan import NodeView, Shape, Waiting
from airyard.sim.trace.records import Trace, TraceNode, TraceRun

UNKNOWN_MODEL = "GPU"
"""The model of devices of which the source names none."""

DEFAULT_POOL = "gpu"
CPUS_PER_DEVICE = 16
MEMORY_PER_DEVICE = 128 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run as it will be replayed. ``pool`` None leaves the choice; ``checkpoints``: it writes some."""

    run: TraceRun
    accelerator: str
    model: str | None
    pool: str | None
    checkpoints: bool = True

    @property
    def arrives_ms(self) -> int:
        """When it enters the queue: it may start from then on."""
        return self.run.begin_ms

    @property
    def shape(self) -> Shape:
        """What it asks of nodes."""
        return self.waiting(queued_ms=0, expected_ms=1, likely_ms=1).shape

    def waiting(
        self,
        *,
        queued_ms: int,
        expected_ms: int,
        likely_ms: int,
        served_ms: int = 0,
        acknowledges: bool = False,
        evicted_ms: int | None = None,
        rank: int | None = None,
    ) -> Waiting:
        """Return the job as a waiting run; ``rank`` replaces that of its class."""
        run = self.run
        return Waiting(
            run_id=run.run_id,
            rank=run.priority_class.rank if rank is None else rank,
            queued_ms=queued_ms,
            accelerator=self.accelerator,
            model=self.model,
            devices_per_node=run.devices_per_node,
            nodes=run.nodes,
            project=run.project,
            owner=run.user,
            pool=self.pool,
            expected_ms=expected_ms,
            likely_ms=likely_ms,
            limit_ms=run.limit_ms,
            served_ms=served_ms,
            acknowledges=acknowledges,
            evicted_ms=evicted_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLarge:
    """A job that would not fit the yard even if it were empty, and why."""

    job: Job
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The jobs in order of arrival, the nodes, and what was left out because it can never start."""

    jobs: tuple[Job, ...]
    nodes: tuple[NodeView, ...]
    too_large: tuple[TooLarge, ...] = ()

    @property
    def pools(self) -> tuple[str, ...]:
        """The names of the pools, in order."""
        return tuple(sorted({node.pool for node in self.nodes}))

    def devices(self, pool: str | None = None) -> int:
        """Return the devices of the yard, or of one pool."""
        return sum(len(node.devices) for node in self.nodes if pool is None or node.pool == pool)


def even_nodes(devices: int, per_node: int, *, pool: str = DEFAULT_POOL) -> tuple[NodeView, ...]:
    """Return nodes of one type that have so many devices together; the last one has what is left over."""
    whole, rest = divmod(devices, per_node)
    counts = [per_node] * whole + ([rest] if rest else [])
    return tuple(
        _view(
            TraceNode(
                name=f"n{number}",
                pool=pool,
                devices=count,
                model=None,
                cpus=count * CPUS_PER_DEVICE,
                memory_bytes=count * MEMORY_PER_DEVICE,
            )
        )
        for number, count in enumerate(counts, start=1)
    )


def nodes_of(nodes: Iterable[TraceNode]) -> tuple[NodeView, ...]:
    """Return a recorded yard's nodes, without those that were down when it was recorded."""
    return tuple(_view(node) for node in nodes if node.usable)


def _view(node: TraceNode) -> NodeView:
    model = node.model or UNKNOWN_MODEL
    return NodeView(
        name=node.name,
        machine=node.name,
        accelerator=f"GPU_{node.devices}x{model}",
        model=model,
        pool=node.pool,
        total=node.devices,
        devices=tuple(range(node.devices)),
        cpus=float(node.cpus),
        memory_bytes=node.memory_bytes,
        alive=True,
        cordoned=False,
        simulated=True,
        fabric=node.labels.get("fabric", ""),
        rack=node.labels.get("rack", ""),
    )


def demand_of(trace: Trace, nodes: Sequence[NodeView], *, pool: str | None = None) -> Demand:
    """Return what a trace asks of these nodes; with ``pool`` every run goes there, whatever the trace says."""
    models: Mapping[str, str | None] = {node.pool: node.model for node in nodes}
    jobs = []
    for run in trace.runs:
        model = models.get(pool or run.pool) or UNKNOWN_MODEL
        jobs.append(
            Job(
                run=run,
                accelerator=f"GPU_{run.devices_per_node}x{model}",
                model=model,
                pool=pool or run.pool,
            )
        )
    return sorted_out(jobs, nodes)


def sorted_out(jobs: Iterable[Job], nodes: Sequence[NodeView]) -> Demand:
    """Return the jobs in order of arrival, those apart that can never start on these nodes."""
    verdicts: dict[Shape, str | None] = {}
    fitting, too_large = [], []
    for job in sorted(jobs, key=lambda one: (one.arrives_ms, one.run.run_id)):
        shape = job.shape
        if shape not in verdicts:
            never = impossible(
                [(node, 1) for node in nodes], job.waiting(queued_ms=0, expected_ms=1, likely_ms=1)
            )
            verdicts[shape] = never.message if never is not None else None
        why = verdicts[shape]
        if why is None:
            fitting.append(job)
        else:
            too_large.append(TooLarge(job=job, why=why))
    return Demand(jobs=tuple(fitting), nodes=tuple(nodes), too_large=tuple(too_large))
