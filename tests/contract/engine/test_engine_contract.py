"""The engine port, on this machine and over Ray: real agent, zygote and runners, ``kill -9`` included."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.local_engine import LocalEngine
from airyard.adapters.ray_command import own_address, temporary_folder
from airyard.adapters.ray_engine import Cluster, RayEngine
from airyard.adapters.ray_head import RayHead
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.commands import MachineAway, MachineSeen, MemberGone, SeenMember, SeenState
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogStream
from airyard.core.run import Cause
from airyard.node.environment import EnvironmentRequest, EnvironmentStore
from airyard.node.inventory import host_name
from airyard.ports.engine import ContainmentSeen, Fact, Samples
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = pytest.mark.e2e


MakeEngine = Callable[[Path, str], LocalEngine | RayEngine]
SIMULATE = {"GPU_8xH100": 2, "GPU_1xA10": 1}


def local_engine(home: Path, url: str) -> LocalEngine:
    return LocalEngine(home, server_url=url, simulate=SIMULATE, cpu_slots=3, gpu_lock_folder=home / "gpus")


class Yard:
    """An engine with its home, the facts it told, and a control plane for its runners."""

    machine = host_name()

    def __init__(self, home: Path, make: MakeEngine = local_engine) -> None:
        self.home = home
        self.make = make
        self.api = RunnerApi()
        self.api.start()
        self.facts: list[Fact] = []
        self.changed = threading.Condition()
        self.cookies: list[str] = []
        self.tokens: dict[str, str] = {}
        self.engine = self.new_engine()

    def new_engine(self) -> LocalEngine | RayEngine:
        engine = self.make(self.home, self.api.url)
        engine.connect(self.on_fact)
        return engine

    def on_fact(self, fact: Fact) -> None:
        with self.changed:
            self.facts.append(fact)
            self.changed.notify_all()

    def wait(self, kind: type, test: Callable[[Any], bool] = lambda _: True, after: int = 0) -> Any:
        def found() -> list[Fact]:
            return [fact for fact in self.facts[after:] if isinstance(fact, kind) and test(fact)]

        with self.changed:
            assert self.changed.wait_for(found, 30), f"no {kind.__name__} in {self.facts[after:]}"
            return found()[0]

    def gone(self, key: str, after: int = 0) -> SeenMember:
        fact = self.wait(MemberGone, lambda fact: str(fact.seen.key) == key, after)
        return fact.seen

    def start(self, key: str) -> MemberSide:
        token = self.tokens.setdefault(key, f"aya_{key}.{secrets.token_hex(8)}")
        cookie = secrets.token_hex(16)
        self.cookies.append(cookie)
        side = self.api.member(token)
        action = StartMember(
            key=MemberKey.parse(key), machine=self.machine, node="n", devices=(0,), epoch=1, cookie=cookie
        )
        self.engine.start(action, token)
        return side

    def run(self, key: str, command: str) -> MemberSide:
        """Start a member and have its command running."""
        side = self.start(key)
        side.order("PREPARE", **prepare_order(command))
        side.report("READY")
        side.order("GO", **GO)
        side.report("STARTED")
        return side

    def folder(self, key: str) -> Path:
        return self.home / "node" / "attempts" / key

    def pid(self, key: str) -> int:
        return int(json.loads((self.folder(key) / "runner.json").read_text())["pid"])

    def agent_pid(self) -> int:
        return int(json.loads((self.home / "node" / "agent.json").read_text())["pid"])

    def close(self) -> None:
        for path in (self.home / "node" / "attempts").glob("*/runner.json"):
            pid = int(json.loads(path.read_text())["pid"])
            if str(self.home) in _command_line(pid):
                _kill(pid)
        with contextlib.suppress(OSError, ValueError):
            agent = self.agent_pid()
            self.engine.stop_agent()
            _until(lambda: "airyard.node.agent" not in _command_line(agent))
        for cookie in self.cookies:
            for pid in processes_with(cookie):
                _kill(pid)
        self.api.stop()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _until(test: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not test():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def processes_with(cookie: str) -> list[int]:
    """Return the processes whose environment carries the cookie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if cookie.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def ray_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def ray_engine(ray_folder: Path) -> Iterator[MakeEngine]:
    """A Ray head for all tests of this file; every engine has a bridge of its own to it."""
    head = RayHead(ray_folder, address=own_address())
    head.ensure()

    def make(home: Path, url: str) -> RayEngine:
        offer = {"simulate": SIMULATE, "cpu_slots": 3, "system_gpu_lock_folder": str(home / "gpus")}
        cluster = Cluster(address=head.address, token_file=head.token_file, node_ip=own_address())
        return RayEngine(home, cluster=cluster, server_url=url, own_offer={**offer, "address": "127.0.0.1"})

    yield make
    head.stop()


