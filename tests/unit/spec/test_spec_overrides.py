"""`--override`: paths checked against the fields, values read as YAML, blocks created."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.workload import Workload
from airyard.spec.load import Loaded, load_text
from airyard.spec.problems import WorkloadInvalid

BASE = """\
experiment_name: digits
compute: {accelerator_type: GPU_8xH100, num_accelerators: 8}
command: python train.py
parameters: {lr: 0.1, layers: [{width: 8}, {width: 16}]}
"""


def loaded(tmp_path: Path, *overrides: str, text: str = BASE) -> Loaded:
    return load_text(text, folder=tmp_path, overrides=overrides)


def workload(tmp_path: Path, *overrides: str) -> Workload:
    return loaded(tmp_path, *overrides).workload


def refused(tmp_path: Path, *overrides: str) -> str:
    with pytest.raises(WorkloadInvalid) as caught:
        loaded(tmp_path, *overrides)
    return caught.value.message


def test_values_are_yaml(tmp_path: Path) -> None:
    assert workload(tmp_path, "compute.num_accelerators=16").compute.nodes == 2
    assert workload(tmp_path, "max_retries=0", "max_retries=5").max_retries == 5
    assert workload(tmp_path, "tracking=off").tracking.enabled is False
    assert workload(tmp_path, "environment.dependencies=[a, b==1]").environment.dependencies == ("a", "b==1")
    assert workload(tmp_path, "command=echo a=b").command == "echo a=b"
    assert workload(tmp_path, "config.max_retries=1").max_retries == 1


def test_missing_blocks_are_created_and_whole_blocks_replaced(tmp_path: Path) -> None:
    assert workload(tmp_path, "timeouts.queue=2h").timeouts.queue_s == 7200
    whole = workload(tmp_path, "compute={accelerator_type: CPU}").compute
    assert (whole.accelerator, whole.nodes) == ("CPU", 1)


def test_free_trees_lists_and_text_maps(tmp_path: Path) -> None:
    result = workload(
        tmp_path,
        "parameters.lr=1.0e-3",
        "parameters.new.deep.key=[1]",
        "parameters.layers.1.width=32",
        "env_variables.SEED=8",
        "env_variables.FLAG=yes",
        "tags.a.b=1.10",
    )
    assert result.parameters == {
        "lr": 0.001,
        "layers": [{"width": 8}, {"width": 32}],
        "new": {"deep": {"key": [1]}},
    }
    assert dict(result.env_variables) == {"SEED": "8", "FLAG": "yes"}
    assert dict(result.tags) == {"a.b": "1.10"}


def test_an_override_may_give_what_the_file_lacks(tmp_path: Path) -> None:
    text = BASE.replace("experiment_name: digits\n", "")
    assert loaded(tmp_path, "experiment_name=given", text=text).workload.experiment == "given"


def test_the_source_is_what_ran(tmp_path: Path) -> None:
    first = loaded(tmp_path, "max_retries=7", "command=|\n  one\n  two\n")
    assert "max_retries: 7" in first.source_yaml
    assert load_text(first.source_yaml, folder=tmp_path).workload == first.workload


def test_unknown_paths_name_the_near_miss_and_the_fields(tmp_path: Path) -> None:
    message = refused(tmp_path, "compute.num_acelerators=16")
    assert "--override compute.num_acelerators=16  compute.num_acelerators  unknown field" in message
    assert 'did you mean "num_accelerators"?' in message
    assert "valid: accelerator_type, num_accelerators, pool_id" in message
    assert 'did you mean "compute.pool_id"?' in refused(tmp_path, "pool_id=x")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("max_retries", "PATH=VALUE"),
        ("=3", "PATH=VALUE"),
        ("a..b=3", "PATH=VALUE"),
        ("max_retries.x=3", "holds one value"),
        ("max_retries=[1", "not YAML"),
        ("max_retries=many", "expected a whole number"),
        ("parameters.layers.5.width=1", "is not an index"),
        ("experiment_name.x=1", "holds one value"),
    ],
)
def test_overrides_that_cannot_be_applied(override: str, words: str, tmp_path: Path) -> None:
    message = refused(tmp_path, override)
    assert words in message
    assert f"--override {override}" in message


def test_all_bad_overrides_are_reported_beside_the_file(tmp_path: Path) -> None:
    with pytest.raises(WorkloadInvalid) as caught:
        loaded(tmp_path, "nme=x", "max_retries=-1", text=BASE + "tagz: {}\n")
    assert [problem.path for problem in caught.value.problems] == ["tagz", "max_retries", "nme"]


def test_the_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(BASE)
    loaded(tmp_path, "parameters.lr=5")
    assert path.read_text() == BASE
