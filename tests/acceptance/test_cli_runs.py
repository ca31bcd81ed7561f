"""Runs by the command line, on a real server with simulated nodes: text, JSON, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from acceptance_yard import COMMAND, Yard, masked

pytestmark = pytest.mark.e2e


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the data of an envelope."""
    return json.loads(done.stdout)["data"]


def test_a_watched_run_prints_its_output_and_nothing_else_to_stdout(yard: Yard) -> None:
    done = yard.run("run", yard.write("hello", "echo hello\necho to stderr >&2"), "--watch")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["hello", "to stderr"]
    lines = masked(done.stderr).splitlines()
    assert lines[:2] == ["no code_source: no code is sent", "run <n> submitted: hello on CPU"]
    assert lines[-2] == "run <n>: queued <time> · environment <time> · code <time> · started" or any(
        "· started" in line for line in lines
    )
    assert lines[-1] == "run <n> SUCCEEDED · <time>"


def test_several_nodes_are_told_apart_and_a_simulated_success_says_so(yard: Yard) -> None:
    file = yard.write("gang", "echo rank $NODE_RANK of $NUM_NODES", accelerator="GPU_1xA10", count=2)
    done = yard.run("run", "-f", file, "--watch")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[n0] rank 0 of 2", "[n1] rank 1 of 2"]
    assert "SUCCEEDED (simulated)" in done.stderr.splitlines()[-1]


def test_a_failure_exits_by_its_cause_and_names_the_next_step(yard: Yard) -> None:
    file = yard.write("fails", "exit 7")
    done = yard.run("run", file, "--watch")
    assert done.returncode == 1, done.stderr
    assert "run <n> FAILED · <time>: USER_CODE on node 0" in masked(done.stderr)
    assert done.stderr.splitlines()[-1].startswith("next: ")
    assert yard.run("run", file, "--watch", "--propagate").returncode == 7
    assert yard.run("get", "@last", "--exit-status").returncode == 1
    assert yard.run("get", "@last").returncode == 0


def test_json_lines_from_submit_to_end(yard: Yard) -> None:
    done = yard.run("run", yard.write("lines", "echo one\necho two"), "--watch", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["v"] == 1 and line["ts"].endswith("Z") for line in lines)
    kinds = [line["type"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("SUBMITTED", "TERMINAL")
    assert [line["data"]["line"] for line in lines if line["type"] == "LOG"] == ["one", "two"]
    assert lines[-1]["data"]["exit_code"] == 0


def test_the_same_key_is_the_same_run(yard: Yard) -> None:
    file = yard.write("keyed", "true")
    first = data(yard.run("run", file, "--idempotency-key", "k1", "-o", "json"))
    again = data(yard.run("run", file, "--idempotency-key", "k1", "-o", "json"))
    assert (first["existing"], again["existing"], again["run_id"]) == (False, True, first["run_id"])
    other = yard.run("run", file, "--idempotency-key", "k1", "--override", "command=false")
    assert other.returncode == 2
    assert "command" in other.stderr


def test_code_is_sent_once_and_output_comes_back(yard: Yard) -> None:
    code = yard.work / "code"
    code.mkdir()
    (code / "main.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['AIRYARD_OUTPUT_DIR'], 'sub').mkdir()\n"
        "pathlib.Path(os.environ['AIRYARD_OUTPUT_DIR'], 'sub', 'out.txt').write_text('result')\n"
        "print(pathlib.Path('main.py').exists())\n"
    )
    file = yard.write("coded", "python main.py", more="code_source: {root_path: code}\n")
    plan = data(yard.run("run", file, "--dry-run", "-o", "json"))
    assert plan["dry_run"]["upload"]["needed"] is True
    done = yard.run("run", file, "--watch", "--name", "coded-1")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    plan = data(yard.run("run", file, "--dry-run", "-o", "json"))
    assert (plan["status"], plan["dry_run"]["upload"]["needed"]) == ("DRY_RUN_OK", False)
    pulled = yard.run("pull", "coded-1", "--to", "here")
    assert pulled.returncode == 0, pulled.stderr
    assert (yard.work / "here" / "sub" / "out.txt").read_text() == "result"


def test_rerun_with_another_value_keeps_the_code(yard: Yard) -> None:
    yard.run("run", yard.write("again", "cat $HYPERPARAMETERS_PATH", more="parameters: {lr: 1}\n"), "--watch")
    done = yard.run("rerun", "@last", "--override", "parameters.lr=2", "--watch")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"lr": 2}), done.stderr


