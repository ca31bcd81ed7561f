"""What is shipped under deploy/ must be what the programs take: units that systemd understands, a valid manifest."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from airyard.adapters.ray_command import RAY_VERSION
from airyard.server.config import Config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here (package systemd)")
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace("/opt/airyard/current/bin/airyard", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_stop_of_a_unit_leaves_the_members_of_runs_alone(unit: Path) -> None:
    assert "KillMode=process" in unit.read_text().splitlines()


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / "airyard.yaml").read_text()))


def test_the_configuration_in_the_manifest_is_one() -> None:
    (text,) = [one["data"]["config.toml"] for one in objects() if one["kind"] == "ConfigMap"]
    config = Config.model_validate(tomllib.loads(text))
    (service,) = [
        one for one in objects() if one["kind"] == "Service" and one["metadata"]["name"] == "airyard"
    ]
    assert config.server.url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert config.server.port == service["spec"]["ports"][0]["port"]


def test_the_manifest_asks_for_the_ray_that_airyard_needs() -> None:
    (cluster,) = [one for one in objects() if one["kind"] == "RayCluster"]
    assert cluster["spec"]["rayVersion"] == RAY_VERSION