@pytest.fixture(params=["local", "ray"])
def yard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Yard]:
    make = request.getfixturevalue("ray_engine") if request.param == "ray" else local_engine
    made = Yard(tmp_path / "home", make)
    yield made
    made.close()


def test_hello_names_the_machine_and_its_nodes(yard: Yard) -> None:
    seen: MachineSeen = yard.wait(MachineSeen)
    kinds = sorted(
        (node.accelerator, node.simulated, len(node.devices)) for node in seen.nodes if node.simulated
    )
    assert kinds == [("GPU_1xA10", True, 1), ("GPU_8xH100", True, 8), ("GPU_8xH100", True, 8)]
    assert sum(node.accelerator == "CPU" for node in seen.nodes) == 3
    assert "sim-8xh100-0" in {node.name for node in seen.nodes}
    assert len({node.name for node in seen.nodes}) == len(seen.nodes)
    assert {node.machine for node in seen.nodes} == {seen.machine.name}
    assert seen.members == ()
    assert yard.wait(ContainmentSeen).containment["kind"]


def test_a_member_runs_ends_and_is_forgotten(yard: Yard) -> None:
    side = yard.run("1.0.0", "echo hi; exit 4")
    seen = yard.gone("1.0.0")
    assert seen.state is SeenState.EXITED
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.cause) == (4, Cause.USER_CODE)
    assert seen.logs is not None
    assert seen.logs.sha256 == side.frames.hexdigest()
    yard.engine.forget(ForgetMember(key=MemberKey(1, 0, 0), machine=Yard.machine))
    _until(lambda: not yard.folder("1.0.0").exists())


def test_a_start_is_idempotent(yard: Yard) -> None:
    side = yard.run("1.0.0", "exec sleep 600")
    pid = yard.pid("1.0.0")
    yard.start("1.0.0")
    yard.start("1.0.1").order("STOP", reason="CANCELLED", by="x", grace_s=0)
    yard.gone("1.0.1")  # requests are answered in order, so the second start was, too
    assert yard.pid("1.0.0") == pid
    side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=1)
    assert yard.gone("1.0.0").exit is not None


def test_a_killed_runner_is_noticed_and_its_tree_dies(yard: Yard) -> None:
    side = yard.run("1.0.0", "(setsid sleep 601 &) ; echo up; sleep 602")
    side.wait(lambda: b"up" in side.output())
    cookie = yard.cookies[0]
    assert processes_with(cookie)
    os.kill(yard.pid("1.0.0"), signal.SIGKILL)
    seen = yard.gone("1.0.0")
    assert seen.state is SeenState.DIED
    assert seen.exit is not None
    assert seen.exit.cause is Cause.PLATFORM
    assert processes_with(cookie) == []


def test_the_rest_of_a_dead_runners_log_is_shipped(yard: Yard) -> None:
    side = yard.run("1.0.0", "sleep 0.3; seq 5000; exec sleep 600")
    yard.api.stop()
    spool = yard.folder("1.0.0") / "spool"
    _until(lambda: sum(file.stat().st_size for file in spool.iterdir()) > 20_000)
    os.kill(yard.pid("1.0.0"), signal.SIGKILL)
    yard.gone("1.0.0")
    yard.api.start()
    yard.engine.ship(ShipLogs(key=MemberKey(1, 0, 0), machine=Yard.machine), yard.tokens["1.0.0"])
    closed = side.report("LOGS_CLOSED")
    assert side.output(LogStream.STDOUT).split()[-1] == b"5000"
    assert closed["last_seq"] == side.records[-1].seq


def test_runners_outlive_the_agent_and_are_adopted(yard: Yard) -> None:
    side = yard.run("1.0.0", "while [ ! -e $AIRYARD_OUTPUT_DIR/go ]; do sleep 0.05; done; exit 5")
    mark = len(yard.facts)
    first = yard.agent_pid()
    os.kill(first, signal.SIGKILL)
    yard.wait(MachineAway, after=mark)
    seen: MachineSeen = yard.wait(MachineSeen, after=mark)
    assert [(str(one.key), one.state) for one in seen.members] == [("1.0.0", SeenState.ALIVE)]
    assert yard.agent_pid() != first
    (yard.home / "node" / "runs" / "1" / "output" / "go").touch()
    assert side.report("EXITED")["started"] is True
    assert yard.gone("1.0.0", mark).state is SeenState.EXITED