def test_cancel_leaves_a_complete_log(yard: Yard) -> None:
    file = yard.write("long", "echo begun\nsleep 300")
    watch = yard.spawn("run", file, "--watch", "--name", "long-1")
    assert watch.stdout is not None
    assert watch.stdout.readline() == "begun\n"
    assert yard.run("cancel", "long-1").returncode == 0
    _, err = watch.communicate(timeout=60)
    assert watch.returncode == 6, err
    assert "CANCELLED" in err.splitlines()[-1] or "CANCELLED" in err
    again = yard.run("cancel", "long-1")
    assert (again.returncode, "already ended" in again.stdout) == (0, True)
    logs = yard.run("logs", "long-1")
    assert logs.stdout.splitlines()[0] == "begun"
    assert data(yard.run("get", "long-1", "-o", "json"))["logs_complete"] is True


def test_ctrl_c_leaves_the_run_alive(yard: Yard) -> None:
    watch = yard.spawn("run", yard.write("alive", "echo begun\nsleep 300"), "--watch", "--name", "alive-1")
    assert watch.stdout is not None
    assert watch.stdout.readline() == "begun\n"
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=30)
    assert watch.returncode == 130
    assert "airyard watch" in err.splitlines()[-1]
    assert data(yard.run("get", "alive-1", "-o", "json"))["status"] == "RUNNING"
    refused = yard.run("down")
    assert refused.returncode == 2
    assert "alive" in refused.stderr
    assert yard.run("wait", "alive-1", "--timeout", "0.2").returncode == 8
    yard.run("cancel", "alive-1")
    assert yard.run("wait", "alive-1").returncode == 6


def test_logs_tail_grep_and_download(yard: Yard) -> None:
    file = yard.write("many", "for i in $(seq 200); do echo line $i; done; printf 'a\\xffb\\n'")
    assert yard.run("run", file, "--watch", "--name", "many-1").returncode == 0
    assert yard.run("logs", "many-1", "--tail", "2").stdout.splitlines() == ["line 200", "a�b"]
    assert yard.run("logs", "many-1", "--grep", "line 1.$").stdout.splitlines() == [
        f"line {number}" for number in range(10, 20)
    ]
    assert yard.run("logs", "many-1", "--download-to", "d").returncode == 0
    raw = (yard.work / "d" / "logs" / "node_0.log").read_bytes()
    assert (raw.count(b"\n"), raw[-4:]) == (201, b"a\xffb\n")


def test_a_reader_that_leaves_is_no_error(yard: Yard) -> None:
    yard.run("run", yard.write("pipe", "seq 20000"), "--watch", "--name", "pipe-1")
    piped = subprocess.run(
        f"{' '.join(COMMAND)} logs pipe-1 | head -1",
        shell=True,
        capture_output=True,
        text=True,
        env=yard.environ,
        cwd=yard.work,
        check=False,
    )
    assert (piped.stdout, piped.stderr) == ("1\n", "")


def test_looking_around(yard: Yard) -> None:
    assert yard.run("list").stdout.splitlines()[0].split()[:3] == ["ID", "NAME", "STATUS"]
    assert "GPU_1xA10" in yard.run("pools").stdout
    nodes = data(yard.run("nodes", "-o", "json"))["nodes"]
    assert sum(node["simulated"] for node in nodes) == 2
    status = data(yard.run("status", "-o", "json"))
    assert status["pid"] > 0
    assert "airyard" in yard.run("status").stdout
    assert yard.run("queue").returncode == 0
    doctor = yard.run("doctor", "-o", "json")
    assert doctor.returncode == 0, doctor.stdout
    assert {check["level"] for check in data(doctor)["checks"]} <= {"ok", "warn"}


