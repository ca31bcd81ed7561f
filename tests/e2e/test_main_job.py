"""What people do with runs beyond starting them: logs, resume, rerun, secrets, pull, explain, rm, a rendezvous."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

RENDEZVOUS = """
import os, socket, time
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NUM_NODES"])
assert int(os.environ["WORLD_SIZE"]) == nodes * int(os.environ["LOCAL_WORLD_SIZE"]) == 16
if rank == 0:
    with socket.create_server((host, port)) as server:
        peers = [server.accept()[0] for _ in range(nodes - 1)]
        total = sum(int(peer.recv(16)) for peer in peers)
        for peer in peers:
            peer.sendall(str(total).encode())
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection((host, port))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    peer.sendall(str(40 + rank).encode())
    total = int(peer.recv(16))
print("rank", rank, "has the sum", total)
"""


def log_lines(yard: Yard, *arguments: str) -> list[str]:
    return yard.ok("logs", *arguments).splitlines()


def test_two_nodes_meet_at_the_rendezvous(yard: Yard) -> None:
    folder = yard.home / "meeting"
    folder.mkdir()
    (folder / "meet.py").write_text(RENDEZVOUS)
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    path = yard.file("python meet.py", accelerator="GPU_8xH100", nodes=2, code_source=source)
    done = yard.call("run", path, "--watch")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[n0] rank 0 has the sum 41",
        "[n1] rank 1 has the sum 41",
    ]
    assert "SUCCEEDED (simulated)" in done.stderr


def test_logs_can_be_cut_and_chosen(yard: Yard, tmp_path: Path) -> None:
    command = (
        "for i in 1 2 3 4; do echo node $NODE_RANK line $i; echo trouble $i >&2; done; sleep 1.2; echo late"
    )
    run_id = str(yard.ended(yard.submit(command, accelerator="GPU_1xA10", nodes=2))["run_id"])
    everything = log_lines(yard, run_id)
    assert len(everything) == 18
    assert {line[:5] for line in everything} == {"[n0] ", "[n1] "}
    assert len(log_lines(yard, run_id, "--node", "1")) == 9
    assert log_lines(yard, run_id, "--node", "1", "--tail", "2")[-1].endswith("late")
    assert len(log_lines(yard, run_id, "--node", "0", "--tail", "2")) == 2
    matching = log_lines(yard, run_id, "--grep", r"trouble [23]$")
    assert len(matching) == 4
    assert all("trouble" in line for line in matching)
    ended = datetime.fromisoformat(yard.get(int(run_id))["ended_at"])
    since = (ended - timedelta(seconds=0.8)).astimezone(UTC).isoformat()
    assert [line[5:] for line in log_lines(yard, run_id, "--since", since)] == ["late", "late"]
    assert len(log_lines(yard, run_id, "--since", "1h")) == 18
    yard.ok("logs", run_id, "--download-to", str(tmp_path), "--node", "1")
    assert [path.name for path in tmp_path.rglob("*.log")] == ["node_1.log"]
    events = [json.loads(line) for line in yard.ok("-o", "json", "logs", run_id, "--node", "0").splitlines()]
    streams = [event["data"]["stream"] for event in events if event["type"] == "LOG"]
    assert (streams.count("stdout"), streams.count("stderr")) == (5, 4)
    assert events[-1]["type"] == "END"
    assert events[-1]["data"]["complete"] is True


def test_resume_finds_the_checkpoint_of_the_first_attempt(yard: Yard) -> None:
    command = (
        'if [ -e "$AIRYARD_CHECKPOINT_DIR/step" ]; then echo resumed at $(cat "$AIRYARD_CHECKPOINT_DIR/step"); '
        'else echo 41 > "$AIRYARD_CHECKPOINT_DIR/step"; echo first; exit 3; fi'
    )
    first = yard.ended(yard.submit(command, name="to-resume"))
    assert first["outcome"] == "FAILED"
    yard.ok("resume", "to-resume")
    run = yard.ended(first["run_id"])
    assert run["outcome"] == "SUCCEEDED"
    assert len(run["attempts"]) == 2
    run_id = str(run["run_id"])
    assert log_lines(yard, run_id) == ["resumed at 41"]
    assert log_lines(yard, run_id, "--attempt", "0")[0] == "first"


def test_rerun_is_a_new_run_with_the_same_code(yard: Yard) -> None:
    folder = yard.home / "again"
    folder.mkdir()
    (folder / "say.sh").write_text("echo before $WORD\n")
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    path = yard.file("bash say.sh", code_source=source, env_variables={"WORD": "one"})
    first = yard.ended(int(yard.data("run", path)["run_id"]))
    (folder / "say.sh").write_text("echo after $WORD\n")
    answer = yard.data("rerun", str(first["run_id"]), "--override", "env_variables.WORD=two")
    second = yard.ended(int(answer["run_id"]))
    assert second["run_id"] != first["run_id"]
    assert log_lines(yard, str(second["run_id"])) == ["before two"]


def test_a_secret_is_used_and_never_shown(yard: Yard) -> None:
    value = "correct-horse-battery"
    done = yard.call("secrets", "put", "e2e/token", stdin=value + "\n")
    assert done.returncode == 0, done.stderr
    assert [(each["scope"], each["key"]) for each in yard.data("secrets", "list")["secrets"]] == [
        ("e2e", "token")
    ]
    command = (
        'printf %s "$TOKEN" | sha256sum; echo "it is $TOKEN."; '
        'printf "cut: %s" "${TOKEN:0:9}"; sleep 0.2; echo "${TOKEN:9}"; echo "${TOKEN:0:9}"'
    )
    path = yard.file(command, secrets={"TOKEN": "e2e/token"})
    done = yard.call("run", path, "--watch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[0] == hashlib.sha256(value.encode()).hexdigest()
    assert lines[1:] == ["it is ***.", "cut: ***", "correct-h"]
    assert yard.call("secrets", "put", "e2e/short", stdin="abc").returncode == 2
    found = [
        path
        for path in yard.home.rglob("*")
        if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes()
    ]
    assert not found
    yard.ok("secrets", "delete", "e2e/token")
    assert yard.call("secrets", "delete", "e2e/token").returncode == 3
    assert yard.call("run", path).returncode == 2


def test_output_is_pulled(yard: Yard, tmp_path: Path) -> None:
    command = 'cd "$AIRYARD_OUTPUT_DIR"; mkdir sub; echo a > a.txt; head -c 70000 /dev/zero > sub/b.bin'
    run_id = str(yard.ended(yard.submit(command))["run_id"])
    yard.ok("pull", run_id, "--to", str(tmp_path / "all"))
    assert (tmp_path / "all" / "a.txt").read_text() == "a\n"
    assert (tmp_path / "all" / "sub" / "b.bin").stat().st_size == 70000
    yard.ok("pull", run_id, "sub", "--to", str(tmp_path / "part"))
    assert [path.name for path in (tmp_path / "part").rglob("*") if path.is_file()] == ["b.bin"]


def test_a_waiting_run_is_explained(yard: Yard) -> None:
    holder = yard.submit("sleep 300", accelerator="GPU_8xH100", nodes=2)
    yard.until(holder, lambda run: run["state"] == "ACTIVE")
    waiting = yard.submit("echo ran", accelerator="GPU_8xH100")
    yard.until(waiting, lambda run: run["pending"])
    told = yard.data("explain", str(waiting))
    assert told["state"] == "QUEUED"
    assert str(holder) in told["message"] or holder in told["evidence"].get("held_by", [])
    assert told["position"] == 1
    assert any(run["run_id"] == waiting for run in yard.data("queue")["runs"])
    yard.ok("cancel", str(holder))
    assert yard.ended(waiting)["outcome"] == "SUCCEEDED"


def test_a_removed_run_leaves_nothing(yard: Yard) -> None:
    run = yard.ended(yard.submit("echo gone soon", name="short-lived"))
    run_id = str(run["run_id"])
    live = yard.submit("sleep 300")
    assert yard.call("rm", "--yes", str(live)).returncode != 0
    yard.ok("cancel", str(live))
    yard.ok("rm", "--yes", "short-lived")
    assert yard.call("get", run_id).returncode == 3
    assert yard.call("logs", run_id).returncode == 3
    assert not (yard.home / "server" / "logs" / run_id).exists()
    assert not (yard.home / "node" / "runs" / run_id).exists()


def test_an_interrupted_watch_leaves_the_run_alive(yard: Yard) -> None:
    watching = yard.start("run", yard.file("echo begun; sleep 300", name="watched"), "--watch")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "begun\n"
    os.kill(watching.pid, signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert "goes on" in err
    assert yard.get(int(yard.data("get", "watched")["run_id"]))["status"] == "RUNNING"
    yard.ok("cancel", "watched")
    done = yard.call("wait", "watched", "--timeout", "30")
    assert done.returncode == 6


def test_two_clients_on_one_log_see_the_same(yard: Yard) -> None:
    run_id = str(yard.submit("for i in $(seq 1 200); do echo line $i; sleep 0.005; done"))
    yard.until(int(run_id), lambda run: run["status"] == "RUNNING")
    followers = [yard.start("logs", run_id), yard.start("watch", run_id), yard.start("logs", run_id)]
    outputs = [follower.communicate(timeout=60)[0] for follower in followers]
    assert outputs == ["".join(f"line {i}\n" for i in range(1, 201))] * 3


def test_wait_any_and_list_by_tag(yard: Yard) -> None:
    slow = yard.submit("sleep 300", tags={"kind": "pair"})
    fast = yard.submit("true", tags={"kind": "pair"})
    done = yard.call("-o", "json", "wait", str(slow), str(fast), "--any", "--timeout", "30")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert yard.call("get", "tag:kind=pair").returncode == 2
    yard.ok("cancel", str(slow))
    wait_for(lambda: yard.get(slow)["state"] == "ENDED", what="the cancelled run")