def relays(ray_folder: Path) -> list[int]:
    """Return the relays below the raylets whose sessions lie in this folder or are named after it."""
    mark = str(temporary_folder(ray_folder))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and "ray::Relay" in _command_line(int(entry.name)):
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if mark in _command_line(int(status[1])):
                found.append(int(entry.name))
    return found


def test_a_killed_relay_ends_no_agent_and_no_runner(
    ray_engine: MakeEngine, ray_folder: Path, tmp_path: Path
) -> None:
    yard = Yard(tmp_path / "home", ray_engine)
    try:
        side = yard.run("1.0.0", "while [ ! -e $AIRYARD_OUTPUT_DIR/go ]; do sleep 0.05; done; exit 5")
        mark, agent = len(yard.facts), yard.agent_pid()
        (relay,) = relays(ray_folder)
        os.kill(relay, signal.SIGKILL)
        yard.wait(MachineAway, after=mark)
        seen: MachineSeen = yard.wait(MachineSeen, after=mark)
        assert [(str(one.key), one.state) for one in seen.members] == [("1.0.0", SeenState.ALIVE)]
        assert yard.agent_pid() == agent
        assert relays(ray_folder) != [relay]
        (yard.home / "node" / "runs" / "1" / "output" / "go").touch()
        assert side.report("EXITED")["code"] == 5
        assert yard.gone("1.0.0", mark).state is SeenState.EXITED
    finally:
        yard.close()


def test_kill_ends_runner_and_tree(yard: Yard) -> None:
    yard.run("1.0.0", "trap '' TERM; while true; do sleep 1; done")
    yard.engine.kill(KillMember(key=MemberKey(1, 0, 0), machine=Yard.machine, reason="it did not stop"))
    seen = yard.gone("1.0.0")
    assert seen.state is SeenState.DIED
    assert seen.exit is not None
    assert "it did not stop" in seen.exit.message
    assert processes_with(yard.cookies[0]) == []
    mark = len(yard.facts)
    yard.engine.kill(KillMember(key=MemberKey(1, 0, 0), machine=Yard.machine, reason="not heard of"))
    again = yard.gone("1.0.0", mark).exit
    assert again is not None
    assert again.message == seen.exit.message, "who asks has not heard of the end"


def test_a_kill_of_what_is_not_there_is_answered(yard: Yard) -> None:
    yard.wait(MachineSeen)
    yard.engine.kill(KillMember(key=MemberKey(7, 0, 0), machine=Yard.machine, reason="lost"))
    assert yard.gone("7.0.0").state is SeenState.DIED


def test_another_boot_is_the_nodes_fault(yard: Yard) -> None:
    yard.run("1.0.0", "exec sleep 600")
    mark = len(yard.facts)
    pid = yard.pid("1.0.0")
    # Between the two kills the agent must not see the death, so it is stopped first.
    agent = yard.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    for child in processes_with(yard.cookies[0]):
        _kill(child)
    path = yard.folder("1.0.0") / "runner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    os.kill(agent, signal.SIGKILL)
    seen: MachineSeen = yard.wait(MachineSeen, after=mark)
    (member,) = seen.members
    assert member.state is SeenState.DIED
    assert member.exit is not None
    assert member.exit.cause is Cause.NODE


def test_a_dead_zygote_is_replaced(yard: Yard) -> None:
    yard.wait(MachineSeen)
    agent = yard.agent_pid()
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (zygote,) = [int(pid) for pid in children if "airyard.node.zygote" in _command_line(int(pid))]
    os.kill(zygote, signal.SIGKILL)
    side = yard.run("1.0.0", "true")
    assert side.report("EXITED")["cause"] is None


def test_a_new_engine_takes_over_where_the_old_one_closed(yard: Yard) -> None:
    side = yard.run("1.0.0", "exec sleep 600")
    yard.wait(MachineSeen)
    yard.engine.close()
    mark = len(yard.facts)
    yard.engine = yard.new_engine()
    seen: MachineSeen = yard.wait(MachineSeen, after=mark)
    assert [str(one.key) for one in seen.members] == ["1.0.0"]
    side.order("STOP", reason="CANCELLED", by="ann", signal="SIGTERM", grace_s=1)
    assert yard.gone("1.0.0", mark).exit is not None


