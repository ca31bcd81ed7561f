"""The normalised workload: JSON round trip, canonical hash, what differs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airyard.core.workload import (
    CodeReference,
    Compute,
    Environment,
    GitState,
    Permission,
    PreemptionRules,
    Priority,
    Role,
    Timeouts,
    Tracking,
    Workload,
    first_difference,
    freeze_parameters,
    parse_accelerator,
)


def full() -> Workload:
    return Workload(
        experiment="digits",
        name="first",
        project="vision",
        tags=(("round", "1"),),
        command="",
        roles=(
            Role(name="infer", command="serve", ranks=(0,), env_variables=(("A", "role"),)),
            Role(name="train", command="train", ranks=(1,), secrets=(("TOKEN", "hub/train"),)),
        ),
        compute=replace(
            Compute.of("GPU_8xH100", nodes=2),
            pool="main",
            priority=Priority.CRITICAL,
            same_fabric=True,
            cpus=12.5,
            memory_bytes=2**36,
            shm_bytes=2**33,
        ),
        environment=Environment(version="5", ai=True, dependencies=("--no-deps", "torch==2.9")),
        env_variables=(("A", "all"), ("B", "all")),
        secrets=(("TOKEN", "hub/all"),),
        parameters_json=freeze_parameters({"z": {"lr": 0.1}, "a": [1, None, True]}),
        max_retries=0,
        attempt_timeout_s=600,
        timeouts=Timeouts(queue_s=1, environment_s=2, total_s=3),
        preemption=PreemptionRules(grace_s=5, signal="SIGUSR1", max_loss_s=1800),
        tracking=Tracking(enabled=False, run_name="r", experiment_directory="/e", artifact_location="s3://b"),
        permissions=(Permission(level="CAN_VIEW", group_name="team"),),
        usage_policy_name="lab",
        code=CodeReference(
            tree_hash="ab",
            directory_name="src",
            size_bytes=9,
            file_count=2,
            git=GitState(
                packaging_mode="plain_tar",
                base_commit="c",
                branch="main",
                dirty=True,
                diff_status="captured",
                diff_bytes=3,
                diff_hash="ef",
            ),
        ),
    )


def test_json_round_trip_keeps_everything_and_the_order_of_parameters() -> None:
    workload = full()
    again = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload
    assert hash(again) == hash(workload)
    assert list(again.parameters or {}) == ["z", "a"]


def test_git_state_of_an_earlier_version_names_no_diff() -> None:
    stored = full().to_json()
    del stored["code"]["git"]["diff_hash"]
    assert Workload.from_json(stored).diff_hash is None
    assert full().diff_hash == "ef"
    assert full().with_code(None).diff_hash is None


def test_spec_hash_ignores_git_state_and_parameter_order_but_not_the_tree() -> None:
    workload = full()
    assert workload.code is not None
    moved = workload.with_code(replace(workload.code, git=None, file_count=7))
    assert moved.spec_hash() == workload.spec_hash()
    shuffled = replace(workload, parameters_json=freeze_parameters({"a": [1, None, True], "z": {"lr": 0.1}}))
    assert shuffled.spec_hash() == workload.spec_hash()
    other = workload.with_code(replace(workload.code, tree_hash="cd"))
    assert other.spec_hash() != workload.spec_hash()
    assert first_difference(workload, other) == "code.tree_hash"
    assert first_difference(workload, moved) is None


def test_first_difference_names_the_field() -> None:
    workload = full()
    assert first_difference(workload, replace(workload, max_retries=1)) == "max_retries"
    grown = replace(workload, parameters_json=freeze_parameters({**(workload.parameters or {}), "n": 1}))
    assert first_difference(workload, grown) == "parameters.n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU_8xH100", ("H100", 8)),
        ("GPU_1xA10", ("A10", 1)),
        ("CPU", (None, 0)),
        ("GPU_16xB300", ("B300", 16)),
    ],
)
def test_parse_accelerator(text: str, expected: tuple[str | None, int]) -> None:
    assert parse_accelerator(text) == expected


@pytest.mark.parametrize("text", ["H100", "GPU_0xH100", "gpu_1xA10", "GPU_8XH100", "GPU_8x", "cpu", ""])
def test_parse_accelerator_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        parse_accelerator(text)


def test_compute_counts() -> None:
    gang = Compute.of("GPU_8xH100", nodes=2)
    assert (gang.num_accelerators, gang.local_world_size, gang.is_cpu) == (16, 8, False)
    plain = Compute.of("CPU", nodes=3)
    assert (plain.num_accelerators, plain.local_world_size, plain.is_cpu) == (3, 1, True)


def test_roles_decide_command_variables_and_secrets_of_a_node() -> None:
    workload = full()
    assert [workload.command_of(rank) for rank in (0, 1)] == ["serve", "train"]
    assert workload.env_variables_of(0) == {"A": "role", "B": "all"}
    assert workload.secrets_of(1) == {"TOKEN": "hub/train"}


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        Workload.from_json({**full().to_json(), "format": 99})
