"""Runs, events and rows for tests of journals: small, real records that follow each other legally."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airyard.core import codec
from airyard.core.cluster import Device, Machine, Node
from airyard.core.events import (
    EpochBegan,
    Event,
    MachineJoined,
    Recorded,
    RunArchived,
    RunEnded,
    RunSubmitted,
)
from airyard.core.run import Outcome, Run, RunState
from airyard.core.state import ClusterState
from airyard.core.workload import Compute, Workload
from airyard.ports.journal import Changes, RunRow


def run(run_id: int, *, name: str = "first", owner: str = "ada", at_ms: int = 1000) -> Run:
    """Return a queued run."""
    workload = Workload(
        experiment="digits",
        name=name,
        command="true",
        compute=Compute.of("CPU"),
        tags=(("round", str(run_id % 3)),),
    )
    return Run(
        run_id=run_id,
        name=name,
        owner=owner,
        project="default",
        workload=workload,
        spec_hash="0" * 8,
        idempotency_key=f"key-{run_id}",
        task_key="main",
        state=RunState.QUEUED,
        submitted_ms=at_ms,
        queued_ms=at_ms,
    )


def row_of(one: Run, *, code_hash: str | None = None) -> RunRow:
    """Return the row that the read tables hold for a run."""
    return RunRow(
        run_id=one.run_id,
        version=one.version,
        owner=one.owner,
        project=one.project,
        name=one.name,
        experiment=one.workload.experiment,
        state=one.state.value,
        status=one.state.value if one.outcome is None else one.outcome.value,
        accelerator=one.workload.compute.accelerator,
        submitted_ms=one.submitted_ms,
        ended_ms=one.ended_ms,
        tags=one.workload.tags,
        code_hash=code_hash,
        record=codec.encode(one),
    )


def machine_joined(name: str = "host") -> MachineJoined:
    """Return a machine with one node of two devices."""
    devices = tuple(Device(index=index, uuid=f"GPU-{index}") for index in range(2))
    node = Node(
        name=name,
        machine=name,
        accelerator="GPU_2xA10",
        model="A10",
        devices=devices,
        cpus=8.0,
        memory_bytes=1 << 30,
    )
    return MachineJoined(machine=Machine(name=name, boot_id="b", address="127.0.0.1"), nodes=(node,))


@dataclass(slots=True, kw_only=True)
class Writer:
    """Stamps events, applies them and says what the read tables must become, as the control loop does."""

    state: ClusterState = field(default_factory=ClusterState)
    epoch: int = 1
    at_ms: int = 1000

    def take(self, *events: Event) -> tuple[list[Recorded], Changes]:
        """Apply events; return what ``append`` wants."""
        recorded = []
        touched: dict[int, Run] = {}
        for event in events:
            one = Recorded(seq=self.state.seq + 1, at_ms=self.at_ms, epoch=self.epoch, event=event)
            self.state.apply(one)
            recorded.append(one)
            run_id = event.run.run_id if isinstance(event, RunSubmitted) else getattr(event, "run_id", None)
            if run_id in self.state.runs:
                touched[run_id] = self.state.runs[run_id]
        nodes = {name: codec.encode(node) for name, node in self.state.nodes.items()}
        joined = any(isinstance(event, MachineJoined) for event in events)
        return recorded, Changes(
            runs=tuple(row_of(touched[key]) for key in touched), nodes=nodes if joined else {}
        )

    def story(self, count: int) -> Iterator[tuple[list[Recorded], Changes]]:
        """Yield transactions: an epoch, a machine, then runs that are submitted, ended and archived."""
        yield self.take(EpochBegan(epoch=self.epoch, version="test"), machine_joined())
        for _ in range(count):
            run_id = self.state.next_run_id
            yield self.take(RunSubmitted(run=run(run_id, at_ms=self.at_ms)))
            yield self.take(RunEnded(run_id=run_id, outcome=Outcome.CANCELLED, cause=None, failure=None))
            if run_id % 2:
                yield self.take(RunArchived(run_id=run_id))