def test_live_members_are_sampled(yard: Yard) -> None:
    yard.run("1.0.0", "exec sleep 600")
    samples: Samples = yard.wait(Samples)
    (sample,) = samples.samples
    assert str(sample.key) == "1.0.0"
    assert {"cpu_utilization_percentage", "system_memory_usage_megabytes", "disk_usage_percentage"} <= set(
        sample.values
    )


def test_the_agent_survives_odd_clients(yard: Yard) -> None:
    yard.wait(MachineSeen)
    agent = yard.agent_pid()

    def ask(line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(10)
            folder = os.open(yard.home / "node", os.O_RDONLY)
            stream.connect(f"/proc/self/fd/{folder}/agent.sock")
            os.close(folder)
            stream.sendall(line)
            return stream.recv(65536)

    assert ask(b"no json\n") == b""
    assert ask(b"[]\n") == b""
    assert json.loads(ask(b'{"id":1,"op":"dance"}\n'))["error"]["code"] == "UNKNOWN_OP"
    assert json.loads(ask(b'{"id":2,"op":"start"}\n'))["ok"] is False
    assert json.loads(ask(b'{"id":3,"op":"forget","key":"../.."}\n'))["ok"] is False
    bad = b'{"id":4,"op":"hello","config":{"simulate":{"TPU_8":1}}}\n'
    assert "TPU_8" in json.loads(ask(bad))["error"]["message"]
    assert yard.run("1.0.0", "true").report("EXITED")["cause"] is None
    assert yard.agent_pid() == agent


def test_caches_are_tidied_by_age(yard: Yard) -> None:
    yard.wait(MachineSeen)
    assert yard.engine.tidy(age_ms=None, cap_bytes=None, dry_run=True) == {"count": 0, "bytes": 0}
    tree = yard.home / "node" / "code" / "trees" / "abcdef0123456789"
    (tree / "tree").mkdir(parents=True)
    (tree / "tree" / "x").write_bytes(b"x" * 100_000)
    (tree / ".complete").write_text("boot")
    would = yard.engine.tidy(age_ms=0, cap_bytes=None, dry_run=True)
    assert would["count"] == 1
    assert would["bytes"] >= 100_000
    assert yard.engine.tidy(age_ms=3_600_000, cap_bytes=None, dry_run=False)["count"] == 0
    done = yard.engine.tidy(age_ms=0, cap_bytes=None, dry_run=False)
    assert done["count"] == 1
    assert not tree.exists()
    agent = yard.agent_pid()
    yard.engine.stop_agent()
    _until(lambda: not _command_line(agent))
    assert "away" in yard.engine.tidy(age_ms=0, cap_bytes=None, dry_run=True)


def test_whether_an_environment_is_built_is_asked_of_the_agent(yard: Yard) -> None:
    yard.wait(MachineSeen)
    asked = {
        "version": "6", "python": None, "base_packages": [], "dependencies": ["--no-index"], "timeout_s": 9,
    }  # fmt: skip
    assert yard.engine.has_environment(asked) is False
    # Written as a build would leave them: a real one would need an index.
    store = EnvironmentStore(yard.home / "node" / "envs", inherited=os.environ)
    request = EnvironmentRequest.from_order(asked)
    lock = store._lock_path(request)
    lock.parent.mkdir(parents=True)
    lock.write_text("pip==1\n")
    assert yard.engine.has_environment(asked) is False
    folder = yard.home / "node" / "envs" / "envs" / store._key(request, "pip==1\n")
    folder.mkdir(parents=True)
    (folder / ".complete").write_text("{}")
    assert yard.engine.has_environment(asked) is True
    assert yard.engine.has_environment({**asked, "dependencies": ["tool"]}) is False
    assert yard.engine.has_environment({**asked, "python": "/no/such/python"}) is None
    agent = yard.agent_pid()
    yard.engine.stop_agent()
    _until(lambda: not _command_line(agent))
    assert yard.engine.has_environment(asked) is None


def test_nothing_outlives_a_home_that_was_removed(yard: Yard) -> None:
    yard.run("1.0.0", "exec sleep 600")
    agent, runner = yard.agent_pid(), yard.pid("1.0.0")
    yard.engine.close()
    yard.api.stop()
    shutil.rmtree(yard.home)
    _until(lambda: not _command_line(agent) and not _command_line(runner))
    assert processes_with(yard.cookies[0]) == []


def test_a_home_deeper_than_a_socket_path_may_be(tmp_path: Path) -> None:
    made = Yard(tmp_path / ("long-" * 20) / ("deep-" * 20))
    try:
        assert dataclasses.is_dataclass(made.wait(MachineSeen))
    finally:
        made.close()
