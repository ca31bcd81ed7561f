"""Real runners, forked by a real zygote, against a real HTTP server that plays the control plane."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.core.log_frames import LogStream
from airyard.node.exit_record import AttemptFolder
from airyard.node.zygote import Zygote
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = pytest.mark.e2e


@pytest.fixture
def api() -> Iterator[RunnerApi]:
    server = RunnerApi()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    process = Zygote(tmp_path / "node")
    yield process
    process.close()


class Member:
    """A runner under test."""

    def __init__(self, api: RunnerApi, zygote: Zygote, node: Path, key: str = "1.0.0") -> None:
        self.token = f"aya_{key}.{secrets.token_hex(16)}"
        self.cookie = secrets.token_hex(16)
        self.side: MemberSide = api.member(self.token)
        self.folder = AttemptFolder(node / "attempts" / key)
        assert self.folder.create()
        request = {
            "key": key,
            "node": "n1",
            "devices": [0],
            "token": self.token,
            "server_url": api.url,
            "epoch": 1,
            "cookie": self.cookie,
        }
        answer = zygote.start(request, "127.0.0.1")
        assert "pid" in answer, answer
        self.pid = int(answer["pid"])

    def prepare(self, command: str, **changes: Any) -> None:
        self.side.order("PREPARE", **prepare_order(command, **changes))

    def run(self, command: str, **changes: Any) -> dict[str, Any]:
        """Prepare, go, and wait for the end."""
        self.go(command, **changes)
        self.side.report("LOGS_CLOSED", 60)
        return self.side.report("EXITED")

    def go(self, command: str, **changes: Any) -> None:
        self.prepare(command, **changes)
        self.side.report("READY")
        self.side.order("GO", **GO)

    def gone(self, timeout_s: float = 20) -> None:
        deadline = time.monotonic() + timeout_s
        while self.folder.is_locked():
            assert time.monotonic() < deadline, "the runner did not leave"
            time.sleep(0.01)


@pytest.fixture
def member(api: RunnerApi, zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(key: str = "1.0.0") -> Member:
        made.append(Member(api, zygote, tmp_path / "node", key))
        return made[-1]

    yield make
    for one in made:
        if one.folder.is_locked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        for pid in processes_with(one.cookie):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_with(cookie: str) -> list[int]:
    """Return the processes whose environment carries the cookie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if cookie.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def test_hello(member: Callable[..., Member]) -> None:
    one = member()
    exited = one.run("echo hello; echo bad >&2")
    assert exited["cause"] is None
    assert exited["code"] == 0
    assert exited["started"] is True
    assert one.side.output() == b"hello\n"
    assert one.side.output(LogStream.STDERR) == b"bad\n"
    closed = one.side.report("LOGS_CLOSED")
    assert closed["last_seq"] == one.side.records[-1].seq
    assert closed["sha256"] == one.side.frames.hexdigest()
    one.gone()
    record = one.folder.exit()
    assert record is not None
    assert record["delivered"] is True
    left = sorted(path.name for path in one.folder.path.iterdir())
    assert left == ["exit.json", "lock", "runner.json", "runner.log"]
    assert (one.folder.path / "runner.log").read_text() == ""


