"""Memory and disk that run out: under a member, under its work folder, under the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.small_disk import SmallDisk, small_disk
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def small(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path
) -> Iterator[tuple[Yard, SmallDisk, SmallDisk]]:
    """A yard with one small disk under the server's folder and one under the attempts."""
    home = tmp_path_factory.mktemp("small")
    yard = Yard(home, environment_cache)
    with (
        small_disk(home / "server", 48) as of_server,
        small_disk(home / "node" / "attempts", 256) as of_node,
    ):
        yard.up()
        yield yard, of_server, of_node
        yard.close()


def test_a_host_memory_kill_is_named(yard: Yard) -> None:
    containment = yard.data("status")["containment"]
    if not containment["limits"]:
        pytest.skip(f"memory limits are not enforced here: {containment['reason']}")
    path = yard.file(
        "echo begun; python -c 'x = bytearray(400 << 20); print(len(x))'", compute={"memory": "150MiB"}
    )
    done = yard.call("run", path, "--watch", "--name", "greedy")
    assert done.returncode == 1, done.stderr
    assert "begun" in done.stdout
    assert "host memory" in done.stderr
    run = yard.data("get", "greedy")
    run = run.get("run", run)
    assert (run["outcome"], run["cause"]) == ("FAILED", "USER_LIMIT")
    assert "compute.memory" in run["failure"]["next_step"]
    # Another member's limit is no business of a run that fits.
    fits = yard.submit("python -c 'print(len(bytearray(64 << 20)))'", compute={"memory": "150MiB"})
    assert yard.ended(fits)["outcome"] == "SUCCEEDED"


def test_a_full_work_folder_fails_its_run_alone(small: tuple[Yard, SmallDisk, SmallDisk]) -> None:
    yard, _, _ = small
    command = "echo begun; dd if=/dev/zero of=big bs=1M; echo after; exit 9"
    run = yard.ended(yard.submit(command))
    assert run["outcome"] == "FAILED"
    assert run["failure"]["exit_code"] == 9
    log = yard.ok("logs", str(run["run_id"]))
    assert "No space left on device" in log
    assert "after" in log
    again = yard.ended(yard.submit("ls; echo room again"))
    assert again["outcome"] == "SUCCEEDED"
    assert yard.ok("logs", str(again["run_id"])) == "room again\n"


def test_a_full_disk_under_the_attempts_is_a_storage_fault_and_passes(
    small: tuple[Yard, SmallDisk, SmallDisk],
) -> None:
    yard, _, disk = small
    disk.fill()
    run_id = yard.submit("echo never", max_retries=0)
    run = yard.until(run_id, lambda run: run["attempts"] and run["attempts"][0]["outcome"], 30)
    disk.free()
    assert run["attempts"][0]["cause"] == "STORAGE", run["attempts"][0]
    assert "No space left on device" in run["attempts"][0]["failure"]["message"]
    run = yard.ended(run_id, 60)
    assert run["outcome"] == "SUCCEEDED"


def test_a_full_disk_under_the_journal(small: tuple[Yard, SmallDisk, SmallDisk], tmp_path: Path) -> None:
    yard, disk, _ = small
    before = yard.ended(yard.submit("echo before"))
    running = yard.submit("for i in $(seq 1 300); do echo line $i; sleep 0.01; done; echo end")
    yard.until(running, lambda run: run["status"] == "RUNNING")
    disk.fill()
    done = yard.call("-o", "json", "run", yard.file("echo refused", name="refused"), timeout=60)
    assert done.returncode == 5, done
    error = json.loads(done.stdout)["error"]
    assert error["code"] in ("JOURNAL_FULL", "DISK_FULL")
    assert error["retryable"] is True
    assert "No space left on device" in error["message"] or "is full" in error["message"]
    # Also a request that needs nothing but the journal.
    done = yard.call("-o", "json", "cancel", str(running), timeout=60)
    assert done.returncode == 5, done
    assert json.loads(done.stdout)["error"]["code"] == "JOURNAL_FULL"
    # What is known can still be read.
    assert yard.get(before["run_id"])["outcome"] == "SUCCEEDED"
    assert yard.ok("logs", str(before["run_id"])) == "before\n"
    pid = yard.server_pid()
    folder = yard.home / "node" / "attempts" / f"{running}.0.0"
    wait_for((folder / "exit.json").exists, 30, what="the end of the run")
    assert yard.get(running)["state"] == "ACTIVE"
    disk.free()
    run = yard.ended(running)
    assert run["outcome"] == "SUCCEEDED"
    assert yard.server_pid() == pid
    yard.ok("logs", str(running), "--download-to", str(tmp_path))
    (log,) = tmp_path.rglob("*.log")
    assert log.read_text() == "".join(f"line {i}\n" for i in range(1, 301)) + "end\n"
    assert yard.ended(yard.submit("echo on we go"))["outcome"] == "SUCCEEDED"
    assert "refused" not in yard.ok("list", "--state", "all")
    assert yard.call("admin", "verify").returncode == 0
