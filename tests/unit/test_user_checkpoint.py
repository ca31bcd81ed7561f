"""What user code does with ``airyard.checkpoint``; every test has a copy as fresh as a new process has."""

from __future__ import annotations

import importlib.util
import json
import threading
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import airyard
from airyard.node.exit_record import AttemptFolder, write_json_by_rename
from airyard.node.runner import read_acknowledgement

SOURCE = Path(airyard.__file__).with_name("checkpoint.py")
OURS = ("AIRYARD_CHECKPOINT_ACK", "AIRYARD_CHECKPOINT_DIR", "AIRYARD_STOP_FILE")
RANKS = ("NODE_RANK", "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def fresh_copy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fresh_checkpoint", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Place:
    """The folders of one member."""

    def __init__(self, folder: Path) -> None:
        self.attempt = AttemptFolder(folder / "1.0.0")
        self.attempt.replies.mkdir(parents=True)
        self.checkpoints = folder / "runs" / "1" / "checkpoints"
        self.checkpoints.mkdir(parents=True)

    def write(self, name: str = "last.pt") -> Path:
        path = self.checkpoints / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("weights")
        return path

    def acknowledged(self) -> tuple[int, str] | None:
        """What the runner reads."""
        seen = read_acknowledgement(self.attempt, None)
        return None if seen is None else (seen[1].step, seen[1].path)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*OURS, *RANKS):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def place(tmp_path: Path, outside: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    outside.setenv("AIRYARD_CHECKPOINT_ACK", str(made.attempt.acknowledgement_file))
    outside.setenv("AIRYARD_CHECKPOINT_DIR", str(made.checkpoints))
    outside.setenv("AIRYARD_STOP_FILE", str(made.attempt.stop_file))
    outside.setenv("NODE_RANK", "0")
    return made


@pytest.fixture
def checkpoint() -> ModuleType:
    return fresh_copy()


def test_what_is_saved_is_what_the_runner_reads(place: Place, checkpoint: ModuleType) -> None:
    path = place.write()
    assert checkpoint.saved(41, path) is True
    assert place.acknowledged() == (41, str(path))
    said = json.loads(place.attempt.acknowledgement_file.read_text())
    assert sorted(said) == ["path", "step", "time"]
    assert [entry.name for entry in place.attempt.replies.iterdir()] == ["checkpoint.json"]


@pytest.mark.parametrize("name", ["step-3.pt", "a/b/step-3/rank0.pt", "a/step-3"])
def test_a_relative_path_is_relative_to_the_checkpoint_folder(
    place: Place, checkpoint: ModuleType, name: str
) -> None:
    place.write(name if "." in name else f"{name}/rank0.pt")
    assert checkpoint.saved(3, name)
    assert place.acknowledged() == (3, str(place.checkpoints / name))
    assert checkpoint.latest() == (3, str(place.checkpoints / name))


@pytest.mark.parametrize("path", ["../../elsewhere.pt", ".", "", "/dev/null", "way/out.pt"])
def test_a_path_outside_is_refused(place: Place, checkpoint: ModuleType, path: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / "elsewhere.pt").write_text("weights")
    (tmp_path / "out.pt").write_text("weights")
    (place.checkpoints / "way").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="AIRYARD_CHECKPOINT_DIR"):
        checkpoint.saved(1, path)
    assert place.acknowledged() is None
    assert checkpoint.latest() is None