def test_environment_is_clean_and_complete(
    member: Callable[..., Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = member()
    one.prepare(
        "env -0; echo; pwd; cat $HYPERPARAMETERS_PATH",
        variables={"MINE": "1", "AIRYARD_RUN_ID": "9", "NODE_RANK": "9"},
        secrets={"KEY": "s3cret-value"},
        mask=["s3cret-value"],
        parameters={"lr": 0.1, "note": "ü"},
    )
    one.side.report("READY")
    tracking = {"uri": "http://127.0.0.1:1/mlflow", "run_id": "ab", "experiment_id": "3"}
    one.side.order("GO", **{**GO, "tracking": tracking})
    one.side.report("LOGS_CLOSED")
    text, _, rest = one.side.output().decode().rpartition("\0")
    seen = dict(line.partition("=")[::2] for line in text.split("\0"))
    assert seen["MINE"] == "1"
    assert seen["KEY"] == "***"
    assert seen["AIRYARD_RUN_ID"] == "1"
    assert seen["NODE_RANK"] == "0"
    assert seen["MASTER_PORT"] == "29999"
    assert seen["MLFLOW_RUN_ID"] == "ab"
    assert seen["MLFLOW_TRACKING_TOKEN"] == "***"
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert Path(seen["TMPDIR"]).parent == one.folder.path
    assert seen["AIRYARD_CHECKPOINT_DIR"].endswith("/node/runs/1/checkpoints")
    assert "AIRYARD_TOKEN" not in seen
    assert "VIRTUAL_ENV" not in seen
    assert str(one.folder.path / "work") in rest
    assert json.loads(rest[rest.index("{") :]) == {"lr": 0.1, "note": "ü"}


def test_exit_codes_signals_and_what_bash_says(member: Callable[..., Member]) -> None:
    cases = [
        ("exit 7", {"code": 7, "cause": "USER_CODE"}, "exited with 7"),
        ("kill -SEGV $$", {"code": None, "signal": 11, "cause": "USER_CODE"}, "SIGSEGV"),
        ("no-such-command-here", {"code": 127, "permanent": True}, "command not found"),
        ("echo ) oops", {"code": 2, "permanent": True}, "syntax error"),
        ("python3 -c 'raise ValueError(\"at 12\")'", {"code": 1}, "ValueError: at 12"),
    ]
    for number, (command, expected, words) in enumerate(cases):
        one = member(f"1.0.{number}")
        exited = one.run(command, member=number)
        assert {name: exited[name] for name in expected} == expected
        assert words in exited["message"]
        assert exited["fingerprint"]


def test_odd_output_arrives_as_it_was(member: Callable[..., Member]) -> None:
    one = member()
    command = (
        "printf 'no newline'; printf '\\xff\\xfe\\x80'; "
        "head -c 10485760 /dev/zero | tr '\\0' 'x'; printf 'end' >&2"
    )
    one.run(command)
    assert one.side.output() == b"no newline\xff\xfe\x80" + b"x" * 10485760
    assert one.side.output(LogStream.STDERR) == b"end"
    assert one.side.report("LOGS_CLOSED")["sha256"] == one.side.frames.hexdigest()


def test_a_secret_across_two_writes_is_masked(member: Callable[..., Member]) -> None:
    one = member()
    one.run("printf 'a hunt'; sleep 0.3; printf 'er2-secret b'", mask=["hunter2-secret"])
    assert one.side.output() == b"a *** b"


def test_the_first_output_is_shipped_at_once(member: Callable[..., Member]) -> None:
    one = member()
    one.go("echo first; exec sleep 60")
    one.side.wait(lambda: one.side.output() == b"first\n", 5)
    one.side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=5)
    exited = one.side.report("EXITED")
    assert exited["cause"] == "CANCELLED"
    assert exited["signal"] == 15


def test_nothing_survives_the_main_process(member: Callable[..., Member]) -> None:
    one = member()
    daemon = (
        "import os, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    exited = one.run(f"python3 -c '{daemon}'; (setsid sleep 601 &); sleep 0.5; echo done")
    assert exited["cause"] is None
    assert b"done" in one.side.output()
    pid = int(one.side.output().split()[0])
    assert not Path(f"/proc/{pid}").exists()
    one.gone()
    assert processes_with(one.cookie) == []


def test_stop_file_signal_grace_then_kill(member: Callable[..., Member]) -> None:
    one = member()
    one.go("trap 'cat $AIRYARD_STOP_FILE; echo' USR1; echo up; while true; do sleep 0.05; done")
    one.side.wait(lambda: b"up" in one.side.output())
    one.side.order("STOP", reason="PREEMPTED", by="run 2", signal="SIGUSR1", grace_s=60)
    one.side.wait(lambda: b"PREEMPTED" in one.side.output())
    stop = json.loads(one.side.output().split(b"\n")[1])
    assert stop["reason"] == "PREEMPTED"
    assert stop["grace_seconds"] == 60
    assert abs(stop["deadline_unix"] - time.time() - 60) < 10
    one.side.order("STOP", reason="CANCELLED", by="ann", signal="SIGUSR1", grace_s=0.2)
    exited = one.side.report("EXITED", 10)
    assert exited["signal"] == 9
    assert exited["cause"] == "PREEMPTED"
    assert "killed after 0.2 s" in exited["message"]


SAVES_WHEN_TOLD = """
import json, os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("up", flush=True)
while not told:
    time.sleep(0.02)
time.sleep(float(sys.argv[1]))
acknowledgement = os.environ["AIRYARD_CHECKPOINT_ACK"]
with open(acknowledgement + ".new", "w") as file:
    json.dump({"step": 7, "path": "c7", "time": time.time()}, file)
os.rename(acknowledgement + ".new", acknowledgement)
print("saved", flush=True)
"""


def test_what_the_shell_waits_for_has_its_grace(member: Callable[..., Member], tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES_WHEN_TOLD)
    one = member()
    one.go(f"python3 {script} 0.7; echo the shell went on")
    one.side.wait(lambda: b"up" in one.side.output())
    one.side.order("STOP", reason="PREEMPTED", by="run 2", signal="SIGTERM", grace_s=60)
    exited = one.side.report("EXITED", 20)
    assert (exited["cause"], exited["signal"]) == ("PREEMPTED", 15)
    assert one.side.output() == b"up\nsaved\n"
    assert [report["step"] for report in one.side.reports if report["kind"] == "CHECKPOINT"][-1] == 7
    assert "of grace" not in exited["message"]


def test_what_the_shell_waits_for_is_killed_when_its_grace_is_over(
    member: Callable[..., Member], tmp_path: Path
) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES_WHEN_TOLD)
    one = member()
    one.go(f"python3 {script} 600")
    one.side.wait(lambda: b"up" in one.side.output())
    one.side.order("STOP", reason="PREEMPTED", by="run 2", signal="SIGTERM", grace_s=0.5)
    exited = one.side.report("EXITED", 20)
    assert exited["cause"] == "PREEMPTED"
    assert "killed after 0.5 s" in exited["message"]
    assert processes_with(one.cookie) == []


def test_cancel_before_go(member: Callable[..., Member]) -> None:
    one = member()
    one.prepare("echo never")
    one.side.report("READY")
    one.side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=5)
    exited = one.side.report("EXITED")
    assert (exited["started"], exited["cause"]) == (False, "CANCELLED")
    assert one.side.report("LOGS_CLOSED")["sha256"] == one.side.frames.hexdigest()
    one.gone()


