"""A yard whose journal is in a real PostgreSQL: hello, kill -9, and a database that is away for a while."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for
from postgres_server import PostgresServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HELLO = Path(__file__).parents[2] / "examples" / "hello" / "workload.yaml"
PASSWORD = "correct-horse-battery"
Make = Callable[..., Yard]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory, environment_cache: Path) -> Iterator[Make]:
    """Make yards on PostgreSQL, not started yet, that are taken down with the test."""
    yards: list[Yard] = []

    def make_one(url: str, **settings: str) -> Yard:
        yard = Yard(tmp_path_factory.mktemp("yard"), environment_cache, simulate="GPU_1xA10=2")
        lines = [f"{name} = {json.dumps(value)}" for name, value in {"url": url, **settings}.items()]
        (yard.home / "config.toml").write_text("\n".join(["[journal]", *lines]))
        yards.append(yard)
        return yard

    yield make_one
    for yard in yards:
        yard.close()


@pytest.fixture
def guarded() -> Iterator[PostgresServer]:
    """A PostgreSQL that wants a password and may be killed."""
    server = PostgresServer(password=PASSWORD)
    server.start()
    yield server
    server.close()


def test_hello_on_postgres_and_back_after_kill_9(make: Make, postgres: PostgresServer) -> None:
    yard = make(postgres.make_database())
    yard.up()
    done = yard.call("run", str(HELLO), "--watch")
    assert done.returncode == 0, (done.stdout, done.stderr)
    run_id = yard.submit("for i in $(seq 1 300); do echo line $i; sleep 0.01; done")
    waiting = yard.submit("echo later", accelerator="GPU_1xA10", nodes=2)
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    before = yard.data("status")["journal"]
    assert before["place"].startswith("postgresql://airyard@")
    assert before["bytes"] > 100_000
    killed = yard.server_pid()
    os.kill(killed, signal.SIGKILL)
    run = yard.ended(run_id)
    assert yard.server_pid() != killed
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    assert yard.ended(waiting)["outcome"] == "SUCCEEDED"
    assert yard.data("status")["journal"]["epoch"] == before["epoch"] + 1
    assert len(yard.data("list", "--all")["runs"]) == 3
    assert yard.call("admin", "verify").returncode == 0
    assert not (yard.home / "server" / "journal.db").exists()


def test_a_database_that_dies_under_a_run_costs_nothing(guarded: PostgresServer, make: Make) -> None:
    yard = make(guarded.make_database())
    yard.set(AIRYARD_JOURNAL_PASSWORD=PASSWORD)
    yard.up()
    server = yard.server_pid()
    go = yard.home / "go"
    run_id = yard.submit(f"env; while [ ! -e {go} ]; do sleep 0.05; done; echo done")
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    guarded.stop(signal.SIGKILL)
    refused = yard.call("-o", "json", "run", yard.file("echo never"))
    error = json.loads(refused.stdout)["error"]
    assert (refused.returncode, error["code"], error["retryable"]) == (5, "JOURNAL_BROKEN", True)
    assert str(guarded.folder) in error["message"]
    assert error["fix"]["command"].startswith("pg_isready")
    go.touch()
    member = yard.home / "node" / "attempts" / f"{run_id}.0.0"
    wait_for(lambda: (member / "exit.json").exists(), what="the run's end")
    guarded.start()
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    assert yard.ended(yard.submit("echo again"))["outcome"] == "SUCCEEDED"
    assert yard.server_pid() == server, "it waited, it was not started again"
    assert yard.call("admin", "verify").returncode == 0
    assert "AIRYARD_JOURNAL_PASSWORD" not in yard.ok("logs", str(run_id))
    told = [
        file for file in yard.home.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()
    ]
    assert told == []


def test_a_database_that_is_away_or_locked_at_the_start_is_named(guarded: PostgresServer, make: Make) -> None:
    url = guarded.make_database()
    file = guarded.folder / "given"
    file.write_text("wrong")
    file.chmod(0o600)
    yard = make(url, password_file=str(file))
    refused = yard.call("up")
    assert refused.returncode == 5
    assert "password authentication failed" in refused.stderr
    assert "[journal] password_file" in refused.stderr
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o644)
    assert "can be read by others" in yard.call("up").stderr
    file.chmod(0o600)
    guarded.stop()
    away = yard.call("up")
    assert away.returncode == 5
    assert f"postgresql://airyard@{guarded.folder}:5432/" in away.stderr
    assert f"pg_isready -h {guarded.folder}" in away.stderr
    guarded.start()
    yard.up()
    yard.ok("down")
    wait_for(lambda: guarded.connections() == 0, what="the end of all sessions")


def test_a_yard_is_saved_while_it_works_put_back_elsewhere_and_moved(
    make: Make, postgres: PostgresServer, tmp_path: Path, environment_cache: Path
) -> None:
    old, new = make("sqlite"), make("sqlite")
    old.up()
    first = old.submit("echo one")
    old.ended(first)
    running = old.submit("sleep 60")
    old.until(running, lambda run: run["status"] == "RUNNING")
    archive = tmp_path / "yard.tar.gz"
    said = old.ok("admin", "backup", str(archive))
    assert "it holds keys" in said
    assert str(archive) in said
    old.ok("down", "--cancel-runs")
    assert "is not empty" in new.call("admin", "restore", str(archive)).stderr
    restored = tmp_path / "restored"
    new.ok("--home", str(restored), "admin", "restore", str(archive))
    moved = json.loads(
        new.ok("--home", str(restored), "-o", "json", "admin", "migrate", "--to", postgres.make_database())
    )
    url = moved["data"]["url"]
    stays = new.call("--home", str(restored), "up")
    assert stays.returncode == 2
    assert f'Set url = "{url}"' in stays.stderr
    (restored / "config.toml").write_text(f'[journal]\nurl = "{url}"\n')
    (restored / "node").mkdir()
    for name in ("envs", "uv-cache"):
        (restored / "node" / name).symlink_to(environment_cache / name)
    new.ok("--home", str(restored), "up", "--simulate", "GPU_1xA10=2")
    try:
        runs = json.loads(new.ok("--home", str(restored), "-o", "json", "list", "--all"))["data"]["runs"]
        assert {run["run_id"]: run["outcome"] for run in runs}[first] == "SUCCEEDED"
        assert running in {run["run_id"] for run in runs}
        said = new.ok("--home", str(restored), "run", new.file("echo goes on"), "--watch")
        assert "goes on" in said
        new.ok("--home", str(restored), "admin", "verify")
    finally:
        new.call("--home", str(restored), "down", "--cancel-runs")
