"""What is wrong is said all at once, with place, reason and near miss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airyard.spec.load import load_text
from airyard.spec.problems import Problem, WorkloadInvalid, edit_distance, near_miss

BASE = """\
experiment_name: digits
compute: {accelerator_type: GPU_8xH100, num_accelerators: 8}
command: python train.py
"""


def problems(text: str, tmp_path: Path) -> list[Problem]:
    with pytest.raises(WorkloadInvalid) as caught:
        load_text(text, folder=tmp_path)
    return list(caught.value.problems)


def only(text: str, tmp_path: Path) -> Problem:
    (problem,) = problems(text, tmp_path)
    return problem


def test_all_problems_of_a_file_at_once_with_their_lines(tmp_path: Path) -> None:
    text = """\
experiment_name: my exp
compute:
  acelerator_type: GPU_8xH100
  num_accelerators: many
comand: echo hi
env_variables:
  SEED: 8
  WORLD_SIZE: "2"
  TWICE: x
secrets:
  TWICE: a/b
  BAD: abc
environment:
  version: latest
  dependencies:
    - torch=2
    - --trusted-host h.invalid
    - -r none.txt
code_source:
  root_path: ./nothing
max_retries: -1
timeouts: {queue: 5}
"""
    found = [(item.position.line, item.code.value, item.path) for item in problems(text, tmp_path)]
    assert found == [
        (1, "INVALID_VALUE", "experiment_name"),
        (3, "UNKNOWN_FIELD", "compute.acelerator_type"),
        (4, "WRONG_TYPE", "compute.num_accelerators"),
        (5, "UNKNOWN_FIELD", "comand"),
        (7, "WRONG_TYPE", "env_variables.SEED"),
        (8, "RESERVED_NAME", "env_variables.WORLD_SIZE"),
        (11, "CONFLICTING_FIELDS", "secrets.TWICE"),
        (12, "INVALID_VALUE", "secrets.BAD"),
        (14, "INVALID_VALUE", "environment.version"),
        (16, "INVALID_VALUE", "environment.dependencies[0]"),
        (17, "INVALID_VALUE", "environment.dependencies[1]"),
        (18, "FILE_NOT_FOUND", "environment.dependencies[2]"),
        (20, "FILE_NOT_FOUND", "code_source.root_path"),
        (21, "INVALID_VALUE", "max_retries"),
        (22, "INVALID_VALUE", "timeouts.queue"),
    ]


def test_the_text_and_the_json_of_an_error(tmp_path: Path) -> None:
    text = "experiment_name: e\ncommand: c\ncompute:\n  accelerator_type: CPU\n  num_acelerators: 1\n"
    with pytest.raises(WorkloadInvalid) as caught:
        load_text(text, folder=tmp_path, file="w.yaml")
    error = caught.value
    assert error.message == (
        'w.yaml has 1 problem:\nw.yaml:5:3  compute.num_acelerators  unknown field; did you mean "num_accelerators"? '
        "(valid: accelerator_type, num_accelerators, pool_id, priority_class, same_fabric, cpus, memory, shm)"
    )
    body = json.loads(json.dumps(error.as_json()))
    assert (body["code"], error.exit_code) == ("WORKLOAD_INVALID", 2)
    (problem,) = body["details"]["problems"]
    assert (problem["line"], problem["column"], problem["near_miss"]) == (5, 3, "num_accelerators")
    assert "airyard run -h config.compute" in body["fix"]["text"]


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        ("pool_id: main\n", "UNKNOWN_FIELD", '"compute.pool_id"'),
        ("experiment: x\n", "UNKNOWN_FIELD", 'did you mean "experiment_name"? (valid: experiment_name, name'),
        ("tags: {a: [1]}\n", "WRONG_TYPE", "expected text, got a list"),
        ("env_variables: {A: 8}\n", "WRONG_TYPE", 'put it in quotes: "8"'),
        ("env_variables: {A: yes}\n", "WRONG_TYPE", 'put it in quotes: "yes"'),
        ("env_variables: {A:}\n", "WRONG_TYPE", "got nothing"),
        ("env_variables: {1A: x}\n", "INVALID_VALUE", "name of a variable"),
        ("env_variables: {AIRYARD_RUN_ID: x}\n", "RESERVED_NAME", "set by Airyard"),
        ("secrets: {MASTER_ADDR: a/b}\n", "RESERVED_NAME", "set by Airyard"),
        ("secrets: {A: a/b/c}\n", "INVALID_VALUE", "exactly one slash"),
        ("secrets: {A: /b}\n", "INVALID_VALUE", "exactly one slash"),
        ("env_variables: {A: 'x {{secrets/a/b}}'}\n", "INVALID_VALUE", "whole text"),
        ("environment: {env_variables: {A: x}}\nsecrets: {A: a/b}\n", "CONFLICTING_FIELDS", "also in secrets"),
        ("timeout_minutes: '5'\n", "WRONG_TYPE", "leave the quotes off"),
        ("timeout_minutes: 0\n", "INVALID_VALUE", "at least 1"),
        ("max_retries: 1.5\n", "WRONG_TYPE", "whole number"),
        ("max_retries: true\n", "WRONG_TYPE", "got true"),
        ("timeouts: {total: 3 weeks}\n", "INVALID_VALUE", "not a duration"),
        ("timeouts: {total: 4000d}\n", "INVALID_VALUE", "ten years"),
        ("max_retries: 1001\n", "INVALID_VALUE", "at most 1000"),
        ("timeouts: {total: 0s}\n", "INVALID_VALUE", "longer than nothing"),
        ("preemption: {signal: SIGKILL}\n", "INVALID_VALUE", "none of SIGHUP"),
        ("preemption: {grace_seconds: -1}\n", "INVALID_VALUE", "at least 0"),
        ("hang: {timeout_seconds: 0}\n", "INVALID_VALUE", "at least 1"),
        ("hang: {action: wait}\n", "INVALID_VALUE", "none of report, restart, off"),
        ("hang: {action: true}\n", "INVALID_VALUE", "none of report, restart, off"),
        ("preemption: {max_loss: 0s}\n", "INVALID_VALUE", "longer than nothing"),
        ("preemption: {max_loss: 0}\n", "INVALID_VALUE", "longer than nothing"),
        ("preemption: {max_loss: -5}\n", "INVALID_VALUE", "longer than nothing"),
        ("preemption: {max_loss: -30m}\n", "INVALID_VALUE", "longer than nothing"),
        ("preemption: {max_loss: 1800}\n", "INVALID_VALUE", "has no unit; write 1800s"),
        ("preemption: {max_loss: soon}\n", "INVALID_VALUE", "not a duration"),
        ("preemption: {max_loss: true}\n", "INVALID_VALUE", "not a duration"),
        ("tracking: maybe\n", "INVALID_VALUE", "neither on nor off"),
        ("idempotency_token: ''\n", "INVALID_VALUE", "at least 1 character"),
        (f"idempotency_token: {'x' * 65}\n", "INVALID_VALUE", "at most 64 characters"),
        ("mlflow_run_name: a b\n", "INVALID_VALUE", "ASCII letters"),
        ("mlflow_experiment_directory: Workspace\n", "INVALID_VALUE", "begin with '/'"),
        ("mlflow_artifact_location: file:/tmp\n", "INVALID_VALUE", "not allowed"),
        ("mlflow_artifact_location: bucket\n", "INVALID_VALUE", "no scheme"),
        ("usage_policy_id: 12\n", "WRONG_TYPE", "expected text"),
        ("usage_policy_id: abc\n", "INVALID_VALUE", "UUID"),
        ("permissions: [{level: CAN_VIEW}]\n", "INVALID_VALUE", "exactly one of"),
        ("permissions: [{user_name: a}]\n", "MISSING_FIELD", "is required"),
        ("priority: 5\n", "NOT_SUPPORTED_YET", "compute.priority_class"),
        ("job_type: udp\n", "NOT_SUPPORTED_YET", "batch inference"),
        ("environment: {unity_catalog_image: 'c.s.i:1'}\n", "NOT_SUPPORTED_YET", "images"),
        ("environment: {docker_image: {url: x}}\n", "NOT_SUPPORTED_YET", "images"),
        ("environment: {custom_image_tag: custom:x}\n", "NOT_SUPPORTED_YET", "images"),
        ("environment: {version: databricks_ai_v4}\n", "INVALID_VALUE", "databricks_ai_v5"),
        ("environment: {dependencies: {a: b}}\n", "WRONG_TYPE", "list of requirements"),
        ("environment: {dependencies: [1]}\n", "WRONG_TYPE", "every entry must be text"),
        ("environment: {dependencies: ['']}\n", "INVALID_VALUE", "one line"),
        ("environment: {dependencies: [./x.whl]}\n", "INVALID_VALUE", "absolute path"),
        ("environment: {dependencies: [/x/y]}\n", "INVALID_VALUE", "(.whl)"),
        ("environment: {dependencies: [--no-dep]}\n", "INVALID_VALUE", '"--no-deps"'),
        ("environment: {dependencies: [--no-deps]}\n", "INVALID_VALUE", "next entry"),
        ("environment: {dependencies: [--index-url]}\n", "INVALID_VALUE", "needs a value"),
        ("environment: {dependencies: ['not a requirement']}\n", "INVALID_VALUE", "not a requirement"),
        ("environment: {dependencies: requirements.txt}\n", "INVALID_VALUE", "-r requirements.txt"),
        ("environment: {dependencies: none.yaml}\n", "FILE_NOT_FOUND", "none.yaml"),
        ("code_source: {}\n", "MISSING_FIELD", "root_path"),
        ("code_source: {root_path: ., include_paths: []}\n", "INVALID_VALUE", "at least 1 entry"),
        ("code_source: {root_path: ., include_paths: [/abs]}\n", "INVALID_VALUE", "relative"),
        ("code_source: {root_path: ., include_paths: [none]}\n", "FILE_NOT_FOUND", "none does not exist"),
        ("code_source: {root_path: ., git: {branch: a, commit: b}}\n", "CONFLICTING_FIELDS", "keep one"),
        ("code_source: {root_path: ., git: {branch: -x}}\n", "INVALID_VALUE", "branch name"),
        ("code_source: {root_path: ., git: {branch: a, remote: origin}}\n", "NOT_SUPPORTED_YET", "never fetched"),
        ("code_source: {root_path: ., remote_volume: /Volumes/x}\n", "NOT_SUPPORTED_YET", "leave it out"),
        ("code_source: {root_path: $NO_SUCH_VARIABLE_SET}\n", "FILE_NOT_FOUND", "not set"),
        ("parameters: {a: .nan}\n", "INVALID_VALUE", "cannot be stored"),
        ("parameters: [1]\n", "WRONG_TYPE", "expected a map"),
        ("containers: [{name: a, command: c, ranks: [0]}]\n", "CONFLICTING_FIELDS", "excludes command"),
    ],
)  # fmt: skip
def test_one_problem(extra: str, code: str, words: str, tmp_path: Path) -> None:
    problem = only(BASE + extra, tmp_path)
    assert problem.code.value == code
    assert words in str(problem)
    assert problem.position.line >= 4


@pytest.mark.parametrize(
    ("block", "code", "words"),
    [
        ("{accelerator_type: GPU_8xH100, num_accelerators: 12}", "INVALID_VALUE", "ask 8 or 16"),
        ("{accelerator_type: GPU_8xH100, num_accelerators: 1}", "INVALID_VALUE", "ask 8"),
        ("{accelerator_type: GPU_8xH100}", "MISSING_FIELD", "is required with GPU_8xH100"),
        ("{accelerator_type: CPU, num_accelerators: 0}", "INVALID_VALUE", "at least 1"),
        ("{accelerator_type: gpu_8xh100, num_accelerators: 8}", "INVALID_VALUE", '"GPU_8xH100"'),
        ("{accelerator_type: cpu}", "INVALID_VALUE", '"CPU"'),
        ("{accelerator_type: TPU}", "INVALID_VALUE", "neither GPU_"),
        (
            "{accelerator_type: CPU, pool_id: a, pool_name: b}",
            "CONFLICTING_FIELDS",
            "excludes compute.pool_id",
        ),
        ("{accelerator_type: CPU, pool_id: ' '}", "INVALID_VALUE", "1 to 255"),
        ("{accelerator_type: CPU, priority_class: urgent}", "INVALID_VALUE", "none of CRITICAL"),
        ("{accelerator_type: CPU, memory: 64}", "INVALID_VALUE", "64GiB"),
        ("{accelerator_type: CPU, memory: lots}", "INVALID_VALUE", "not a size"),
        ("{accelerator_type: CPU, cpus: 0}", "INVALID_VALUE", "more than 0"),
        ("CPU", "WRONG_TYPE", "expected a map"),
    ],
)
def test_compute_problems(block: str, code: str, words: str, tmp_path: Path) -> None:
    problem = only(f"experiment_name: e\ncommand: c\ncompute: {block}\n", tmp_path)
    assert problem.code.value == code
    assert words in str(problem)


def test_image_rules_come_beside_not_supported(tmp_path: Path) -> None:
    text = BASE + (
        "environment:\n  version: 6\n  unity_catalog_image: a.b.c:1\n"
        "  docker_image: {url: x, credentials_scope: s}\n"
    )
    found = {(item.code.value, item.path) for item in problems(text, tmp_path)}
    assert found == {
        ("CONFLICTING_FIELDS", "environment.version"),
        ("CONFLICTING_FIELDS", "environment.docker_image"),
        ("MISSING_FIELD", "environment.docker_image.credentials_key"),
        ("INVALID_VALUE", "environment.docker_image.tag_policy"),
        ("NOT_SUPPORTED_YET", "environment.unity_catalog_image"),
        ("NOT_SUPPORTED_YET", "environment.docker_image"),
    }


def test_container_ranks_are_disjoint_exist_and_cover(tmp_path: Path) -> None:
    head = "experiment_name: e\ncompute: {accelerator_type: CPU, num_accelerators: 3}\ncontainers:\n"
    text = head + "  - {name: a, command: x, ranks: [0, 1]}\n  - {name: a, command: y, ranks: [1, 7, -1]}\n"
    found = [(item.path, item.message) for item in problems(text, tmp_path)]
    assert found == [
        ("containers[1].name", "'a' is already the name of containers[0]"),
        ("containers[1].ranks[0]", "rank 1 is taken by containers[0]"),
        ("containers[1].ranks[1]", "rank 7 does not exist: the run has 3 nodes, from 0"),
        ("containers[1].ranks[2]", "must be at least 0, got the number -1"),
    ]
    gap = only(head + "  - {name: a, command: x, ranks: [0]}\n", tmp_path)
    assert gap.message == "no role for node rank 1, 2; the run has 3 nodes, from 0"


def test_a_command_has_a_thousand_lines_at_most(tmp_path: Path) -> None:
    head = "experiment_name: e\ncompute: {accelerator_type: CPU}\ncommand: |\n"
    assert load_text(head + "  true\n" * 1000, folder=tmp_path).workload.command
    assert "has 1001 lines" in only(head + "  true\n" * 1001, tmp_path).message
    assert "must not be blank" in only(head.replace("|\n", "' '\n"), tmp_path).message


def test_both_forms_of_code_source(tmp_path: Path) -> None:
    problem = only(BASE + "code_source: {root_path: ., snapshot: {root_path: .}}\n", tmp_path)
    assert (problem.code.value, problem.path) == ("CONFLICTING_FIELDS", "code_source.root_path")


def test_requirement_files_with_problems(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n--trusted-host x\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n-c constraints.txt\n")
    text = BASE + "environment:\n  dependencies:\n    - -r a.txt\n"
    found = [item.message for item in problems(text, tmp_path)]
    assert len(found) == 3
    assert "requirement files include each other: a.txt → b.txt → a.txt" in found
    assert "the option -c is not allowed" in found
    (tmp_path / "r.yaml").write_text("versoin: 5\ndependencies: numpy\nversion: x\n")
    found = [
        str(item) for item in problems(BASE + "environment: {dependencies: r.yaml, version: 6}\n", tmp_path)
    ]
    assert any('did you mean "version"?' in item for item in found)
    assert any("dependencies must be a list of text" in item for item in found)
    (tmp_path / "r.yaml").write_text("version: 5\n")
    assert "keep one" in only(BASE + "environment: {dependencies: r.yaml, version: 6}\n", tmp_path).message


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: 1\n\tb: 2\n", 2, 1, "a tab cannot indent YAML"),
        ("a: [1, 2\nb: 3\n", 2, 2, "expected ',' or ']'"),
        ("a: b: c\n", 1, 5, "mapping values are not allowed here"),
        ("a: *nowhere\n", 1, 4, "undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, 1, "expected a single document"),
        ("- a\n", 1, 1, "not a list"),
        ("just text\n", 1, 1, "not a single value"),
        ("a: \x01\n", 1, 1, "special characters"),
        ("a: !!python/object:os.system x\n", 1, 4, "could not determine a constructor"),
        ("a: !!binary aGk=\n", 1, 4, "binary"),
        ("a: !!set {x}\n", 1, 4, "tag"),
        ('a: "\\ud800"\n', 1, 4, "surrogate"),
        ('"\\ud800": a\n', 1, 1, "surrogate"),
        ("a: 0x" + "f" * 300 + "\n", 1, 4, "too large"),
        ("a: " + "9" * 5000 + "\n", 1, 4, "unreadable value"),
        ("a: 2024-13-45\n", 1, 1, "unknown field"),
        ("? [x]\n: 1\n", 1, 3, "a key must be text"),
        ("a: " + "[" * 3000 + "\n", 1, 1, "nested too deep"),
        ("a: " + "[" * 120 + "]" * 120 + "\n", 1, 1, "100 levels"),
        ("a: &a [*a]\n", 1, 1, "contains itself"),
    ],
)
def test_yaml_problems_have_a_place(text: str, line: int, column: int, words: str, tmp_path: Path) -> None:
    problem = next(item for item in problems(text, tmp_path) if words in item.message)
    assert (problem.position.line, problem.position.column) == (line, column)


def test_duplicate_keys_at_every_level(tmp_path: Path) -> None:
    found = problems(BASE + "env_variables:\n  A: x\n  A: y\ncommand: again\n", tmp_path)
    assert [str(item) for item in found] == [
        "workload.yaml:6:3  env_variables.A  given twice; the first is on line 5",
        "workload.yaml:7:1  command  given twice; the first is on line 3",
    ]


def test_aliases_cannot_blow_a_file_up(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 9)]
    assert "once its aliases are expanded" in only("\n".join(lines), tmp_path).message


def test_near_misses() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("ab", "ba") == 1
    assert near_miss("comand", ["command", "compute"]) == "command"
    assert near_miss("xyz", ["command", "compute"]) is None
    assert near_miss("Command", ["command"]) == "command"
    assert near_miss("env_vars", ["env_variables", "environment"]) == "env_variables"
    assert near_miss("envi", ["environment", "envisaged"]) is None  # two begin so
    assert near_miss("-e", ["-f", "-r"]) is None  # two letters are too few to be near


def test_what_a_block_takes_is_listed_once_and_help_is_named_that_exists(tmp_path: Path) -> None:
    with pytest.raises(WorkloadInvalid) as caught:
        load_text(
            "experiment_nam: a\nzzzz: 1\ncompute: {accelerator_type: CPU}\ncommand: c\n", folder=tmp_path
        )
    assert caught.value.message.count("valid: experiment_name") == 1
    assert all(each["valid_keys"] for each in caught.value.details["problems"])
    assert "`airyard run -h config.experiment_name`" in str(caught.value.fix)
    with pytest.raises(WorkloadInvalid) as caught:
        load_text(
            "experiment_name: a\nzzzz: 1\ncompute: {accelerator_type: CPU}\ncommand: c\n", folder=tmp_path
        )
    assert "`airyard run -h config`" in str(caught.value.fix)
