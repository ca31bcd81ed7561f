"""What a lost journal left on disk must not become part of a new run."""

from __future__ import annotations

from pathlib import Path

from airyard.server.housekeeping import Housekeeper
from airyard.server.strangers import set_aside
from server_yard import Yard


def test_only_folders_of_unknown_runs_are_moved(tmp_path: Path) -> None:
    assert set_aside(tmp_path, next_run_id=1, now_ms=5) == []
    for folder in ("server/logs/1", "server/logs/2/0", "node/runs/2/checkpoints", "node/runs/1"):
        (tmp_path / folder).mkdir(parents=True)
    moved = set_aside(tmp_path, next_run_id=2, now_ms=5)
    assert [str(path.relative_to(tmp_path)) for path in moved] == [
        "node/runs/2.not-in-journal-5",
        "server/logs/2.not-in-journal-5",
    ]
    assert (tmp_path / "node/runs/2.not-in-journal-5/checkpoints").is_dir()
    assert set_aside(tmp_path, next_run_id=2, now_ms=6) == []


def test_a_server_does_so_at_its_start(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "home")
    try:
        (yard.context.home / "node" / "runs" / "1" / "checkpoints").mkdir(parents=True)
        housekeeper = Housekeeper(yard.context)
        housekeeper.start()
        housekeeper.stop()
        (left,) = (yard.context.home / "node" / "runs").iterdir()
        assert left.name.startswith("1.not-in-journal-")
    finally:
        yard.stop()
