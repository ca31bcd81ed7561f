"""A fleet whose server has a certificate of a private CA: joins, runs, logs and tracking all go over TLS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from certificates import Authority
from e2e.fleet import Fleet, fleet_on_hosts
from e2e.hosts import Hosts
from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
TRACKED = """
python - <<'PYTHON'
import os, ssl, urllib.request
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 0.25)
server = os.environ["MLFLOW_TRACKING_URI"].removesuffix("/mlflow")
context = ssl.create_default_context(cafile=os.environ["AIRYARD_CA_FILE"])
question = f"{server}/api/v1/identify?nonce=00112233445566778899aabbccddeeff"
with urllib.request.urlopen(question, context=context) as answer:
    print("asked", server, answer.status)
PYTHON
"""


class TlsFleet(Fleet):
    """A fleet with TLS, whose server's own machine runs members, too."""

    def __init__(self, hosts: Hosts, folder: Path, cache: Path, authority: Authority) -> None:
        super().__init__(hosts, folder, cache)
        self.ca = authority.ca
        certificate, key = authority.issue("yard", hosts[0].address)
        (self.home / "config.toml").write_text(
            f'[server]\nhost = "{hosts[0].address}"\n'
            f'tls = {{certificate = "{certificate}", key = "{key}", ca = "{authority.ca}"}}\n'
            '[engine]\nkind = "ray"\ncpu_slots = 1\n'
        )
        self.set(AIRYARD_TRACKING_SERVER="embedded")

    def address(self) -> str:
        """See Fleet: of the door that speaks TLS."""
        port = json.loads((self.home / "server" / "ports.json").read_text())["https"]
        return f"{self.hosts[0].address}:{port}"


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[TlsFleet]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    with fleet_on_hosts(
        2, lambda hosts: TlsFleet(hosts, folder, environment_cache, authority), make_yard
    ) as made:
        yield made


def test_a_fleet_over_tls_with_a_private_ca(fleet: TlsFleet, tmp_path: Path) -> None:
    elsewhere = Authority(tmp_path, "elsewhere").ca
    refused = fleet.on(fleet.hosts[1], *fleet.join_arguments(), "--ca-file", str(elsewhere))
    assert refused.returncode != 0
    assert "issued by nobody whom this machine trusts" in refused.stderr
    fleet.join(fleet.hosts[1], "--ca-file", str(fleet.ca))
    kept = fleet.home_of(fleet.hosts[1]) / "node" / "ca.pem"
    assert kept.read_bytes() == fleet.ca.read_bytes()
    for machine, shape in (("h1", {"accelerator": "GPU_8xH100"}), ("h0", {})):
        if machine == "h0":
            fleet.ok("cordon", "h1-cpu-0")
        run = fleet.ended(fleet.submit(TRACKED, **shape))
        assert run["outcome"] == "SUCCEEDED", (run, fleet.ok("logs", str(run["run_id"]), "--no-follow"))
        assert run["attempts"][0]["members"][0]["machine"] == machine
        assert run["attempts"][0]["members"][0]["logs"]["complete"] is True
        said = fleet.ok("logs", str(run["run_id"]), "--no-follow")
        assert f"asked https://{fleet.address()} 200" in said
        found = fleet.data("metrics", str(run["run_id"]))["runs"][0]["metrics"]
        assert found["loss"]["value"] == 0.25
    done = fleet.on(fleet.hosts[1], "node", "leave")
    assert done.returncode == 0, (done.stdout, done.stderr)