def test_what_cannot_run_is_said_at_once(yard: Yard) -> None:
    done = yard.run("run", "--gpus", "8", "--model", "B300", "--", "true", "-o", "json")
    assert done.returncode == 2
    done = yard.run("-o", "json", "run", "--gpus", "8", "--model", "B300", "--", "true")
    assert json.loads(done.stdout)["error"]["code"] == "NO_SUCH_ACCELERATOR"
    assert yard.run("get", "9999").returncode == 3
    wrong = yard.run("list", "--host", status_url(yard))
    assert wrong.returncode == 0  # the local token fits the local server
    yard.extra["AIRYARD_TOKEN"] = "ayt_wrong"
    try:
        refused = yard.run("list", "--host", status_url(yard))
    finally:
        del yard.extra["AIRYARD_TOKEN"]
    assert refused.returncode == 4
    assert "has not proved" in refused.stderr


def status_url(yard: Yard) -> str:
    """Return the server's address."""
    return str(json.loads((yard.home / "server" / "endpoint.json").read_text())["url"])


def test_a_waiting_run_says_why(yard: Yard) -> None:
    file = yard.write("holds", "sleep 300", accelerator="GPU_1xA10", count=2)
    yard.run("run", file, "--name", "holds-1")
    yard.run("run", file, "--name", "waits-1")
    try:
        found = data(yard.run("explain", "waits-1", "-o", "json"))
        assert found["state"] == "QUEUED"
        assert found["message"]
        assert "waits-1" in yard.run("queue").stdout
        assert yard.run("explain", "waits-1").returncode == 0
        logs = yard.run("logs", "waits-1", "--no-follow")
        assert "waits" in logs.stderr
    finally:
        yard.run("cancel", "waits-1", "holds-1")
        yard.run("wait", "waits-1", "holds-1")


def test_secrets_reach_the_command_and_no_log(yard: Yard) -> None:
    put = yard.run("secrets", "put", "hub/token", stdin="s3cret-value-42\n")
    assert put.returncode == 0, put.stderr
    assert "hub/token" in yard.run("secrets", "list").stdout
    file = yard.write("masked", "echo ${#TOKEN} $TOKEN", more="secrets: {TOKEN: hub/token}\n")
    done = yard.run("run", file, "--watch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("15 ")
    assert "s3cret" not in done.stdout
    assert yard.run("secrets", "delete", "hub/token").returncode == 0
    assert yard.run("secrets", "delete", "hub/token").returncode == 3


def test_removed_runs_are_gone(yard: Yard, tmp_path: Path) -> None:
    yard.run("run", yard.write("gone", "true"), "--watch", "--name", "gone-1")
    assert yard.run("rm", "gone-1", "-y").returncode == 0
    assert yard.run("get", "gone-1").returncode == 3


def test_resume_is_a_new_attempt_of_the_same_run(yard: Yard) -> None:
    file = yard.write("resumed", "echo attempt $AIRYARD_ATTEMPT\ntest $AIRYARD_ATTEMPT -ge 1")
    assert yard.run("run", file, "--watch", "--name", "resumed-1").returncode == 1
    done = yard.run("resume", "resumed-1", "--watch")
    assert done.returncode == 0, done.stderr
    run = data(yard.run("get", "resumed-1", "-o", "json"))
    assert (run["outcome"], [attempt["outcome"] for attempt in run["attempts"]]) == (
        "SUCCEEDED",
        ["FAILED", "SUCCEEDED"],
    )
    assert yard.run("logs", "resumed-1", "--attempt", "0").stdout == "attempt 0\n"


def test_endings_have_their_exit_codes(yard: Yard) -> None:
    late = yard.write("late", "sleep 300", more="timeouts: {total: 2s}\n")
    unbuildable = yard.write(
        "unbuildable", "true", more="environment: {dependencies: [no-such-package==9.9.9]}\n"
    )
    missing = yard.write("missing", "no-such-command")
    assert yard.run("run", late, "--watch").returncode == 8
    assert yard.run("run", unbuildable, "--watch").returncode == 9
    done = yard.run("run", missing, "--watch", "--propagate")
    assert done.returncode == 127


def test_housekeeping(yard: Yard) -> None:
    assert "would be removed" in yard.run("admin", "gc", "--dry-run").stdout
    verified = yard.run("admin", "verify")
    assert (verified.returncode, "no difference" in verified.stdout) == (0, True), verified.stdout


def test_a_member_that_ends_early_takes_no_sibling_along(yard: Yard) -> None:
    file = yard.write(
        "early", "sleep $NODE_RANK; sleep $NODE_RANK; echo bye", accelerator="GPU_1xA10", count=2
    )
    done = yard.run("run", file, "--watch")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[n0] bye", "[n1] bye"]
