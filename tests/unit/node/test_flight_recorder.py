"""Dumps of torch's flight recorder: synthetic ones in its layout, hostile ones, and asking for one."""

from __future__ import annotations

import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airyard.node.flight import FlightReader, read_dump, variables
from airyard.node.flight_dump import summary


def entry(seq: int, state: str, **more: Any) -> dict[str, Any]:
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 3}],
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def dump(*entries: dict[str, Any], started: int = -1) -> bytes:
    status = {
        "last_enqueued_collective": 2,
        "last_started_collective": started,
        "last_completed_collective": 2,
    }
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    whole = {"version": "2.5", "entries": list(entries), "pg_config": config, "pg_status": {"0": status}}
    return pickle.dumps(whole, protocol=2)


ENTRIES = (entry(1, "completed"), entry(2, "completed"), entry(3, "scheduled"), entry(4, "x", is_p2p=True))


def test_a_dump_says_how_far_a_rank_is() -> None:
    (place,) = summary(dump(*ENTRIES))
    assert (place["group"], place["enqueued"], place["completed"], place["started"]) == ("0", 3, 2, None)
    assert place["last"][-1] == [3, "nccl:all_reduce", "[[3, 4]]", "['Float']"]
    (timed,) = summary(dump(*ENTRIES, started=2))
    assert timed["started"] == 2


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "data",
    [b"", b"no pickle", pickle.dumps([1]), pickle.dumps({"entries": [{}]}), dump(*ENTRIES)[:-40]],
    ids=["empty", "text", "list", "bare", "cut"],
)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no dump of a flight recorder"):
        summary(data)


def test_a_dump_that_would_run_something_is_refused() -> None:
    data = pickle.dumps({"entries": [Hostile()], "pg_config": {}, "pg_status": {}})
    with pytest.raises(ValueError, match="has no place in a dump"):
        summary(data)
    assert read_dump(data) is None


def test_the_child_answers_and_a_dump_too_large_for_it_is_none() -> None:
    found = read_dump(dump(*ENTRIES))
    assert found is not None
    assert found[0]["enqueued"] == 3
    # Lists of one list, which is many times larger once it is written as text than in the file.
    deep: list[object] = ["x" * 1000]
    for _ in range(9):
        deep = [deep] * 10
    assert read_dump(dump(entry(1, "completed", input_sizes=deep))) is None


def test_a_rank_is_asked_through_its_pipe(tmp_path: Path) -> None:
    names = variables(tmp_path, at_once=True)
    pipe = Path(f"{names['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}3.pipe")
    target = Path(f"{names['TORCH_FR_DUMP_TEMP_FILE']}3")
    os.mkfifo(pipe)
    ours = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def torch() -> None:
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            try:
                if os.read(ours, 128):
                    target.write_bytes(dump(*ENTRIES))
                    return
            except BlockingIOError:
                pass
            time.sleep(0.01)

    rank = threading.Thread(target=torch)
    rank.start()
    reader = FlightReader(tmp_path, None)
    reader.ask([3, 4])
    end_s = time.monotonic() + 60
    while not reader.of(3) and time.monotonic() < end_s:
        time.sleep(0.05)
    rank.join()
    os.close(ours)
    assert reader.of(3)[0]["completed"] == 2
    assert reader.of(4) == []


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("2.4.1", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE"),
        ("", "TORCH_FR_BUFFER_SIZE"),
    ],
)
def test_torch_is_told_by_the_names_it_takes_without_a_warning(
    release: str, name: str, tmp_path: Path
) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    if release:
        (packages / f"torch-{release}.dist-info").mkdir()
    found = variables(tmp_path, at_once=False, bin_folder=tmp_path / "bin")
    assert [each for each in found if each.endswith("BUFFER_SIZE")] == [name]


REAL = Path(__file__).with_name("flight_gloo_2_13.pickle")


def test_a_dump_of_a_real_torch_is_read() -> None:
    """Of three ranks with gloo, of which this one waits in its fourth all-reduce; torch 2.13, paths cut."""
    (place,) = summary(REAL.read_bytes())
    assert (place["group"], place["enqueued"], place["completed"]) == ("0", 4, 3)
    assert place["last"][-1] == [4, "gloo:all_reduce", "[[4]]", "['Float']"]


def test_nobody_is_asked_where_there_is_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "flight-pipe-0.pipe").write_text("a file")
    FlightReader(tmp_path, None).ask([0, 1])
    assert (tmp_path / "flight-pipe-0.pipe").read_text() == "a file"
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in variables(tmp_path, at_once=False)