def test_checkpoints_are_seen_and_the_last_one_too(member: Callable[..., Member]) -> None:
    one = member()
    write = (
        'ack() { echo "{\\"step\\": $1, \\"path\\": \\"c$1\\", \\"time\\": 1}" > $AIRYARD_CHECKPOINT_ACK.x; '
        "mv $AIRYARD_CHECKPOINT_ACK.x $AIRYARD_CHECKPOINT_ACK; }; "
    )
    one.run(f"{write} ack 1; sleep 1.5; ack 2; ack 3")
    steps = [report["step"] for report in one.side.reports if report["kind"] == "CHECKPOINT"]
    assert steps[0] == 1
    assert steps[-1] == 3


def test_the_server_is_away_for_the_whole_run(member: Callable[..., Member], api: RunnerApi) -> None:
    one = member()
    one.go("sleep 0.5; for i in $(seq 2000); do echo line $i; done; echo last >&2; exit 3")
    one.side.report("STARTED")
    api.stop()
    deadline = time.monotonic() + 20
    while one.folder.exit() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert one.folder.is_locked()
    api.start()
    assert one.side.report("EXITED")["code"] == 3
    assert one.side.report("LOGS_CLOSED")["sha256"] == one.side.frames.hexdigest()
    assert one.side.output().splitlines()[-1] == b"line 2000"
    assert one.side.output(LogStream.STDERR) == b"last\n"
    one.gone()


def test_the_time_limit_needs_no_server(member: Callable[..., Member], api: RunnerApi) -> None:
    one = member()
    one.go(
        "trap '' TERM; while true; do sleep 0.05; done",
        attempt_timeout_s=1,
        stop={"signal": "SIGTERM", "grace_s": 0.5},
    )
    one.side.report("STARTED")
    api.stop()
    deadline = time.monotonic() + 15
    while (record := one.folder.exit()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert record["exited"]["cause"] == "USER_LIMIT"
    assert record["exited"]["stop_reason"] == "TIME_LIMIT"
    assert processes_with(one.cookie) == []
    api.start()
    one.side.report("LOGS_CLOSED")
    one.gone()


def test_410_kills_and_leaves(member: Callable[..., Member]) -> None:
    one = member()
    one.go("exec sleep 600")
    one.side.report("STARTED")
    with one.side.changed:
        one.side.over = True
        one.side.changed.notify_all()
    one.gone()
    record = one.folder.exit()
    assert record is not None
    assert record["exited"]["cause"] == "PLATFORM"
    assert record["delivered"] is False


def test_a_taken_port_is_noticed_before_ready(member: Callable[..., Member]) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        one = member()
        one.prepare("true", rendezvous_port=taken)
        assert one.side.report("PORT_TAKEN")["port"] == taken
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            free = other.getsockname()[1]
        one.side.order("PORT", port=free)
        one.side.report("READY")


def test_a_second_runner_cannot_take_the_folder(
    member: Callable[..., Member], zygote: Zygote, api: RunnerApi
) -> None:
    one = member()
    request = {
        "key": "1.0.0", "node": "n1", "devices": [], "token": "t", "server_url": api.url, "epoch": 1, "cookie": "c",
    }  # fmt: skip
    assert "error" in zygote.start(request, "127.0.0.1")
    assert one.run("true")["cause"] is None
