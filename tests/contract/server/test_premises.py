"""The data folder: damaged, readable or guessable keys, the way out where the folder is held."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airyard.core.errors import Conflict, UserError
from airyard.server.premises import Premises


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def premises(tmp_path: Path) -> Premises:
    found = Premises(tmp_path)
    found.open()
    return found


def test_keys_stay_what_they_are(premises: Premises) -> None:
    for read in (premises.token, premises.attempt_key, premises.yard_id):
        assert read() == read()
    assert {mode(premises.folder / name) for name in ("token", "attempt.key", "yard.id")} == {0o600}


@pytest.mark.parametrize("damage", [b"", b" \n"])
def test_an_empty_file_is_no_token(premises: Premises, damage: bytes) -> None:
    for name in ("token", "attempt.key", "yard.id"):
        (premises.folder / name).write_bytes(damage)
    assert premises.token().startswith("ayt_")
    assert len(premises.attempt_key()) == 32
    assert premises.yard_id().startswith("yard-")


def test_a_token_that_can_be_guessed_is_refused(premises: Premises) -> None:
    (premises.folder / "token").write_text("hunter2")
    with pytest.raises(UserError, match="7 characters") as refused:
        premises.token()
    assert refused.value.code == "WEAK_TOKEN"


def test_what_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir(mode=0o755)
    (folder / "token").write_text("ayt_" + "t" * 20)
    (folder / "token").chmod(0o644)
    premises = Premises(tmp_path)
    premises.open()
    assert premises.token() == "ayt_" + "t" * 20
    assert (mode(folder), mode(folder / "token")) == (0o700, 0o600)


def test_a_held_folder_names_its_holder_and_two_ways_out(premises: Premises) -> None:
    premises.note_holder(0, "127.0.0.1", 8290)
    with pytest.raises(Conflict, match=r"at http://127\.0\.0\.1:8290") as refused:
        Premises(premises.home).open()
    assert refused.value.fix is not None
    assert "`kill " in refused.value.fix.text
