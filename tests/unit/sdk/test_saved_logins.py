"""The file of logins: who reads it, which token is for which server, and when one is no longer tried."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import Denied, UserError
from airyard.sdk import saved_logins
from airyard.sdk.config import Target, resolve
from airyard.sdk.logins import stranger


def login(token: str, ends_in_s: float = 60) -> dict[str, Any]:
    return {
        "token": token,
        "token_id": "t",
        "user": "bob",
        "expires_ms": (time.time() + ends_in_s) * 1000,
    }


def test_a_login_is_for_its_server_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = saved_logins.save(home, "https://a:1/", login("one"))
    saved_logins.save(home, "https://b:1,https://c:1", login("two"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == ["logins.json"]
    found = {host: saved_logins.token_for(home, f"https://{host}:1") for host in "abcd"}
    assert found == {"a": "one", "b": "two", "c": "two", "d": None}
    saved_logins.save(home, "https://a:1", login("newer"))
    assert resolve(host="https://a:1", home=home, environ={}).token == "newer"
    assert resolve(host="https://a:1", home=home, environ={"AIRYARD_TOKEN": "given"}).token == "given"
    saved_logins.forget(home, "https://c:1,https://b:1")
    assert saved_logins.token_for(home, "https://b:1") is None
    assert saved_logins.token_for(home, "https://a:1") == "newer"


def test_a_host_in_the_file_takes_the_login(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[client]\nhost = "https://a:1"\n[client.profiles.lab]\nhost = "https://b:1"\n'
    )
    saved_logins.save(tmp_path, "https://a:1,https://b:1", login("mine"))
    assert resolve(home=tmp_path, environ={}).token == "mine"
    assert resolve(profile="lab", home=tmp_path, environ={}).token == "mine"


def test_one_that_is_over_for_long_is_not_tried(tmp_path: Path) -> None:
    saved_logins.save(tmp_path, "https://a:1", login("old", -3600))
    assert saved_logins.token_for(tmp_path, "https://a:1") == "old", "the server says that it is over"
    saved_logins.save(tmp_path, "https://a:1", login("old", -3 * 86_400))
    assert saved_logins.token_for(tmp_path, "https://a:1") is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"https://a:1": 7}', '{"https://a:1": {"user": "bob"}}'])
def test_a_damaged_file_is_no_login(tmp_path: Path, text: str) -> None:
    (tmp_path / "logins.json").write_text(text)
    assert saved_logins.token_for(tmp_path, "https://a:1") is None
    saved_logins.save(tmp_path, "https://a:1", login("one"))
    assert saved_logins.token_for(tmp_path, "https://a:1") == "one"


def test_nobody_logs_in_where_others_listen(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="not reached over TLS"):
        stranger(Target(home=tmp_path, host="http://yard.example.org"))
    with pytest.raises(Denied, match="not reached over TLS"):
        stranger(Target(home=tmp_path, host="https://a:1,http://b:1"))
    stranger(Target(home=tmp_path, host="http://127.0.0.1:1,https://yard.example.org"))
    stranger(Target(home=tmp_path, host="http://yard.example.org"), plain=True)
    with pytest.raises(UserError, match="no server to log in to"):
        stranger(Target(home=tmp_path))
