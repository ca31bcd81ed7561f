"""Every field and every spelling of a workload file, and the normal form they come to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airyard.core.errors import UserError
from airyard.core.workload import CodeReference, Permission, Priority, Workload, first_difference
from airyard.spec.load import Loaded, load_stored, load_text, load_workload
from airyard.spec.problems import WorkloadInvalid
from airyard.wire.native import WorkloadPart

BASE = """\
experiment_name: digits
compute: {accelerator_type: GPU_8xH100, num_accelerators: 16}
command: python train.py
"""


def load(text: str, tmp_path: Path, **options: object) -> Loaded:
    return load_text(text, folder=tmp_path, **options)  # type: ignore[arg-type]  # the tests pass what it takes


def workload(extra: str, tmp_path: Path) -> Workload:
    return load(BASE + extra, tmp_path).workload


def compute(block: str, tmp_path: Path) -> Workload:
    return load(f"experiment_name: e\ncommand: c\ncompute: {block}\n", tmp_path).workload


def test_the_smallest_file_gets_every_default(tmp_path: Path) -> None:
    loaded = load(BASE, tmp_path)
    result = loaded.workload
    assert (result.experiment, result.command) == ("digits", "python train.py")
    assert (result.compute.model, result.compute.devices_per_node, result.compute.nodes) == ("H100", 8, 2)
    assert result.compute.priority is Priority.NORMAL
    assert (result.environment.version, result.environment.dependencies) == ("6", ())
    assert (result.max_retries, result.attempt_timeout_s, result.tracking.enabled) == (3, None, True)
    assert result.parameters is None
    assert (loaded.source_yaml, loaded.code_source, loaded.idempotency_token) == (BASE, None, None)
    assert loaded.warnings == ()


FULL = """\
experiment_name: digits_1
name: first-run
project: vision
tags: {round: 1, release: 1.10, keep: yes, note: text}
compute:
  accelerator_type: GPU_2xH100
  num_accelerators: 4
  pool_id: " main "
  priority_class: best_effort
  same_fabric: true
  cpus: 8
  memory: 64GiB
  shm: 500MB
command: |
  echo one
  echo two
environment:
  version: Databricks_AI_v6
  dependencies: [numpy==2.0]
env_variables: {LEVEL: info}
secrets: {TOKEN: hub/token}
code_source:
  root_path: src
  include_paths: [.]
parameters: {lr: 0.1, nested: {list: [1, a, null]}, 7: seven}
max_retries: 0
timeout_minutes: 90
timeouts: {queue: 2h, environment: 90s, total: 1d12h}
preemption: {grace_seconds: 30, signal: usr1}
idempotency_token: abc
tracking: on
mlflow_run_name: run_1
mlflow_experiment_directory: /Workspace/Users/me
mlflow_artifact_location: /Volumes/a/b/c
permissions:
  - {user_name: ada, level: CAN_VIEW}
  - {group_name: team, level: CAN_MANAGE}
  - {service_principal_name: robot, level: IS_OWNER}
