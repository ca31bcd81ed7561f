"""The faults file of a simulated fleet, and what a command means there."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.sim.fleet.command import script_of
from airyard.sim.fleet.faults import Fault, FaultKind, Injector, read_faults
from airyard.sim.fleet.machine import Machine, Model


def read(folder: Path, text: str) -> tuple[Fault, ...]:
    path = folder / "faults.yaml"
    path.write_text(text)
    return read_faults(path, 10).faults


def test_times_defaults_and_machines(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "faults:\n"
        "  - {do: kill-runner, every: 20s}\n"
        "  - {do: power-off, at: 1.5m, machines: 3}\n"
        "  - {do: slow, at: 2s, machines: [dev-0010], latency: 250ms, back_after: 1h}\n",
    )
    assert found == (
        Fault(kind=FaultKind.KILL_RUNNER, at_s=20, every_s=20),
        Fault(kind=FaultKind.POWER_OFF, at_s=90, machines=3, back_after_s=30),
        Fault(kind=FaultKind.SLOW, at_s=2, machines=("dev-0010",), back_after_s=3600, latency_s=0.25),
    )


def test_all_problems_are_told_with_their_lines_and_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        read(
            tmp_path,
            "seed: x\n"
            "faults:\n"
            "  - {do: kill-runer}\n"
            "  - {do: power-off, at: 12, machine: 2}\n"
            "  - {do: kill-runner, back_after: 3s, machines: [dev-0011]}\n"
            "  - {do: slow, machines: 11}\n"
            "  - power-off\n",
        )
    error = refused.value
    lines = error.message.splitlines()[1:]
    wanted = [
        ("1:", "seed", "whole number"),
        ("3:", "faults[0].do", 'did you mean "kill-runner"?'),
        ("4:", "faults[1].at", "12 is not a time such as"),
        ("4:", "faults[1].machine", 'did you mean "machines"?'),
        ("5:", "faults[2].back_after", "means nothing to kill-runner"),
        ("5:", "faults[2].machines[0]", "there are dev-0001 to dev-0010"),
        ("6:", "faults[3].machines", "a number from 1 to 10"),
        ("7:", "faults[4]", "must be a map"),
    ]
    assert len(lines) == len(wanted)
    for line, (number, path, message) in zip(lines, wanted, strict=True):
        assert f"faults.yaml:{number}" in line
        assert f"  {path}  " in line
        assert message in line
    assert "dev-fleet.md" in str(error.fix)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("faults: []\n", "must be a list of faults"),
        ("faults: [\n", "faults.yaml:"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=r"faults\.yaml has 1 problem") as refused:
        read(tmp_path, text)
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("command", "lasts_ms", "code"),
    [
        ("python train.py", 60_000, 0),
        ("sleep 5", 5_000, 0),
        ("sleep 0.5; echo x; sleep 1; exit 3", 1_500, 3),
        ("train\n# fleet: for=250 exit=1", 250, 1),
        ("sleep 2\n# fleet: exit=1", 2_000, 1),
        ("train\n# fleet: for=ever", None, 0),
    ],
)
def test_what_a_command_does(command: str, lasts_ms: int | None, code: int) -> None:
    behaviour = script_of(command, 0, 0, 60).behaviour
    assert (behaviour.duration_ms, behaviour.code) == (lasts_ms, code)


def test_words_for_one_member_one_attempt_and_the_log() -> None:
    command = "train\n# fleet: only=1 until=1 exit=7 log=2KiB"
    assert script_of(command, 1, 0, 1).behaviour.code == 7
    assert script_of(command, 0, 0, 1).behaviour.code == 0
    assert script_of(command, 1, 1, 1).behaviour.code == 0
    assert script_of(command, 1, 1, 1).log_bytes == 2048


@pytest.mark.parametrize("words", ["fro=1", "exit=x", "log=2KB", "exit"])
def test_words_that_cannot_be_read_fail_the_member_and_say_so(words: str) -> None:
    script = script_of(f"train\n# fleet: {words}", 0, 0, 60)
    assert script.problem
    assert (script.behaviour.code, script.behaviour.duration_ms) == (2, 0)


def test_a_runner_of_named_machines_is_waited_for(tmp_path: Path) -> None:
    model = Model(
        accelerator="GPU_8xH100",
        model="H100",
        devices=8,
        run_seconds=1,
        folder=tmp_path,
        socket=tmp_path / "socket",
        faults=tmp_path / "faults",
    )
    idle = Machine(model, "dev-0001", "127.0.0.1", lambda *_, **__: None)
    fault = Fault(kind=FaultKind.KILL_RUNNER, machines=("dev-0001",))
    assert not Injector([idle], 1).strike(fault), "nothing was killed"
