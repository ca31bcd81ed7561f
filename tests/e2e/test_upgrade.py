"""A rolling upgrade on one machine under live runs, back again, and what is refused: real processes of two releases."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import airyard
from e2e.yard import Yard, wait_for
from older_release import make_release, other_version

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LINES = 400
LOGGING = """
import json, os, pathlib, sys, time, urllib.error, urllib.request

uri, token = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_TRACKING_TOKEN"]
metric = dict(run_id=os.environ["MLFLOW_RUN_ID"], key="loss", value=0.5, timestamp=1, step=3)
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
print("token", token[:4], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    request = urllib.request.Request(uri + "/api/2.0/mlflow/runs/log-metric", json.dumps(metric).encode(), headers)
    release = pathlib.Path(sys.argv[2]).read_text()
    try:
        said = urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        said = error.code
    except OSError:
        continue
    if release == pathlib.Path(sys.argv[2]).read_text():
        print(release, said, flush=True)
    time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the release before this one, and two after it."""
    return {number: make_release(tmp_path_factory.mktemp(f"release{number}"), number) for number in (-1, 2)}


@pytest.fixture
def yard(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path, releases: dict[int, Path]
) -> Iterator[Yard]:
    """A yard of the release before."""
    made = Yard(tmp_path_factory.mktemp("upgraded"), environment_cache, simulate="GPU_1xA10=2")
    made.set(PYTHONPATH=str(releases[-1]))
    made.up()
    yield made
    made.set(PYTHONPATH="")
    made.close()


def start(yard: Yard) -> tuple[int, Path]:
    """Start a run that writes all the while, until its file appears; return both."""
    go = yard.home / f"go-{len(list(yard.home.glob('go-*')))}"
    go.with_suffix(".made").touch()
    loop = f"i=0; while [ ! -e {go} ] || [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.01; done"
    run_id = yard.submit(f"{loop}; echo all $i")
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    return run_id, go


def runner_of(yard: Yard, run_id: int) -> dict[str, Any]:
    found = json.loads((yard.home / "node" / "attempts" / f"{run_id}.0.0" / "runner.json").read_text())
    assert isinstance(found, dict)
    return found


def agent_version(yard: Yard) -> str:
    return str(json.loads((yard.home / "node" / "agent.json").read_text())["version"])


def change_release(yard: Yard, path: str) -> None:
    """Stop the server, leave the runs, start a server of another release."""
    yard.ok("down", "--keep-runs")
    yard.set(PYTHONPATH=path)
    yard.up()


def whole(yard: Yard, run_id: int, go: Path) -> None:
    """Have a run end, and see that it ran once and that no line of it is missing."""
    go.touch()
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
    said = yard.ok("logs", str(run_id)).splitlines()
    count = int(said[-1].rpartition(" ")[2])
    assert [line.rpartition("line ")[2] for line in said[:-1]] == [str(number + 1) for number in range(count)]


def every_request(yard: Yard, run_id: int, release: str) -> None:
    """Submit, list, get, read logs and cancel, by a client of some release."""
    made = yard.call("-o", "json", "run", yard.file("echo mixed; sleep 60"), PYTHONPATH=release)
    assert made.returncode == 0, made.stderr
    other = str(json.loads(made.stdout)["data"]["run_id"])
    wait_for(
        lambda: "mixed" in yard.call("logs", other, "--no-follow", PYTHONPATH=release).stdout, what="its log"
    )
    for verb in (
        ("list",),
        ("get", str(run_id)),
        ("logs", str(run_id), "--tail", "1", "--no-follow"),
        ("cancel", other),
    ):
        done = yard.call(*verb, PYTHONPATH=release)
        assert done.returncode == 0, (verb, done.stdout, done.stderr)
    yard.until(int(other), lambda run: run["state"] == "ENDED" and run["outcome"] == "CANCELLED")


def test_up_by_a_release_and_back_under_live_runs(yard: Yard, releases: dict[int, Path]) -> None:
    older, old = str(releases[-1]), other_version(-1)
    run_id, go = start(yard)
    before = runner_of(yard, run_id)
    assert (before["version"], agent_version(yard)) == (old, old)
    every_request(yard, run_id, "")

    change_release(yard, "")
    status = yard.data("status")
    assert status["version"] == airyard.__version__
    wait_for(lambda: agent_version(yard) == airyard.__version__, what="the agent of this release")
    assert runner_of(yard, run_id) == before
    wait_for(
        lambda: yard.data("status")["versions"]["runners"] == [f"{run_id}.0.0"], what="its runner's poll"
    )
    assert "started by an older release" in yard.ok("status")
    every_request(yard, run_id, older)
    second, second_go = start(yard)
    whole(yard, run_id, go)
    assert yard.data("status")["versions"] == {"server": airyard.__version__, "machines": [], "runners": []}

    change_release(yard, older)
    assert yard.data("status")["version"] == old
    wait_for(lambda: agent_version(yard) == old, what="the agent of the release before")
    assert runner_of(yard, second)["version"] == airyard.__version__
    third, third_go = start(yard)
    whole(yard, second, second_go)
    change_release(yard, "")
    whole(yard, third, third_go)
    assert yard.data("admin", "verify")["ok"] is True


@pytest.mark.timeout(480)
def test_commands_of_both_releases_track_at_this_ones_server(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path, releases: dict[int, Path]
) -> None:
    """Back at the older server, those of this release's runners cannot: docs/operate/upgrade.md says so."""
    yard = Yard(tmp_path_factory.mktemp("tracking"), environment_cache, tracking="embedded")
    (yard.home / "track.py").write_text(LOGGING)
    at, go = yard.home / "at", yard.home / "go"

    def begin() -> int:
        return yard.submit(f"{shlex.quote(sys.executable)} {yard.home}/track.py {go} {at}")

    def becomes(path: str, name: str, *, first: bool = False) -> None:
        at.write_text("between")
        if first:
            yard.set(PYTHONPATH=path)
            yard.up()
        else:
            change_release(yard, path)
        wait_for(lambda: yard.data("status")["mlflow"]["kind"] == "up", 90, "MLflow")
        at.write_text(name)

    def said(run_id: int, line: str) -> None:
        wait_for(lambda: line in yard.ok("logs", str(run_id), "--no-follow").splitlines(), 60, line)

    try:
        becomes(str(releases[-1]), "older", first=True)
        old = begin()
        for line in ("token aya_", "older 200"):
            said(old, line)
        becomes("", "newer")
        new = begin()
        for run_id, line in ((old, "newer 200"), (new, "token ayc_"), (new, "newer 200")):
            said(run_id, line)
        becomes(str(releases[-1]), "back")
        said(old, "back 200")
        said(new, "back 401")
        go.touch()
        for run_id in (old, new):
            assert yard.ended(run_id)["outcome"] == "SUCCEEDED"
    finally:
        yard.set(PYTHONPATH="")
        go.touch()
        yard.close()


def test_more_than_a_release_at_a_time_is_refused_while_runs_are_live(
    yard: Yard, releases: dict[int, Path]
) -> None:
    run_id, go = start(yard)
    yard.ok("down", "--keep-runs")
    refused = yard.call("-o", "json", "up", PYTHONPATH=str(releases[2]))
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0, said
    for word in ("UPGRADE_TOO_FAR", other_version(-1), other_version(2), "one release at a time"):
        assert word in said, said
    yard.up()
    whole(yard, run_id, go)
    # With nothing live any older release will do; back is one release at most.
    change_release(yard, str(releases[2]))
    yard.ok("down")
    refused = yard.call("-o", "json", "up", PYTHONPATH=str(releases[-1]))
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0, said
    for word in ("DOWNGRADE_TOO_FAR", other_version(-1), other_version(2)):
        assert word in said, said
