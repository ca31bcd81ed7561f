"""Field help, JSON Schema and templates come from the same models and agree with what is accepted."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import NotFound, UserError
from airyard.spec.catalogue import every_field
from airyard.spec.command_line import CommandLine, command_line_workload
from airyard.spec.help import field_help
from airyard.spec.load import load_text
from airyard.spec.schema import workload_schema
from airyard.spec.template import TEMPLATES, template_files


def test_help_of_a_field() -> None:
    assert field_help("config.compute.priority_class") == (
        "config.compute.priority_class\n"
        "\n"
        "  Who goes first: CRITICAL may evict others of its pool, BEST_EFFORT may be evicted. Needs no pool.\n"
        "\n"
        "  type      one of CRITICAL, NORMAL, BEST_EFFORT (any case)\n"
        "  required  no\n"
        "  default   NORMAL"
    )
    assert field_help("compute.memory").endswith("origin    Airyard extension")
    assert "The names below it are yours to choose." in field_help("config.parameters")


def test_help_of_blocks_lists_what_is_in_them() -> None:
    top = field_help("config")
    assert " *experiment_name " in top
    assert top.index("command ") < top.index("_bases_")  # older spellings come last
    assert " *accelerator_type " in field_help("config.compute")
    assert field_help("config.containers.0.ranks") == field_help("config.containers[].ranks")


def test_every_field_has_help() -> None:
    for field in every_field():
        text = field_help(f"config.{field.dotted}")
        assert field.type_text in text
        assert ("required  yes" in text) is field.required


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("config.compute.num_acelerators", 'did you mean "config.compute.num_accelerators"?'),
        ("pool_id", 'did you mean "config.compute.pool_id"?'),
        ("config.nonsense", "Its fields: _bases_, experiment_name"),
        ("config.max_retries.x", "takes whole number: it has no fields of its own"),
    ],
)
def test_help_of_what_is_not_there(path: str, words: str) -> None:
    with pytest.raises(NotFound) as caught:
        field_help(path)
    assert words in caught.value.message
    assert caught.value.fix is not None
    assert caught.value.fix.text.startswith("`airyard run -h config")


def test_the_schema_knows_every_field_and_allows_no_other() -> None:
    schema = workload_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert json.loads(json.dumps(schema)) == schema
    assert schema["required"] == ["experiment_name", "compute"]
    for field in every_field():
        block = _block(schema, field.path[:-1])
        assert block["additionalProperties"] is False
        entry = block["properties"][field.name]
        assert field.description in entry["description"]
        assert entry.get("deprecated", False) is (field.origin.value == "older spelling")
    assert "x-airyard" not in json.dumps(schema)


def _block(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Follow references down to a block."""
    here = schema
    for part in path:
        here = here["properties"][part.removesuffix("[]")]
        while "properties" not in here:
            if "anyOf" in here:
                here = here["anyOf"][0]
            here = here.get("items", here)
            if "$ref" in here:
                here = schema["$defs"][here["$ref"].rpartition("/")[2]]
    return here


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_valid_and_their_scripts_parse(template: str, tmp_path: Path) -> None:
    files = template_files(template, name="first", accelerator="GPU_1xA10", count=2)
    loaded = load_text(files["workload.yaml"], folder=tmp_path)
    assert loaded.warnings == ()
    assert loaded.workload.experiment == "first"
    assert (loaded.workload.compute.accelerator, loaded.workload.compute.nodes) == ("GPU_1xA10", 2)
    assert loaded.code_source is not None
    ast.parse(files["train.py"])


def test_an_unknown_template_names_the_near_one() -> None:
    with pytest.raises(NotFound, match="there are hello, ddp") as caught:
        template_files("helo")
    assert caught.value.fix is not None
    assert "--template hello" in caught.value.fix.text


def test_a_workload_from_a_command_line(tmp_path: Path) -> None:
    line = CommandLine(command=["python", "train.py", "--lr", "1e-4", "a b"], gpus=2, nodes=3)
    loaded = command_line_workload(line, folder=tmp_path, models=["H100"], overrides=["max_retries=1"])
    workload = loaded.workload
    assert workload.command == "python train.py --lr 1e-4 'a b'"
    assert (workload.compute.accelerator, workload.compute.nodes) == ("GPU_2xH100", 3)
    assert (workload.experiment, workload.max_retries, loaded.code_source) == ("train", 1, None)
    assert load_text(loaded.source_yaml, folder=tmp_path).workload == workload


@pytest.mark.parametrize(
    ("command", "experiment", "script"),
    [
        (["nvidia-smi"], "nvidia-smi", "nvidia-smi"),
        (["echo one && echo two"], "echo", "echo one && echo two"),
        (["./run.sh", "x"], "run", "./run.sh x"),
        (["A=1", "--", "-x"], "adhoc", "A=1 -- -x"),
        (["/opt/my tool/go"], "my", "/opt/my tool/go"),
    ],
)
def test_names_and_scripts_of_command_lines(
    command: list[str], experiment: str, script: str, tmp_path: Path
) -> None:
    workload = command_line_workload(CommandLine(command=command), folder=tmp_path).workload
    assert (workload.command, workload.compute.accelerator) == (script, "CPU")
    assert workload.experiment == experiment


def test_a_command_line_sends_code_only_when_asked(tmp_path: Path) -> None:
    loaded = command_line_workload(CommandLine(command=["ls"], send_code=True), folder=tmp_path)
    assert loaded.code_source is not None
    assert loaded.code_source.root == tmp_path


@pytest.mark.parametrize(
    ("line", "models", "code"),
    [
        (CommandLine(command=[]), [], "NO_COMMAND"),
        (CommandLine(command=["x"], gpus=-1), [], "INVALID_ARGS"),
        (CommandLine(command=["x"], nodes=0), [], "INVALID_ARGS"),
        (CommandLine(command=["x"], gpus=1), [], "NO_SUCH_ACCELERATOR"),
        (CommandLine(command=["x"], gpus=1), ["A10", "H100"], "AMBIGUOUS_ACCELERATOR"),
    ],
)
def test_command_lines_that_cannot_run(
    line: CommandLine, models: list[str], code: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        command_line_workload(line, folder=tmp_path, models=models)
    assert caught.value.code == code


def test_the_schema_allows_any_case_where_the_models_do() -> None:
    definitions = workload_schema()["$defs"]
    priority = definitions["ComputeBlock"]["properties"]["priority_class"]["anyOf"][0]["anyOf"]
    assert priority[0] == {"enum": ["CRITICAL", "NORMAL", "BEST_EFFORT"]}
    assert re.search(priority[1]["pattern"], "best_Effort")
    signal = definitions["PreemptionBlock"]["properties"]["signal"]["anyOf"][0]["anyOf"]
    assert re.search(signal[1]["pattern"], "usr1")
    assert not re.search(signal[1]["pattern"], "SIGKILL")