usage_policy_name: lab
"""


def test_every_field_at_once(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    loaded = load(FULL, tmp_path)
    result = loaded.workload
    assert dict(result.tags) == {"round": "1", "release": "1.10", "keep": "yes", "note": "text"}
    assert (result.name, result.project) == ("first-run", "vision")
    gang = result.compute
    assert (gang.accelerator, gang.nodes, gang.pool, gang.priority) == (
        "GPU_2xH100",
        2,
        "main",
        Priority.BEST_EFFORT,
    )
    assert (gang.same_fabric, gang.cpus, gang.memory_bytes, gang.shm_bytes) == (
        True,
        8.0,
        64 << 30,
        500_000_000,
    )
    assert result.command == "echo one\necho two\n"
    assert (result.environment.version, result.environment.ai) == ("6", True)
    assert result.environment.dependencies == ("numpy==2.0",)
    assert (result.env_variables, result.secrets) == ((("LEVEL", "info"),), (("TOKEN", "hub/token"),))
    assert result.parameters == {"lr": 0.1, "nested": {"list": [1, "a", None]}, "7": "seven"}
    assert (result.max_retries, result.attempt_timeout_s) == (0, 5400)
    assert (result.timeouts.queue_s, result.timeouts.environment_s, result.timeouts.total_s) == (
        7200,
        90,
        129600,
    )
    assert (result.preemption.grace_s, result.preemption.signal) == (30, "SIGUSR1")
    assert (result.tracking.run_name, result.tracking.experiment_directory) == (
        "run_1",
        "/Workspace/Users/me",
    )
    assert result.tracking.artifact_location == "dbfs:/Volumes/a/b/c"
    assert result.permissions[0] == Permission(level="CAN_VIEW", user_name="ada")
    assert result.usage_policy_name == "lab"
    assert loaded.idempotency_token == "abc"
    assert loaded.code_source is not None
    assert (loaded.code_source.root, loaded.code_source.include_paths) == (tmp_path / "src", (".",))
    assert [(item.code.value, item.path) for item in loaded.warnings] == [
        ("NOT_ENFORCED", "usage_policy_name"),
    ]
    assert Workload.from_json(result.to_json()) == result
    assert WorkloadPart.model_validate(result.to_json()).workload() == result  # the server takes it as it is


@pytest.mark.parametrize("spelling", ["pool_id", "pool_name", "provisioned_capacity_id", "node_pool_id"])
def test_pool_spellings(spelling: str, tmp_path: Path) -> None:
    assert compute(f"{{accelerator_type: CPU, {spelling}: main}}", tmp_path).compute.pool == "main"


@pytest.mark.parametrize(
    ("older", "accelerator"),
    [("a10", "GPU_1xA10"), ("a10g", "GPU_1xA10"), ("h100", "GPU_8xH100"), ("h100_80gb", "GPU_8xH100")],
)
def test_legacy_accelerator_names(older: str, accelerator: str, tmp_path: Path) -> None:
    assert (
        compute(f"{{accelerator_type: {older}, num_accelerators: 8}}", tmp_path).compute.accelerator
        == accelerator
    )


def test_cpu_counts_nodes(tmp_path: Path) -> None:
    assert compute("{accelerator_type: CPU}", tmp_path).compute.nodes == 1
    gang = compute("{accelerator_type: CPU, num_accelerators: 3}", tmp_path).compute
    assert (gang.nodes, gang.local_world_size, gang.num_accelerators) == (3, 1, 3)


@pytest.mark.parametrize(
    ("written", "version", "ai"),
    [
        ("6", "6", False),
        ("'5'", "5", False),
        ("databricks_ai_v6", "6", True),
        ("DATABRICKS_AI_V5", "5", True),
    ],
)
def test_environment_versions(written: str, version: str, ai: bool, tmp_path: Path) -> None:
    environment = workload(f"environment: {{version: {written}}}\n", tmp_path).environment
    assert (environment.version, environment.ai) == (version, ai)


@pytest.mark.parametrize("form", ["code_source: {%s}", "code_source: {type: snapshot, snapshot: {%s}}"])
def test_code_source_flat_and_nested(form: str, tmp_path: Path) -> None:
    fields = "root_path: ., git: {commit: 0123456, remote: false}, include_paths: [a]"
    source = load(BASE + form % fields + "\n", tmp_path).code_source
    assert source is not None
    assert (source.root, source.commit, source.include_paths) == (tmp_path, "0123456", ("a",))
    branch = load(BASE + form % "root_path: ., git: {branch: feature/x-1}" + "\n", tmp_path).code_source
    assert branch is not None
    assert (branch.branch, branch.pinned) == ("feature/x-1", True)


def test_root_path_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    monkeypatch.setenv("WHERE", "code")
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in (
        "code",
        "./code",
        "$WHERE",
        "${WHERE}",
        "~/code",
        "project_root/code",
        str(tmp_path / "code"),
    ):
        source = load(BASE + f"code_source: {{root_path: {written!r}}}\n", tmp_path).code_source
        assert source is not None
        assert source.root == tmp_path / "code"


def test_older_places_of_variables_secrets_and_priority(tmp_path: Path) -> None:
    result = workload(
        "environment: {env_variables: {A: a}, secrets: {S: x/y}}\nenv_variables: {B: b}\npriority: critical\n",
        tmp_path,
    )
    assert dict(result.env_variables) == {"A": "a", "B": "b"}
    assert dict(result.secrets) == {"S": "x/y"}
    assert result.compute.priority is Priority.CRITICAL


def test_containers_become_roles(tmp_path: Path) -> None:
    result = load(
        """\
