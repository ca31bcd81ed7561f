"""Two servers over one PostgreSQL are upgraded one after the other under a live run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import airyard
from e2e.yard import wait_for
from older_release import make_release, other_version
from postgres_server import PostgresServer
from standby_yard import StandbyYard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def yard(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path, postgres: PostgresServer
) -> Iterator[StandbyYard]:
    """Two servers' folders; nothing is started."""
    made = StandbyYard(tmp_path_factory.mktemp("standbys"), postgres.make_database(), environment_cache)
    yield made
    made.close()


def test_the_standby_then_the_leader(yard: StandbyYard, tmp_path: Path) -> None:
    older, newer = str(make_release(tmp_path / "older", -1)), str(make_release(tmp_path / "newer", 2))
    yard.start("a", release=older)
    with yard.client() as client:
        assert client.status()["version"] == other_version(-1)
        go = yard.folder / "go"
        loop = f"i=0; while [ ! -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.05; done; echo all $i"
        run_id = client.submit_file(yard.workload(loop))["run_id"]
        wait_for(lambda: client.get(run_id)["status"] == "RUNNING", what="the run")
        runner = yard.shared / "node" / "attempts" / f"{run_id}.0.0" / "runner.json"
        before = json.loads(runner.read_text())

        yard.start("b")
        yard.until_logged("b", "standing_by")
        yard.signal("a", signal.SIGTERM)
        assert yard.exit_code("a") == 0
        yard.until_logged("b", "leading")
        wait_for(lambda: client.status()["version"] == airyard.__version__, what="the new leader")
        wait_for(
            lambda: client.status()["versions"]["runners"] == [f"{run_id}.0.0"], what="the runner's poll"
        )
        mixed = client.submit_file(yard.workload("echo mixed"))["run_id"]
        assert client.wait([mixed], timeout_s=60)[0]["outcome"] == "SUCCEEDED"

        # Back as the standby that it was, then of a release too far away: that one leaves the seat alone.
        yard.start("a", release=older)
        yard.until_logged("a", "standing_by")
        assert '"event": "cannot_lead"' not in yard.log("a")
        yard.signal("a", signal.SIGTERM)
        assert yard.exit_code("a") == 0
        yard.start("a", release=newer)
        yard.until_logged("a", "cannot_lead")
        assert "UPGRADE_TOO_FAR" in yard.log("a")

        assert json.loads(runner.read_text()) == before
        go.touch()
        run = client.wait([run_id], timeout_s=60)[0]
        assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
        wait_for(lambda: client.get(run_id)["logs_complete"] is True, what="the end of the log")
        said = [
            event["line"]
            for event in client.logs(run_id)
            if event["type"] == "LOG" and event["stream"] == "stdout"
        ]
        count = int(said[-1].rpartition(" ")[2])
        assert said == [*(f"line {number + 1}" for number in range(count)), f"all {count}"]
        assert client.verify()["ok"] is True
