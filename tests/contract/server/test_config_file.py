"""The server's configuration file: defaults, precedence, and errors that name file, key and reason."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airyard.app.retention import DAY_MS, GIB
from airyard.core.errors import UserError
from airyard.core.health.idle import DEFAULT
from airyard.server.config import DEFAULT_SIMULATION, load_config, parse_simulation
from airyard.server.idle_rounds import IdleSettings


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRYARD_TRACKING_SERVER", raising=False)


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_no_file_means_one_user_on_one_machine(tmp_path: Path) -> None:
    config = load_config(None, home=tmp_path)
    assert (config.server.host, config.server.port) == ("127.0.0.1", None)
    assert config.tracking.uri == "embedded"
    assert dict(config.engine.simulate) == {}
    assert config.python_of("6") == sys.executable
    assert set(config.environments) == {"4", "5", "6"}


def test_the_home_has_a_file_of_its_own_and_the_clients_table_is_left_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        "[client]\nanything = 1\n[server]\nport = 8290\n[retention]\nlogs_days = 2\nlogs_cap_gib = 0.5\n",
    )
    config = load_config(None, home=tmp_path)
    assert config.server.port == 8290
    policy = config.retention_policy()
    assert policy.logs.age_ms == 2 * DAY_MS
    assert policy.logs.cap_bytes == GIB // 2


def test_a_base_environment_is_added_beside_the_shipped_ones(tmp_path: Path) -> None:
    write(tmp_path, '[environments.7]\npython = "/usr/bin/python3"\npackages = ["pip"]\n')
    config = load_config(None, home=tmp_path)
    assert config.python_of("7") == "/usr/bin/python3"
    assert config.environments["7"].packages == ("pip",)
    assert "6" in config.environments


def test_tests_of_idle_nodes_are_on_for_gpus_only_and_may_be_set(tmp_path: Path) -> None:
    by_itself = load_config(None, home=tmp_path).health.idle
    assert (by_itself.enabled, by_itself.settings()) == (True, IdleSettings(rules=DEFAULT))
    write(
        tmp_path,
        "[health.idle]\nafter_minutes = 0.5\nlight_every_hours = 1\nshare = 1\ncpu_slots = true\npair_gb_s = 40\n",
    )
    found = load_config(None, home=tmp_path).health.idle.settings()
    rules = replace(DEFAULT, after_ms=30_000, light_every_ms=3_600_000, share=1.0)
    assert found == IdleSettings(rules=rules, cpu_slots=True, pair_gb_s=40.0)
    for line, said in (
        ("after_minute = 3", 'health.idle.after_minute: unknown key; did you mean "after_minutes"?'),
        ("share = 0", "health.idle.share: Input should be greater than 0"),
        ("sweep_from = 3", "health.idle.sweep_from: Input should be greater than or equal to 4"),
    ):
        write(tmp_path, f"[health.idle]\n{line}\n")
        with pytest.raises(UserError) as caught:
            load_config(None, home=tmp_path)
        assert said in caught.value.message
        assert "config.toml" in caught.value.message


def test_the_environment_wins_for_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, '[tracking]\nuri = "http://elsewhere"\n')
    assert load_config(None, home=tmp_path).tracking.uri == "http://elsewhere"
    monkeypatch.setenv("AIRYARD_TRACKING_SERVER", "off")
    assert load_config(None, home=tmp_path).tracking.uri == "off"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nhots = "x"\n', ["server.hots: unknown key", 'did you mean "host"?']),
        ("[retntion]\n", ["retntion: unknown key", 'did you mean "retention"?']),
        ("[environments.6]\npakages = []\n", ["environments.6.pakages", 'did you mean "packages"?']),
        ("[server]\nport = 0\n", ["server.port", "greater than or equal to 1"]),
        ("[engine]\nsimulate = { H100 = 1 }\n", ["engine.simulate", "GPU_<count>x<MODEL>"]),
        ("[engine]\nsimulate = { GPU_8xH100 = 5000 }\n", ["engine.simulate", "at most 4096"]),
        ("[retention]\nlogs_days = -1\n", ["retention.logs_days"]),
        ("[server\n", ["is not TOML"]),
    ],
)
def test_an_error_names_file_key_and_reason(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config(path, home=tmp_path)
    assert caught.value.code == "BAD_CONFIG"
    for word in [str(path), *words]:
        assert word in caught.value.message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "[server]\nport = 0\nhots = 1\n[retention]\nlogs_days = 0\n")
    with pytest.raises(UserError) as caught:
        load_config(path, home=tmp_path)
    assert len(caught.value.details["problems"]) == 3


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_config(tmp_path / "none.toml", home=tmp_path)


def test_simulated_nodes_by_text() -> None:
    assert parse_simulation("default") == DEFAULT_SIMULATION
    assert parse_simulation("GPU_8xH100=2,GPU_1xA10") == {"GPU_8xH100": 2, "GPU_1xA10": 1}
    assert parse_simulation("GPU_1xA10=1, GPU_1xA10=2") == {"GPU_1xA10": 3}
    for bad in ("CPU=2", "GPU_8xH100=0", "GPU_8xH100=x", "H100=1", "GPU_8xH100=1,,"):
        with pytest.raises(UserError, match="no simulated node"):
            parse_simulation(bad)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ('head = "h:1"', "head needs token_file"),
        ('head = "h:1"\ntoken_file = "t"\naddress = "auto"', "exclude each other"),
        ('address = "auto"\nredis = "r:1"', "redis is for the server's own head"),
    ],
)
def test_one_head_and_what_it_needs(tmp_path: Path, lines: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_config(write(tmp_path, f"[engine.ray]\n{lines}\n"), home=tmp_path)


def test_files_of_the_fleet_lie_beside_the_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, '[engine.ray]\nhead = "h:1"\ntoken_file = "fleet.token"\n')
    assert load_config(path, home=tmp_path).engine.ray.token_file == str(tmp_path / "fleet.token")
