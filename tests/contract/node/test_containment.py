"""Cages against real process trees: nothing is left, limits are seen, a cage is found again after a crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airyard.core.errors import InvariantBroken
from airyard.node.containment import Containment, detect

COOKIE_ONLY = Containment(kind="environment-cookie", limits=False, reason="chosen by the test")

# Seven processes: a root, two plain children, two in sessions of their own, a grandchild, and one that
# daemonises (two forks, new session, parent gone) and clears its environment.
TREE = r"""
import os, subprocess, sys, time
folder = sys.argv[1]
SLEEP = "import os, sys, time; open(sys.argv[1] + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
FORK = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]]);" + SLEEP
def start(code, *more, **options):
    return subprocess.Popen([sys.executable, "-c", code, folder, *more], **options)
start(SLEEP); start(SLEEP)
start(SLEEP, start_new_session=True)
start(FORK, SLEEP, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-c", SLEEP, folder], {})
os.wait()
exec(SLEEP)
"""

# A runner: makes the cage, forks the tree into it, then does what it is told on its standard input.
RUNNER = r"""
import os, sys
from airyard.node.containment import Containment, detect, set_subreaper
kind, name, folder, tree = sys.argv[1:]
containment = detect() if kind == "best" else Containment(kind="environment-cookie", limits=False, reason="")
set_subreaper()
cage = containment.create(name, cookie=name)
if os.fork() == 0:
    cage.enter_self()
    os.execve(sys.executable, [sys.executable, "-c", tree, folder], {**os.environ, **cage.environment()})
print("started", flush=True)
sys.stdin.readline()
print(sorted(cage.members()), flush=True)
print(sorted(cage.kill()), flush=True)
print(sorted(cage.members()), flush=True)
print(cage.remove(), cage.remove(), flush=True)
sys.stdin.readline()
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


class Yard:
    """A folder in which every process of the tree leaves a file named by its id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pids"
        self.folder.mkdir()
        self.name = f"test-{uuid.uuid4().hex}"
        self.runner: subprocess.Popen[str] | None = None

    @property
    def pids(self) -> set[int]:
        return {int(path.name) for path in self.folder.iterdir()}

    @property
    def alive(self) -> set[int]:
        return {pid for pid in self.pids if is_alive(pid)}

    def start(self, kind: str) -> subprocess.Popen[str]:
        self.runner = subprocess.Popen(
            [sys.executable, "-c", RUNNER, kind, self.name, str(self.folder), TREE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "started"
        wait_for(lambda: len(self.pids) == 7)
        assert len(self.alive) == 7
        return self.runner

    def answer(self) -> str:
        assert self.runner is not None
        assert self.runner.stdout is not None
        return self.runner.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.runner is not None
        assert self.runner.stdin is not None
        self.runner.stdin.write("\n")
        self.runner.stdin.flush()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    for pid in made.alive:
        os.kill(pid, signal.SIGKILL)
    if made.runner is not None:
        made.runner.kill()
        made.runner.communicate()


@pytest.fixture(scope="module")
def best() -> Containment:
    return detect()


@pytest.fixture(scope="module")
def grouped(best: Containment) -> Containment:
    if best.cgroups is None:
        pytest.skip("no control group can be made here: " + best.reason)
    return best


@pytest.mark.parametrize("kind", ["best", "cookie"])
def test_nothing_is_left_while_the_runner_lives(yard: Yard, kind: str) -> None:
    runner = yard.start(kind)
    yard.go_on()
    assert yard.answer() == str(sorted(yard.pids))
    assert yard.answer() == "[]"
    assert yard.answer() == "[]"
    assert yard.answer() == "True True"
    assert yard.alive == set()
    assert runner.poll() is None


def test_cage_is_found_and_emptied_after_the_runner_died(yard: Yard, grouped: Containment) -> None:
    yard.start("best").kill()
    cage = grouped.open(yard.name, cookie=yard.name)
    assert cage.members() == yard.pids
    assert cage.kill() == set()
    assert yard.alive == set()
    assert cage.remove()
    assert grouped.open(yard.name, cookie=yard.name).members() == set()


def test_cookie_finds_all_but_the_documented_escape_after_the_runner_died(yard: Yard) -> None:
    yard.start("cookie").kill()
    cage = COOKIE_ONLY.open(yard.name, cookie=yard.name)
    assert len(cage.members()) == 6
    assert cage.kill() == set()
    (escaped,) = yard.alive
    assert Path(f"/proc/{escaped}/environ").read_bytes() == b""


def test_memory_limit_kills_and_is_seen(grouped: Containment) -> None:
    if "memory" in (grouped.cgroups.missing if grouped.cgroups else {}):
        pytest.skip("memory cannot be limited here")
    cage = grouped.create(f"test-{uuid.uuid4().hex}", cookie="c", memory_bytes=64 * 1024 * 1024)
    try:
        assert cage.unenforced == ()
        assert cage.oom_kills() == 0
        hog = subprocess.run(
            [sys.executable, "-c", "x = bytearray(300 * 1024 * 1024)"],
            preexec_fn=cage.enter_self,
            check=False,
        )
        assert hog.returncode == -signal.SIGKILL
        assert cage.oom_kills() >= 1
    finally:
        assert cage.remove()


def test_process_limit_holds(grouped: Containment, tmp_path: Path) -> None:
    if "pids" in (grouped.cgroups.missing if grouped.cgroups else {}):
        pytest.skip("processes cannot be limited here")
    cage = grouped.create(f"test-{uuid.uuid4().hex}", cookie="c", pids=8, cpus=1.5)
    try:
        code = "import os, time\nfor _ in range(20):\n  if os.fork() == 0: time.sleep(60)"
        # To a file: the forked children would hold a pipe open.
        with (tmp_path / "stderr").open("w") as stderr:
            subprocess.run(
                [sys.executable, "-c", code], preexec_fn=cage.enter_self, stderr=stderr, check=False
            )
        assert "BlockingIOError" in (tmp_path / "stderr").read_text()
        assert len(cage.members()) <= 8
    finally:
        assert cage.remove()


def test_limits_that_cannot_be_enforced_are_named() -> None:
    cage = COOKIE_ONLY.create("any", cookie=uuid.uuid4().hex, memory_bytes=1, pids=4)
    assert cage.unenforced == ("memory", "pids")
    assert cage.oom_kills() == 0
    assert cage.remove()


OTHER_MACHINE = r"""
import os, subprocess, sys, time
from airyard.node.containment import detect, set_subreaper
set_subreaper()
containment = detect()
cage = containment.create(sys.argv[1], cookie=sys.argv[1], pids=100)
tree = "sleep 600 & setsid sleep 600 & (setsid env -i sleep 600 &) ; sleep 600"
subprocess.Popen(["sh", "-c", tree], preexec_fn=cage.enter_self, env={**os.environ, **cage.environment()})
deadline = time.monotonic() + 10
while len(cage.members()) < 5 and time.monotonic() < deadline:
    time.sleep(0.01)
print(containment.kind, containment.limits, bool(containment.reason), cage.unenforced)
print(len(cage.members()), cage.kill(), cage.members(), cage.remove())
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "mount -t tmpfs none /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
            {"cgroup-v2 False True ('pids',)", "cgroup-v2 True False ()"},
        ),
        ("umount -R /sys/fs/cgroup", {"environment-cookie False True ('pids',)"}),
        ("umount /sys/fs/cgroup/unified", {"cgroup-hybrid True False ()"}),
        (
            "for tree in /sys/fs/cgroup/*/; do mount -o bind,remount,ro $tree; done",
            {"environment-cookie False True ('pids',)"},
        ),
    ],
    ids=["v2 only", "none", "v1 only", "read-only"],
)
def test_machines_of_other_kinds(grouped: Containment, change: str, expected: set[str]) -> None:
    """The same kernel with other mounts, in a mount namespace of its own."""
    if grouped.kind != "cgroup-hybrid" or os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only a hybrid machine with root can show the other kinds")
    python = f'exec {sys.executable} -c "$0" test-{uuid.uuid4().hex}'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{change} && {python}", OTHER_MACHINE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kind, ending = done.stdout.splitlines()
    assert kind in expected
    assert ending == "5 set() set() True"


def test_description_says_what_is_missing(best: Containment) -> None:
    said = best.describe()
    assert said["kind"] in ("cgroup-v2", "cgroup-hybrid", "environment-cookie")
    assert said["limits"] or said["reason"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x" * 200])
def test_names_cannot_leave_the_folder(grouped: Containment, name: str) -> None:
    with pytest.raises(InvariantBroken):
        grouped.create(name, cookie="c")
