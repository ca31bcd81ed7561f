"""Prolog and epilog as processes: output, environment, time limit, interruption, what they leave behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from airyard.node.pool_commands import (
    EPILOG,
    PROLOG,
    PoolCommandFailed,
    PoolCommandInterrupted,
    run,
    variables,
)


def order(command: str, *, name: str = PROLOG, timeout_s: float = 20.0) -> dict[str, Any]:
    """A PREPARE order with one of the commands."""
    return {
        "run_id": 12, "attempt": 1, "member": 2, "members": 4, "devices": [0, 3], "visible_devices": "GPU-a,GPU-d",
        "around": {"node": "n1", "pool": "h100", "owner": "ada", "project": "nlp"},
        name: {"command": command, "timeout_s": timeout_s},
    }  # fmt: skip


def test_without_a_command_nothing_happens() -> None:
    told: list[str] = []
    run(EPILOG, order("exit 3"), note=told.append)
    assert told == []


def test_each_line_is_told_and_the_command_knows_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_SERVER", "x")
    told: list[str] = []
    script = (
        'echo "$AIRYARD_COMMAND $AIRYARD_RUN_ID.$AIRYARD_ATTEMPT.$NODE_RANK of $NUM_NODES on $AIRYARD_NODE_NAME"; '
        'echo "$AIRYARD_DEVICES $CUDA_VISIBLE_DEVICES $AIRYARD_POOL $AIRYARD_OWNER $AIRYARD_PROJECT" >&2; '
        'echo "[$A_SECRET_OF_THE_SERVER]"; pwd'
    )
    run(PROLOG, order(script), note=told.append)
    assert told == [
        "prolog: prolog 12.1.2 of 4 on n1",
        "prolog: 0,3 GPU-a,GPU-d h100 ada nlp",
        "prolog: []",
        "prolog: /",
    ]


def test_an_order_without_a_pool_still_has_all_variables() -> None:
    bare = {key: value for key, value in order("true").items() if key != "around"}
    assert variables(EPILOG, bare)["AIRYARD_NODE_NAME"] == ""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo Xid 79; exit 3", "the prolog exited with 3: Xid 79"),
        ("exit 1", "the prolog exited with 1"),
        ("kill -9 $$", "the prolog was killed by signal 9"),
    ],
)
def test_a_failure_names_the_code_and_the_last_line(script: str, message: str) -> None:
    with pytest.raises(PoolCommandFailed) as failed:
        run(PROLOG, order(script), note=lambda _: None)
    assert failed.value.message == message


def gone(file: Path) -> bool:
    """True when the process whose id is in the file is gone (or waits to be reaped)."""
    try:
        state = Path(f"/proc/{file.read_text().strip()}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_one_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    with pytest.raises(PoolCommandFailed, match=r"the epilog was not done within 0\.3 s"):
        run(
            EPILOG,
            order(f"sleep 60 & echo $! > {child}; wait", name=EPILOG, timeout_s=0.3),
            note=lambda _: None,
        )
    for _ in range(200):
        if gone(child):
            return
        time.sleep(0.01)
    pytest.fail("its child lives on")


def test_one_that_is_interrupted_is_killed() -> None:
    told: list[str] = []
    with pytest.raises(PoolCommandInterrupted):
        run(PROLOG, order("echo begun; sleep 60"), note=told.append, should_stop=lambda: bool(told))


def test_a_daemon_that_it_leaves_lives_on_and_is_not_listened_to(tmp_path: Path) -> None:
    told: list[str] = []
    left = tmp_path / "left"
    run(PROLOG, order(f"(sleep 2; echo late) & echo $! > {left}"), note=told.append)
    assert not gone(left)
    assert told == []
    os.kill(int(left.read_text()), 9)