experiment_name: rl
compute: {accelerator_type: GPU_1xA10, num_accelerators: 3}
env_variables: {ALL: yes please}
containers:
  - name: infer
    command: serve
    ranks: [0]
    environment_variables:
      variables: {MODE: fast, KEY: "{{secrets/hub/key}}"}
  - name: train
    command: train
    ranks: [2, 1]
    env_variables: {MODE: slow}
    secrets: {OTHER: hub/other}
""",
        tmp_path,
    ).workload
    assert result.command == ""
    assert [(role.name, role.ranks) for role in result.roles] == [("infer", (0,)), ("train", (1, 2))]
    assert dict(result.roles[0].env_variables) == {"MODE": "fast"}
    assert dict(result.roles[0].secrets) == {"KEY": "hub/key"}
    assert result.env_variables_of(2) == {"ALL": "yes please", "MODE": "slow"}
    assert result.secrets_of(1) == {"OTHER": "hub/other"}


@pytest.mark.parametrize(
    ("written", "enabled"), [("off", False), ("on", True), ("'off'", False), ("false", False)]
)
def test_tracking_switch(written: str, enabled: bool, tmp_path: Path) -> None:
    assert workload(f"tracking: {written}\n", tmp_path).tracking.enabled is enabled


def test_empty_fields_count_as_left_out(tmp_path: Path) -> None:
    result = workload("environment:\nenv_variables:\ntimeouts:\nmax_retries:\ncode_source:\n", tmp_path)
    assert result == load(BASE, tmp_path).workload


def test_a_number_that_yaml_reads_as_text_is_warned_about(tmp_path: Path) -> None:
    (warning,) = load(BASE + "parameters:\n  lr: 1e-4\n", tmp_path).warnings
    assert (
        str(warning) == "workload.yaml:5:3  parameters.lr  YAML reads 1e-4 as text; as a number it is 1.0e-4"
    )
    assert yaml.safe_load("1.0e-4") == 1e-4


@pytest.mark.parametrize(("written", "value"), [("010", 8), ("12:30", 750)])
def test_numbers_that_yaml_reads_in_another_base_are_warned_about(
    written: str, value: int, tmp_path: Path
) -> None:
    loaded = load(BASE + f"parameters: {{a: {written}}}\n", tmp_path)
    assert loaded.workload.parameters == {"a": value}
    assert [item.message for item in loaded.warnings] == [
        f"YAML reads {written} as the number {value}; put it in quotes to keep it"
    ]


def test_aliases_and_merge_keys_are_read(tmp_path: Path) -> None:
    text = BASE + "parameters:\n  base: &base {a: 1, b: 2}\n  big: {<<: *base, b: 3}\n"
    assert load(text, tmp_path).workload.parameters == {"base": {"a": 1, "b": 2}, "big": {"a": 1, "b": 3}}


def test_requirement_files_are_taken_in(tmp_path: Path) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "requirements.txt").write_text(
        "# comment\nnumpy>=2  # trailing\n-r deep/more.txt\n--find-links https://mirror.invalid/x\n"
    )
    (tmp_path / "code" / "deep" / "more.txt").write_text("torch==2.9.0 \\\n    --hash=sha256:abc\n")
    expected = (
        "numpy>=2",
        "torch==2.9.0 --hash=sha256:abc",
        "--find-links https://mirror.invalid/x",
        "--no-deps",
        "x",
    )
    for name in ("code/requirements.txt", "$CODE_SOURCE_PATH/requirements.txt"):
        loaded = load(
            BASE
            + f"code_source: {{root_path: code}}\nenvironment: {{dependencies: ['-r {name}', --no-deps x]}}\n",
            tmp_path,
        )
        assert loaded.workload.environment.dependencies == expected
        again = load(loaded.source_yaml, tmp_path / "elsewhere", check_code=False)
        assert again.workload == loaded.workload


def test_dependencies_as_a_requirements_yaml(tmp_path: Path) -> None:
    (tmp_path / "requirements.yaml").write_text("version: '5'\ndependencies:\n  - numpy\n")
    loaded = load(BASE + "environment: {dependencies: requirements.yaml}\n", tmp_path)
    assert (loaded.workload.environment.version, loaded.workload.environment.dependencies) == (
        "5",
        ("numpy",),
    )
    assert load(loaded.source_yaml, tmp_path / "elsewhere").workload == loaded.workload


@pytest.mark.parametrize(
    "entry",
    [
        "torch", "torch==2.9.0", "torch >= 2, < 3", "name[a,b]~=1.0 ; python_version > '3.10'", "x @ https://h.invalid/x.whl",
        "https://h.invalid/x-1.tar.gz", "git+https://h.invalid/r.git@main", "/wheels/x-1-py3-none-any.whl",
        "--index-url https://h.invalid/simple", "--extra-index-url https://h.invalid/simple", "--find-links /wheels",
        "--no-index", "$CODE_SOURCE_PATH/x.whl", "torch==2.9.0+cu130", "a_b.c==1.*",
    ],
)  # fmt: skip
def test_dependency_entries_that_stand(entry: str, tmp_path: Path) -> None:
    result = workload(
        f"environment:\n  dependencies:\n    - {yaml.dump(entry, width=1000).splitlines()[0]}\n", tmp_path
    )
    assert result.environment.dependencies == (entry,)


@pytest.mark.parametrize(
    ("entry", "normal"),
    [
        ("--index-url=https://h.invalid", ("--index-url https://h.invalid",)),
        ("-i https://h.invalid", ("--index-url https://h.invalid",)),
        ("-f /wheels", ("--find-links /wheels",)),
        ("--no-build-isolation flash-attn", ("--no-build-isolation", "flash-attn")),
    ],
)
def test_dependency_options_have_one_spelling(entry: str, normal: tuple[str, ...], tmp_path: Path) -> None:
    assert (
        workload(f"environment: {{dependencies: ['{entry}']}}\n", tmp_path).environment.dependencies == normal
    )


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("90s", 90), ("1h30m", 5400), ("2 h", 7200)])
def test_max_loss_is_a_duration(text: str, seconds: int, tmp_path: Path) -> None:
    rules = workload(f"preemption: {{max_loss: {text}}}\n", tmp_path).preemption
    assert (rules.max_loss_s, rules.grace_s, rules.signal) == (seconds, None, "SIGTERM")


def test_no_max_loss_is_no_limit_and_leaves_the_hash_as_it_was(tmp_path: Path) -> None:
    plain = workload("preemption: {grace_seconds: 30}\n", tmp_path)
    assert plain.preemption.max_loss_s is None
    assert plain.to_json()["preemption"] == {"grace_s": 30, "signal": "SIGTERM"}
    limited = workload("preemption: {grace_seconds: 30, max_loss: 30m}\n", tmp_path)
    for each in (plain, limited):
        assert WorkloadPart.model_validate(each.to_json()).workload() == each
    assert limited.spec_hash() != plain.spec_hash()
    assert first_difference(plain, limited) == "preemption.max_loss_s"


@pytest.mark.parametrize("action", ["report", "Restart", "off"])
def test_what_is_done_about_a_hang(action: str, tmp_path: Path) -> None:
    plain = workload("", tmp_path)
    assert (plain.hang.timeout_s, plain.hang.action.value) == (None, "report")
    assert "hang" not in plain.to_json()
    asked = workload(f"hang: {{timeout_seconds: 90, action: {action}}}\n", tmp_path)
    assert (asked.hang.timeout_s, asked.hang.action.value) == (90, action.lower())
    assert WorkloadPart.model_validate(asked.to_json()).workload() == asked


@pytest.mark.parametrize(("priority", "warned"), [("CRITICAL", 1), ("best_effort", 1), ("NORMAL", 0)])
def test_max_loss_spares_normal_runs_only(priority: str, warned: int, tmp_path: Path) -> None:
    text = BASE.replace("compute: {", f"compute: {{priority_class: {priority}, ")
    loaded = load(text + "preemption: {max_loss: 30m}\n", tmp_path)
    assert loaded.workload.compute.priority.value == priority.upper()
    assert [warning.message for warning in loaded.warnings] == [
        f"has no effect with {priority}: only NORMAL runs are spared for it"
    ] * warned


def test_a_password_in_a_url_is_warned_about_without_showing_it(tmp_path: Path) -> None:
    (warning,) = load(
        BASE + "environment: {dependencies: ['--index-url https://me:hunter2@h.invalid/simple']}\n", tmp_path
    ).warnings
    assert "password" in warning.message
    assert "hunter2" not in warning.message


def test_a_file_is_read_with_its_folder_as_root(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(BASE + "code_source: {root_path: .}\n")
    loaded = load_workload(tmp_path / "w.yaml")
    assert loaded.root == tmp_path
    assert loaded.code_source is not None
    assert loaded.code_source.root == tmp_path


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file") as missing:
        load_workload(tmp_path / "none.yaml")
    assert missing.value.fix is not None
    assert missing.value.fix.command == "airyard init"
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(UserError, match="byte 0xff on line 2"):
        load_workload(tmp_path / "latin.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(WorkloadInvalid, match="at most 1,048,576"):
        load_workload(tmp_path / "big.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    with pytest.raises(WorkloadInvalid, match="the file is empty"):
        load_workload(tmp_path / "empty.yaml")


def test_problems_name_the_file_as_the_caller_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.yaml").write_text("_bases_: [w.yaml]\n" + BASE)
    with pytest.raises(WorkloadInvalid) as caught:
        load_workload("sub/w.yaml")
    assert str(caught.value.problems[0]) == (
        "sub/w.yaml:1:11  _bases_  bases form a cycle: sub/w.yaml → w.yaml"
    )


def test_a_stored_workload_runs_again_with_its_code(tmp_path: Path) -> None:
    code = CodeReference(tree_hash="ab", directory_name="code", size_bytes=1)
    first = load(BASE + "code_source: {root_path: gone}\nidempotency_token: t\n", tmp_path, check_code=False)
    stored = first.workload.with_code(code)
    again = load_stored(first.source_yaml, stored.to_json(), folder=tmp_path, overrides=["max_retries=0"])
    assert again.workload.code == code
    assert again.workload.max_retries == 0
    assert (again.code_source, again.idempotency_token) == (None, None)
    assert (
        load_stored(again.source_yaml, again.workload.to_json(), folder=tmp_path).workload == again.workload
    )
    with pytest.raises(UserError, match="code of the first run"):
        load_stored(
            first.source_yaml, stored.to_json(), folder=tmp_path, overrides=["code_source.root_path=x"]
        )
    with pytest.raises(WorkloadInvalid, match="did you mean"):
        load_stored(first.source_yaml, stored.to_json(), folder=tmp_path, overrides=["max_retires=0"])
