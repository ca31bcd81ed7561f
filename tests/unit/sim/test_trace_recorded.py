"""What a yard's server says of its runs and nodes, as demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airyard.core.errors import UserError
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy
from airyard.core.policy_json import policy_to_json
from airyard.core.workload import Priority
from airyard.sim.trace.recorded import milliseconds, seen

DAY = "2026-03-01"
DECLARED = Policy(
    pools=(
        PoolPolicy(name="h100", accelerator="GPU_8xH100"),
        PoolPolicy(name="empty", accelerator="GPU_1xA10"),
    ),
    projects=(ProjectPolicy(name="nlp"),),
)


def node(name: str, accelerator: str = "GPU_8xH100", devices: int = 8, **more: Any) -> dict[str, Any]:
    """A node's document."""
    return {
        "name": name,
        "machine": name,
        "accelerator": accelerator,
        "devices": [{"index": index} for index in range(devices)],
        "cpus": 64.0,
        "memory_bytes": 1 << 40,
        "alive": True,
        "cordoned": False,
        "simulated": False,
        "labels": {"fabric": "f1"},
        "pool": "h100" if devices > 1 else accelerator,
        **more,
    }


def stint(begun: str | None, ended: str | None, checkpoint: object = None) -> dict[str, Any]:
    """An attempt's document; times of the day."""
    return {
        "started_at": begun and f"{DAY}T{begun}Z",
        "ended_at": ended and f"{DAY}T{ended}Z",
        "checkpoint": checkpoint,
    }


def document(run_id: int, *stints: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run's document, submitted at 08:00."""
    return {
        "run_id": run_id,
        "name": f"run-{run_id}",
        "experiment": "bert",
        "owner": "ada",
        "project": "nlp",
        "accelerator": "GPU_8xH100",
        "devices_per_node": 8,
        "nodes": 2,
        "priority": "NORMAL",
        "pool": None,
        "timeout_s": None,
        "begin_at": None,
        "submitted_at": f"{DAY}T08:00:00.000Z",
        "attempts": list(stints),
        **more,
    }


NODES = [node("h1"), node("h2"), node("h3", cordoned=True), node("host-cpu-0", "CPU", 1)]


def yard(
    *pages: Sequence[dict[str, Any]], since: str = "00:00:00", nodes: Sequence[dict[str, Any]] = NODES
) -> Any:
    """Everything seen since a time of the day."""
    return seen(
        nodes, iter(pages), policy_to_json(DECLARED), since_ms=milliseconds(f"{DAY}T{since}Z"), days=30
    )


def test_a_run_lasted_as_long_as_all_its_attempts_ran() -> None:
    found = yard(
        [
            document(
                7,
                stint("09:00:00", "10:30:00", {"step": 5}),
                stint(None, "10:31:00"),
                stint("11:00:00", "11:30:00"),
                begin_at=f"{DAY}T08:30:00Z",
                timeout_s=7200,
                priority="CRITICAL",
                pool="h100",
            )
        ]
    )
    job = found.demand.jobs[0]
    run = job.run
    assert run.duration_ms == 2 * 3_600_000
    assert (run.devices_per_node, run.nodes, run.project, run.user, run.experiment) == (
        8,
        2,
        "nlp",
        "ada",
        "bert",
    )
    assert run.begin_ms - run.submit_ms == 1_800_000
    assert (run.limit_ms, run.priority_class, run.starts) == (7_200_000, Priority.CRITICAL, 2)
    assert run.really_waited_ms == 1_800_000
    assert (job.accelerator, job.model, job.pool, job.checkpoints) == ("GPU_8xH100", "H100", "h100", True)


def test_what_is_left_out_is_said() -> None:
    found = yard(
        [
            document(3, stint("09:00:00", "10:00:00")),
            document(2),
            document(1, stint("09:00:00", "10:00:00"), accelerator="CPU", devices_per_node=0),
        ]
    )
    assert [job.run.run_id for job in found.demand.jobs] == [3]
    assert found.demand.jobs[0].checkpoints is False
    assert found.notes == (
        "Left out: 1 run that ended without ever running.",
        "Left out: 1 run on CPU slots.",
        "Nodes that take no runs now take none here: h3 (1 of 3).",
    )
    assert [pool.name for pool in found.policy.pools] == ["h100"], "a pool without nodes is nothing to replay"
    assert found.policy.projects == DECLARED.projects


def test_a_yard_of_cpu_slots_alone_is_replayed_as_such() -> None:
    slots = [node("host-cpu-0", "CPU", 1), node("host-cpu-1", "CPU", 1)]
    one = document(1, stint("09:00:00", "10:00:00"), accelerator="CPU", devices_per_node=0, nodes=1)
    found = yard([one], nodes=slots)
    assert found.demand.jobs[0].run.devices == 1
    assert found.demand.devices() == 2


def test_no_page_older_than_asked_for_is_fetched() -> None:
    def pages() -> Iterator[list[dict[str, Any]]]:
        yield [document(3, stint("09:00:00", "10:00:00"))]
        yield [document(2, stint("01:00:00", "02:00:00"), submitted_at=f"{DAY}T01:00:00Z")]
        raise AssertionError("a page too many was asked for")

    since_ms = milliseconds(f"{DAY}T07:00:00Z")
    found = seen(NODES, pages(), policy_to_json(Policy()), since_ms=since_ms, days=30)
    assert [job.run.run_id for job in found.demand.jobs] == [3]


def test_nothing_to_replay_is_refused_with_what_to_do() -> None:
    with pytest.raises(UserError) as caught:
        yard([document(1)])
    assert caught.value.code == "NO_DEMAND"
    assert "--trace" in (caught.value.fix.text if caught.value.fix else "")
