"""The attempt folder: its lock, its records, and what is left after a torn write."""

from __future__ import annotations

import os
from pathlib import Path

from airyard.node.attempts import Attempts, Seen
from airyard.node.containment import Containment
from airyard.node.exit_record import (
    AttemptFolder,
    boot_id,
    read_json,
    start_ticks,
    write_json_by_rename,
    write_json_durably,
)

NO_GROUPS = Containment(kind="environment-cookie", limits=False, reason="a test")


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "attempts" / "1.0.0")
    assert folder.create()
    assert not folder.create()
    assert folder.key == "1.0.0"


def test_the_lock_is_exclusive_and_ends_with_its_descriptor(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "1.0.0")
    folder.create()
    assert not folder.is_locked()
    held = folder.lock()
    assert held is not None
    assert folder.is_locked()
    assert folder.lock() is None
    assert os.get_inheritable(held) is False
    os.close(held)
    assert not folder.is_locked()


def test_records_are_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "exit.json"
    assert read_json(path) is None
    write_json_durably(path, {"a": 1})
    write_json_by_rename(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    path.write_text('{"a": ')
    assert read_json(path) is None
    path.write_text("[1]")
    assert read_json(path) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["exit.json"]


def test_a_process_is_told_by_id_and_start() -> None:
    assert (start_ticks(os.getpid()) or 0) > 0
    assert start_ticks(2**22 + 1) is None


def test_attempts_are_told_apart_by_lock_record_and_boot(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, NO_GROUPS)
    for key in ("1.0.0", "1.0.1", "1.0.2", "1.0.3"):
        attempts.folder(key).create()
    held = attempts.folder("1.0.0").lock()
    assert held is not None
    write_json_durably(attempts.folder("1.0.1").exit_file, {"exited": {}})
    write_json_durably(attempts.folder("1.0.2").runner_file, {"boot_id": "another", "node": "n"})
    write_json_durably(attempts.folder("1.0.3").runner_file, {"boot_id": boot_id()})
    seen = [attempts.look(key) for key in attempts.folder_keys()]
    assert [(one.state, one.cause) for one in seen] == [
        (Seen.ALIVE, None),
        (Seen.EXITED, None),
        (Seen.DIED, "NODE"),
        (Seen.DIED, "PLATFORM"),
    ]
    assert seen[2].node == "n"
    assert not attempts.forget("1.0.0")
    os.close(held)
    assert attempts.forget("1.0.0")
    assert attempts.folder_keys() == ["1.0.1", "1.0.2", "1.0.3"]


def test_a_folder_from_before_the_boot_without_a_runner_is_the_nodes_fault(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path, NO_GROUPS)
    folder = attempts.folder("1.0.0")
    folder.create()
    assert attempts.look("1.0.0").cause == "PLATFORM"
    os.utime(folder.path, (1, 1))
    assert attempts.look("1.0.0").cause == "NODE"
