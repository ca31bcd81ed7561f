"""What a command sees of its machine, of Airyard and of its user."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airyard.node.launch import (
    Places,
    airyard_variables,
    command_token,
    full_environment,
    inherited,
    of_checks,
    signal_number,
    write_control_files,
)
from runner_api import GO, prepare_order


def places(folder: Path, *, code: bool = False) -> Places:
    return Places(
        work=folder / "work",
        code=folder / "code" if code else None,
        control=folder / "control",
        stop_file=folder / "control" / "stop.json",
        acknowledgement_file=folder / "control" / "checkpoint.json",
        checkpoints=folder / "checkpoints",
        output=folder / "output",
        scratch=folder / "scratch",
        temporary=folder / "tmp",
    )


def test_only_a_few_things_are_inherited() -> None:
    machine = {
        "PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "PIP_FIND_LINKS": "f", "https_proxy": "p",
        "AIRYARD_TOKEN": "t", "VIRTUAL_ENV": "v", "PYTHONPATH": "x", "AWS_SECRET_ACCESS_KEY": "s",
    }  # fmt: skip
    assert inherited(machine) == {
        "PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "PIP_FIND_LINKS": "f", "https_proxy": "p",
    }  # fmt: skip


def test_checks_find_the_drivers_library_where_the_agent_found_it() -> None:
    machine = {"PATH": "/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "AIRYARD_TOKEN": "t"}
    assert of_checks(machine) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    assert "LD_LIBRARY_PATH" not in inherited(machine)
    assert of_checks({"PATH": "/bin"}) == {"PATH": "/bin"}


def test_the_layers_win_in_order(tmp_path: Path) -> None:
    order = prepare_order(
        "true",
        variables={"HOME": "/mine", "WORLD_SIZE": "99", "AIRYARD_COOKIE": "forged", "X": "variable"},
        secrets={"X": "secret"},
    )
    own = airyard_variables(order, GO, places(tmp_path), address="127.0.0.1", token="t")
    merged = full_environment(
        order,
        own,
        machine={"PATH": "/bin", "HOME": "/h"},
        view={"VIRTUAL_ENV": "/env"},
        cage={"AIRYARD_COOKIE": "real"},
        bin_folder=Path("/env/bin"),
    )
    assert merged["PATH"] == "/env/bin:/bin"
    assert merged["HOME"] == "/mine"
    assert merged["WORLD_SIZE"] == "1"
    assert merged["X"] == "secret"
    assert merged["AIRYARD_COOKIE"] == "real"
    assert "CODE_SOURCE_PATH" not in merged
    assert "HYPERPARAMETERS_PATH" not in merged
    assert "RANK" not in merged


def test_flight_recorders_are_on_for_gangs_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    def seen(**order: object) -> dict[str, str]:
        asked = {**prepare_order("true", variables={"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}), **order}
        own = airyard_variables(asked, GO, places(tmp_path), address="127.0.0.1", token="t")
        return full_environment(asked, own, machine={"PATH": "/bin"}, view={}, cage={}, bin_folder=None)

    assert not {"TORCH_NCCL_DUMP_ON_TIMEOUT", "NCCL_DEBUG"} & seen().keys()
    gang = seen(world_size=16, hang={"timeout_s": None, "action": "report"})
    assert gang["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert gang["TORCH_FR_DUMP_TEMP_FILE"] == f"{gang['AIRYARD_PROGRESS_DIR']}/flight-"
    assert "TORCH_FR_BUFFER_SIZE" not in gang
    assert gang["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "7"
    assert gang["NCCL_DEBUG"] == "WARN"
    assert seen(world_size=16, variables={"NCCL_DEBUG": "INFO"})["NCCL_DEBUG"] == "INFO"
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in gang
    at_once = seen(world_size=16, hang={"timeout_s": 60, "action": "report"})
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" in at_once


@pytest.mark.parametrize(
    ("tracking", "deferred", "expected"),
    [
        (None, False, {"AIRYARD_TRACKING": "off"}),
        (
            {"uri": "u", "run_id": "r", "experiment_id": "1"},
            False,
            {
                "AIRYARD_TRACKING": "on",
                "MLFLOW_TRACKING_URI": "u",
                "MLFLOW_TRACKING_TOKEN": "t",
                "MLFLOW_RUN_ID": "r",
                "MLFLOW_EXPERIMENT_ID": "1",
            },
        ),
        (
            {"uri": "u", "run_id": None, "experiment_id": None},
            True,
            {"AIRYARD_TRACKING": "deferred", "MLFLOW_TRACKING_URI": "u", "MLFLOW_TRACKING_TOKEN": "t"},
        ),
    ],
)
def test_tracking(
    tmp_path: Path, tracking: dict[str, str] | None, deferred: bool, expected: dict[str, str]
) -> None:
    go = {**GO, "tracking": tracking, "tracking_deferred": deferred}
    own = airyard_variables(prepare_order("true"), go, places(tmp_path), address="a", token="t")
    found = {k: v for k, v in own.items() if k.startswith("MLFLOW") or k == "AIRYARD_TRACKING"}
    assert found == expected


def test_a_command_gets_its_own_token_and_the_runners_only_from_an_older_server() -> None:
    tracking = {"uri": "u", "run_id": "r", "experiment_id": "1"}
    assert command_token({**GO, "tracking": {**tracking, "token": "ayc_1"}}, "aya_1") == "ayc_1"
    assert command_token({**GO, "tracking": tracking}, "aya_1") == "aya_1"


def test_control_files_hold_the_command_and_the_parameters(tmp_path: Path) -> None:
    spots = places(tmp_path, code=True)
    order = prepare_order("echo 'ä'\nexit 3\n", parameters={"lr": 0.1, "layers": [1, 2]})
    command = write_control_files(order, spots)
    assert command.read_text(encoding="utf-8") == "echo 'ä'\nexit 3\n"
    assert tmp_path / "code" not in command.parents
    own = airyard_variables(order, GO, spots, address="a", token="t")
    assert Path(own["HYPERPARAMETERS_PATH"]).read_text().startswith('{\n  "lr": 0.1')
    assert own["CODE_SOURCE"] == own["CODE_SOURCE_PATH"] == str(tmp_path / "code")


@pytest.mark.parametrize("name", ["SIGUSR1", "USR1", "usr1", str(int(signal.SIGUSR1))])
def test_signal_names(name: str) -> None:
    assert signal_number(name) == signal.SIGUSR1


def test_an_unknown_signal_is_a_polite_one() -> None:
    assert signal_number("SIGNONE") == signal.SIGTERM
