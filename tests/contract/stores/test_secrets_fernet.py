"""Secrets at rest: nothing readable on the disk, clear words about keys, names and limits."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from airyard.adapters.secrets_fernet import MAX_VALUE_BYTES, FernetSecretStore
from airyard.core.errors import InvariantBroken, NotFound, Unavailable, UserError


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], FernetSecretStore]]:
    """Open the store again and again; all are closed at the end."""
    stores: list[FernetSecretStore] = []

    def open_one() -> FernetSecretStore:
        stores.append(FernetSecretStore(tmp_path))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


Opener = Callable[[], FernetSecretStore]


def test_values_come_back_after_a_restart_and_are_not_on_the_disk(tmp_path: Path, opened: Opener) -> None:
    store = opened()
    store.put("ada", "hub", "token", "hf_väry-secret", masked=True, now_ms=5)
    store.put("ada", "hub", "pin", "12", masked=False, now_ms=6)
    store.put("bob", "hub", "token", "bobs-own", masked=True, now_ms=7)
    store.put("ada", "hub", "token", "hf_newer\nlines", masked=True, now_ms=8)
    again = opened()
    assert again.get("ada", "hub", "token") == ("hf_newer\nlines", True)
    assert again.get("ada", "hub", "pin") == ("12", False)
    assert [(name.scope, name.key, name.changed_ms, name.masked) for name in again.names("ada")] == [
        ("hub", "pin", 6, False),
        ("hub", "token", 8, True),
    ]
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"hf_" not in path.read_bytes()


def test_removed_and_unknown_secrets(opened: Opener) -> None:
    store = opened()
    store.put("ada", "hub", "token", "hf_secret", masked=True, now_ms=5)
    with pytest.raises(NotFound):
        store.get("bob", "hub", "token")
    store.delete("ada", "hub", "token")
    for use in (store.get, store.delete):
        with pytest.raises(NotFound):
            use("ada", "hub", "token")
    assert opened().names("ada") == []


@pytest.mark.parametrize(
    ("scope", "key", "value", "code"),
    [
        ("", "k", "long enough", "BAD_SECRET_NAME"),
        ("a/b", "k", "long enough", "BAD_SECRET_NAME"),
        ("s", "k" * 129, "long enough", "BAD_SECRET_NAME"),
        ("s", "k\n", "long enough", "BAD_SECRET_NAME"),
        ("s", "k", "", "EMPTY_SECRET"),
        ("s", "k", "x" * (MAX_VALUE_BYTES + 1), "SECRET_TOO_LARGE"),
        ("s", "k", "short", "SECRET_TOO_SHORT"),
    ],
)
def test_bad_names_and_values_are_refused(
    opened: Opener, scope: str, key: str, value: str, code: str
) -> None:
    store = opened()
    with pytest.raises(UserError) as refused:
        store.put("ada", scope, key, value, masked=True, now_ms=1)
    assert refused.value.code == code
    assert store.names("ada") == []


def test_the_largest_and_shortest_values_pass(opened: Opener) -> None:
    store = opened()
    store.put("ada", "s", "large", "x" * MAX_VALUE_BYTES, masked=True, now_ms=1)
    store.put("ada", "s", "short", "123456", masked=True, now_ms=1)
    assert len(store.get("ada", "s", "large")[0]) == MAX_VALUE_BYTES


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (None, "SECRETS_KEY_LOST"),
        (Fernet.generate_key(), "SECRETS_KEY_LOST"),
        (b"junk", "SECRETS_KEY_LOST"),
    ],
    ids=["missing", "another", "junk"],
)
def test_a_missing_or_wrong_key_is_said_and_nothing_is_overwritten(
    tmp_path: Path, opened: Opener, key: bytes | None, code: str
) -> None:
    opened().put("ada", "hub", "token", "hf_secret", masked=True, now_ms=5)
    right = (tmp_path / "secrets.key").read_bytes()
    (tmp_path / "secrets.key").unlink()
    if key is not None:
        (tmp_path / "secrets.key").write_bytes(key)
    with pytest.raises(Unavailable) as refused:
        opened()
    assert refused.value.code == code
    (tmp_path / "secrets.key").write_bytes(right)
    assert opened().get("ada", "hub", "token")[0] == "hf_secret"


def test_an_entry_cannot_be_passed_off_as_another(tmp_path: Path, opened: Opener) -> None:
    store = opened()
    store.put("ada", "hub", "one", "first secret", masked=True, now_ms=5)
    store.put("ada", "hub", "two", "second secret", masked=True, now_ms=5)
    store.close()
    with sqlite3.connect(tmp_path / "secrets.db") as raw:
        raw.execute("UPDATE secrets SET value = (SELECT value FROM secrets WHERE key = 'one')")
    raw.close()
    swapped = opened()
    assert swapped.get("ada", "hub", "one")[0] == "first secret"
    with pytest.raises(InvariantBroken):
        swapped.get("ada", "hub", "two")


def test_a_key_that_a_crash_left_half_made_is_made_anew(tmp_path: Path, opened: Opener) -> None:
    (tmp_path / "secrets.key.new").write_bytes(b"ha")
    opened().put("ada", "s", "k", "long enough", masked=True, now_ms=1)
    assert opened().get("ada", "s", "k")[0] == "long enough"
