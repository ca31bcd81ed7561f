"""``airyard dev fleet``: simulated machines with the real protocols and faults, on a real server."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airyard.sdk import Client
from airyard.sdk.config import Target
from airyard.sdk.submission import prepare
from e2e.yard import Yard, wait_for

pytestmark = pytest.mark.e2e

NODES = 20
GANGS = 6
FAULTS = """\
seed: 3
faults:
  - {do: slow, at: 1s, machines: 4, latency: 30ms, back_after: 4s}
  - {do: kill-agent, at: 2s, machines: 4}
  - {do: kill-runner, at: 3s}
  - {do: power-off, at: 4s, back_after: 1s}
  - {do: partition, at: 5s, machines: 3, back_after: 2s}
"""


class Fleet(Yard):
    """A data folder with a fleet in the foreground of one process."""

    process: subprocess.Popen[str]
    stderr: str = ""

    def stop(self) -> int:
        """Press Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        _, self.stderr = self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def fleet(folder: Path, *options: str) -> Iterator[Fleet]:
    made = Fleet(folder / "home", folder / "cache")
    made.process = made.start("-o", "json", "--home", str(made.home), "dev", "fleet", *options)
    try:
        assert made.process.stdout is not None
        line = made.process.stdout.readline()
        assert '"machines"' in line, made.process.communicate()
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        made.close()


def log_of(yard: Yard, run_id: int, member: int) -> list[str]:
    text = yard.ok("logs", str(run_id), "--node", str(member), "--no-follow")
    return text.splitlines()


def test_gangs_survive_what_happens_to_their_machines(tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text(FAULTS)
    with fleet(tmp_path, "--nodes", str(NODES), "--faults", str(tmp_path / "faults.yaml")) as yard:
        with Client(target=Target(home=yard.home)) as client:
            asked = [prepare(yard.file("sleep 5", accelerator="GPU_8xH100", nodes=4)) for _ in range(GANGS)]
            ids = [int(client.submit_prepared(one)["run"]["run_id"]) for one in asked]
        runs = [yard.ended(run_id, timeout=90) for run_id in ids]
        assert [run["outcome"] for run in runs] == ["SUCCEEDED"] * GANGS, runs
        for run in runs:
            attempts = run["attempts"]
            assert [attempt["outcome"] for attempt in attempts[:-1]] == ["LOST"] * (len(attempts) - 1)
            # No attempt was placed before the one before it was over on all machines.
            for earlier, later in itertools.pairwise(attempts):
                assert earlier["ended_at"] <= later["placed_at"]
            assert len(attempts[-1]["members"]) == 4
        assert any(len(run["attempts"]) > 1 for run in runs)
        last = runs[0]
        for member in range(4):
            said = [line.split("] ")[-1] for line in log_of(yard, last["run_id"], member)]
            number = last["attempts"][-1]["attempt"]
            assert [line.split(" on ")[0] for line in said] == [
                f"run {last['run_id']} attempt {number} member {member}",
                "done",
            ]
        assert "no difference" in yard.ok("admin", "verify")
        assert yard.stop() == 0
        struck = yard.stderr
        for what in ("runner-killed", "agent-back", "power-on", "partition-over", "slow-over"):
            assert what in struck, struck
        wait_for(lambda: not yard.processes(), what="the end of all processes")


def test_members_outlive_the_server_and_print_as_they_are_told(tmp_path: Path) -> None:
    with fleet(tmp_path, "--nodes", "3") as yard:
        command = "train  # 3 members\n# fleet: for=6000 log=300KiB saves=1000"
        run_id = yard.submit(command, accelerator="GPU_8xH100", nodes=3)
        yard.until(run_id, lambda run: run["status"] == "RUNNING")
        os.kill(yard.server_pid(), signal.SIGKILL)
        yard.ok("list")  # starts it again
        assert yard.data("status")["engine"] == "dev"
        run = yard.ended(run_id)
        assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
        assert run["attempts"][0]["checkpoint"]["step"] >= 1
        for member in run["attempts"][0]["members"]:
            assert member["logs"]["complete"] is True
            printed = [line for line in log_of(yard, run_id, member["member"]) if line.endswith("x" * 127)]
            assert len(printed) == 300 * 1024 // 128
        assert "no difference" in yard.ok("admin", "verify")
        assert yard.stop() == 0


def test_a_yard_with_real_machines_is_refused(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "home", tmp_path / "cache")
    (yard.home / "server").mkdir(parents=True)
    (yard.home / "server" / "journal.db").write_bytes(b"")
    done = yard.call("--home", str(yard.home), "dev", "fleet")
    assert done.returncode == 2
    assert "data folder of a yard with real machines" in done.stderr


def test_faults_are_given_by_name_and_taken_away(tmp_path: Path) -> None:
    with fleet(tmp_path, "--nodes", "6") as yard:
        node = "dev-0002-sim-8xh100-0"
        yard.ok("dev", "fault", node, "xid-79", "--device", "3")

        def moves() -> list[str]:
            return [step["after"] for step in yard.data("nodes", node)["story"]]

        # Nobody has to mend it: nodes that are simulated are mended and pass their tests at once.
        wait_for(lambda: "PROBATION" in moves(), 60, f"{node} to be taken out, mended and tested")
        story = yard.data("nodes", node)["story"]
        assert (story[0]["rule"], story[0]["after"]) == ("xid.79", "CORDONED")
        assert "GPU has fallen off the bus" in str(story[0]["evidence"])

        run_id = yard.submit("sleep 600", accelerator="GPU_8xH100")
        run = yard.until(run_id, lambda run: run["status"] == "RUNNING")
        member = run["attempts"][0]["members"][0]
        yard.ok("dev", "fault", member["node"], "power-off")
        wait_for(
            lambda: not yard.data("nodes", member["node"])["node"]["alive"], 60, "the machine to be away"
        )
        assert "), away since 20" in yard.ok("nodes", member["node"])
        for asked in (("check", "--node", member["node"]), ("pair", node, member["node"])):
            refused = yard.call("-o", "json", "health", *asked)
            assert (refused.returncode, "MACHINE_AWAY" in refused.stdout + refused.stderr) == (5, True)
        moved = yard.until(run_id, lambda run: len(run["attempts"]) == 2, timeout=120)
        assert moved["attempts"][1]["members"][0]["machine"] != member["machine"]
        yard.ok("dev", "fault", member["node"], "--clear")
        wait_for(lambda: yard.data("nodes", member["node"])["node"]["alive"], 60, "the machine to be back")

        hung = yard.call("dev", "fault", node, "hang")
        assert hung.returncode == 2
        assert "run no commands" in hung.stderr
        unknown = yard.call("dev", "fault", node, "thermel")
        assert unknown.returncode == 2
        assert "did you mean thermal?" in unknown.stderr
        assert "row-remap-failed, nvlink-down" in unknown.stderr
        nobody = yard.call("dev", "fault", "dev-0009-sim-8xh100-0", "xid-79")
        assert nobody.returncode == 3
        assert "dev-0009-sim-8xh100-0" in nobody.stderr
        assert "no difference" in yard.ok("admin", "verify")
        assert yard.stop() == 0