def test_a_node_that_takes_no_acknowledgement_ends_no_training(
    place: Place, checkpoint: ModuleType, outside: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outside.setenv("AIRYARD_CHECKPOINT_ACK", str(tmp_path / "missing" / "checkpoint.json"))
    with pytest.warns(RuntimeWarning, match="is saved, but not acknowledged"):
        assert checkpoint.saved(1, place.write()) is False
    assert checkpoint.latest() == (1, str(place.checkpoints / "last.pt"))


def test_a_checkpoint_that_is_not_there_is_not_acknowledged(place: Place, checkpoint: ModuleType) -> None:
    with pytest.raises(FileNotFoundError, match="after writing it"):
        checkpoint.saved(1, "missing.pt")
    (place.checkpoints / "broken").symlink_to(place.checkpoints / "missing.pt")
    with pytest.raises(FileNotFoundError):
        checkpoint.saved(1, "broken")
    assert place.acknowledged() is None


@pytest.mark.parametrize(("step", "problem"), [(-1, ValueError), (1.5, TypeError), ("7", TypeError)])
def test_a_step_is_a_whole_number_from_zero(
    place: Place, checkpoint: ModuleType, step: int, problem: type[Exception]
) -> None:
    place.write()
    with pytest.raises(problem, match="step of a checkpoint"):
        checkpoint.saved(step, "last.pt")
    assert place.acknowledged() is None


def test_an_older_step_is_left_out_unless_training_went_back(place: Place, checkpoint: ModuleType) -> None:
    for step in (100, 90):
        place.write(f"{step}.pt")
    checkpoint.saved(100, "100.pt")
    with pytest.warns(RuntimeWarning, match=r"step 90 .* step 100 .* rewind=True") as warned:
        assert checkpoint.saved(90, "90.pt") is False
    assert warned[0].filename == __file__
    assert place.acknowledged() == (100, str(place.checkpoints / "100.pt"))
    assert checkpoint.saved(100, "100.pt")
    assert checkpoint.saved(90, "90.pt", rewind=True)
    assert place.acknowledged() == (90, str(place.checkpoints / "90.pt"))
    assert checkpoint.saved(95, "90.pt")


def test_a_new_process_may_begin_lower(place: Place, checkpoint: ModuleType) -> None:
    place.write()
    checkpoint.saved(100, "last.pt")
    assert fresh_copy().saved(40, "last.pt")
    assert checkpoint.latest() == (40, str(place.checkpoints / "last.pt"))


@pytest.mark.parametrize(
    ("ranks", "writes"),
    [
        ({}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1", "RANK": "8", "LOCAL_RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, False),
        # Ranks given out in another order than the nodes': still the first process of the first node.
        ({"NODE_RANK": "0", "RANK": "8", "LOCAL_RANK": "0"}, True),
    ],
)
def test_one_process_of_a_gang_writes(
    place: Place,
    checkpoint: ModuleType,
    outside: pytest.MonkeyPatch,
    ranks: dict[str, str],
    writes: bool,
) -> None:
    for name, value in ranks.items():
        outside.setenv(name, value)
    place.write()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Others do not look at the path either: they may be on a machine without it.
        assert checkpoint.saved(5, "last.pt" if writes else "missing.pt") is writes
    assert (place.acknowledged() is not None) is writes
    assert (fresh_copy().latest() is not None) is writes


def test_rank_zero_on_another_node_is_told(
    place: Place, checkpoint: ModuleType, outside: pytest.MonkeyPatch
) -> None:
    outside.setenv("NODE_RANK", "1")
    outside.setenv("RANK", "0")
    with pytest.warns(RuntimeWarning, match="on every rank") as warned:
        assert checkpoint.saved(5, place.write()) is False
    assert warned[0].filename == __file__


def test_the_newest_is_found_by_a_later_attempt_and_by_every_rank(
    place: Place, checkpoint: ModuleType, outside: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert checkpoint.latest() is None
    place.write("step-8/model.pt")
    checkpoint.saved(8, "step-8")
    outside.setenv("NODE_RANK", "3")
    outside.setenv("RANK", "31")
    outside.setenv("AIRYARD_CHECKPOINT_ACK", str(tmp_path / "of-the-next-attempt.json"))
    assert fresh_copy().latest() == (8, str(place.checkpoints / "step-8"))
    moved = place.checkpoints.rename(tmp_path / "mounted-elsewhere")
    outside.setenv("AIRYARD_CHECKPOINT_DIR", str(moved))
    assert fresh_copy().latest() == (8, str(moved / "step-8"))
    (moved / "step-8" / "model.pt").unlink()
    (moved / "step-8").rmdir()
    assert fresh_copy().latest() is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"step": 1}', '{"step": "x", "path": "a"}', '{"step": 1, "path": 2}']
)
def test_a_broken_record_is_no_checkpoint(place: Place, checkpoint: ModuleType, text: str) -> None:
    place.write()
    checkpoint.saved(1, "last.pt")
    (record,) = (entry for entry in place.checkpoints.iterdir() if entry.suffix == ".json")
    record.write_text(text)
    assert checkpoint.latest() is None


def test_a_reader_never_sees_half_an_acknowledgement(place: Place, checkpoint: ModuleType) -> None:
    place.write()
    checkpoint.saved(0, "last.pt")
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(int(json.loads(place.attempt.acknowledgement_file.read_text())["step"]))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in range(1, 30):
            checkpoint.saved(step, "last.pt")
    finally:
        done.set()
        reader.join()
    assert seen == sorted(seen)
    assert place.acknowledged() == (29, str(place.checkpoints / "last.pt"))


def test_a_stop_is_noticed_and_its_time_is_known(place: Place, checkpoint: ModuleType) -> None:
    assert checkpoint.stop_requested() is False
    assert checkpoint.seconds_left() is None
    request = {"reason": "PREEMPTED", "deadline_unix": 4_000_000_000.0, "grace_seconds": 120}
    write_json_by_rename(place.attempt.stop_file, request)
    assert checkpoint.stop_requested() is True
    left = checkpoint.seconds_left()
    assert left > 1e9
    write_json_by_rename(place.attempt.stop_file, {**request, "deadline_unix": 1.0})
    assert checkpoint.seconds_left() == 0.0
    place.attempt.stop_file.unlink()
    assert checkpoint.stop_requested() is True


def test_outside_of_airyard_nothing_happens(
    outside: pytest.MonkeyPatch, checkpoint: ModuleType, tmp_path: Path
) -> None:
    outside.chdir(tmp_path)
    assert checkpoint.saved(1, "anything") is False
    assert checkpoint.saved(-1, "/") is False
    assert checkpoint.latest() is None
    assert checkpoint.stop_requested() is False
    assert checkpoint.seconds_left() is None
    assert list(tmp_path.iterdir()) == []
