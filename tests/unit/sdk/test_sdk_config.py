"""Which server: flag, environment, file, embedded; profiles only when named."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.sdk.config import resolve


def write(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


def test_nothing_configured_is_the_embedded_server(tmp_path: Path) -> None:
    target = resolve(environ={"AIRYARD_HOME": str(tmp_path / "home")})
    assert (target.host, target.home, target.origin) == (None, tmp_path / "home", "embedded")


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    write(tmp_path, '[client]\nhost = "http://file"\ntoken = "file-token"\n')
    environ = {"AIRYARD_HOME": str(tmp_path), "AIRYARD_HOST": "http://env", "AIRYARD_TOKEN": "env-token"}
    assert resolve(host="http://flag", environ=environ).host == "http://flag"
    assert resolve(environ=environ).host == "http://env"
    del environ["AIRYARD_HOST"], environ["AIRYARD_TOKEN"]
    target = resolve(environ=environ)
    assert (target.host, target.token, target.origin) == ("http://file", "file-token", "config.toml")


def test_a_host_without_a_token_tries_the_local_one(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "token").write_text("ayt_local\n")
    assert resolve(host="http://127.0.0.1:1", home=tmp_path, environ={}).token == "ayt_local"


def test_databricks_settings_count_only_for_a_named_profile(tmp_path: Path) -> None:
    cfg = tmp_path / "databrickscfg"
    cfg.write_text("[DEFAULT]\nhost = http://default\n[lab]\nhost = http://lab\ntoken = dapi1\n")
    environ = {"DATABRICKS_CONFIG_FILE": str(cfg), "DATABRICKS_HOST": "http://stray"}
    assert resolve(home=tmp_path, environ=environ).host is None
    target = resolve(profile="lab", home=tmp_path, environ=environ)
    assert (target.host, target.token) == ("http://lab", "dapi1")
    with pytest.raises(UserError, match="no profile 'other'"):
        resolve(profile="other", home=tmp_path, environ=environ)


def test_own_profiles_come_first_and_tokens_may_lie_in_files(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("from-file\n")
    write(tmp_path, f'[client.profiles.lab]\nhost = "http://lab"\ntoken_file = "{tmp_path / "t"}"\n')
    assert resolve(profile="lab", home=tmp_path, environ={}).token == "from-file"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "[client\n")
    with pytest.raises(UserError, match=r"config\.toml is not valid TOML"):
        resolve(home=tmp_path, environ={})


def test_the_token_is_not_in_the_repr(tmp_path: Path) -> None:
    assert "ayt_x" not in repr(resolve(host="http://h", token="ayt_x", home=tmp_path, environ={}))
