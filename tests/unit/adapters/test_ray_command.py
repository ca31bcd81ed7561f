"""How Ray is called: the version asked for, ports and tokens that stay, folders that sockets fit into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import airyard
from airyard.adapters import ray_command

SOURCE = Path(airyard.__file__).parents[1]
CHECK = """
import sys
sys.path = [{first!r}, {source!r}, *sys.path]
from airyard.adapters.ray_command import check_ray
from airyard.core.errors import UserError
try:
    check_ray()
except UserError as error:
    print(error.code, error.message, error.fix.command)
"""


def checked(first: Path) -> str:
    """Check Ray in an interpreter that has no installed packages but those in ``first``."""
    script = CHECK.format(first=str(first), source=str(SOURCE))
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_missing_ray_is_told_with_the_command_that_brings_it(tmp_path: Path) -> None:
    said = checked(tmp_path)
    assert said.startswith("RAY_MISSING ")
    assert f"Airyard needs Ray {ray_command.RAY_VERSION}" in said
    assert said.strip().endswith("pip install 'airyard[server,ray]'")


def test_another_ray_is_told_with_both_versions(tmp_path: Path) -> None:
    folder = tmp_path / "ray-2.9.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.1\n")
    said = checked(tmp_path)
    assert said.startswith("RAY_VERSION ")
    assert "2.9.1" in said
    assert ray_command.RAY_VERSION in said


def test_the_extra_asks_for_the_version_that_is_checked() -> None:
    project = (SOURCE.parent / "pyproject.toml").read_text()
    assert f'ray = ["ray=={ray_command.RAY_VERSION}"]' in project


def test_ports_are_chosen_once(tmp_path: Path) -> None:
    first = ray_command.kept_ports(tmp_path, ("gcs", "node_manager"), "127.0.0.1")
    assert len(set(first.values())) == 2
    more = ray_command.kept_ports(tmp_path, ("gcs", "node_manager", "object_manager"), "127.0.0.1")
    assert {name: more[name] for name in first} == first


def test_a_token_is_private_and_stays_and_a_given_one_wins(tmp_path: Path) -> None:
    path = ray_command.token_file(tmp_path / "a")
    made = path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert ray_command.token_file(tmp_path / "a").read_text() == made
    given = tmp_path / "given"
    given.write_text("f" * 64 + "\n")
    assert ray_command.token_file(tmp_path / "a", given).read_text() == "f" * 64


@pytest.mark.parametrize("depth", [0, 9])
def test_rays_sockets_fit_into_its_folder(tmp_path: Path, depth: int) -> None:
    home = Path("/h", *["0123456789"] * depth)
    found = ray_command.temporary_folder(home)
    socket_path = found / "session_2026-12-02_04-02-23_779537_1234567" / "sockets" / "plasma_store"
    assert len(str(socket_path)) <= 107
    assert (found == home / "tmp") == (depth == 0)
