"""Two users on one machine, each with a Unix account: what one has the other does not get, and no trick helps."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.node.exit_record import AttemptFolder
from airyard.node.zygote import Zygote
from e2e import passable
from e2e.passable import ADA, BOB
from e2e.yard import Yard, wait_for
from runner_api import GO, MemberSide, RunnerApi, prepare_order

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(passable.why_not() is not None, reason=str(passable.why_not())),
]
SECRET = "hunter2-of-ada"
CONFIG = '[people]\nfile = "users.yaml"\nrun_as = "user"\n[environments.6]\npackages = []\n'
USERS = f"users:\n  ada: {{unix_user: {ADA}}}\n  bob: {{unix_user: {BOB}}}\n  eve:\n"
ADAS = """
set -e
id -un; umask; echo $HOME
echo "$TOKEN_OF_ADA" > "$AIRYARD_SCRATCH/token"; echo model > "$AIRYARD_OUTPUT_DIR/model"
cp /proc/self/environ "$AIRYARD_SCRATCH/environ"
grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status
echo hello > /dev/stdout
echo pid=$$
while true; do sleep 0.2; done
"""
SPY = """
id -un
cat /proc/self/oom_score_adj
for name in environ cmdline maps; do head -c 1 /proc/{pid}/$name > /dev/null 2>&1 && echo $name; done
(exec < /proc/{pid}/mem) 2> /dev/null && echo mem
grep -r 'aya[_]' ../.. 2> /dev/null | sed 's/^/GOT: /'
env | grep 'ay[ac]_' && echo GOT: a variable
echo looked
"""
BOBS = """
id -un
try() { if "$@" > got 2> /dev/null && test -s got; then echo "GOT: $*"; cat got; fi; }
for pid in $ADAS_PID $(pgrep -P $ADAS_PID); do
  try cat /proc/$pid/environ; try ls /proc/$pid/cwd/; try ls -l /proc/$pid/fd; try cat /proc/$pid/mem
done
for path in attempts attempts/$KEY attempts/$KEY/scratch attempts/$KEY/control attempts/$KEY/spool runs runs/$RUN \\
  runs/$RUN/output users code envs .. ../server; do try ls "$NODE/$path"; done
for path in attempts/$KEY/scratch/token attempts/$KEY/scratch/environ attempts/$KEY/control/command.sh \\
  attempts/$KEY/runner.json attempts/$KEY/runner.log runs/$RUN/output/model ../server/token ../server/attempt.key \\
  ../config.toml ../users.yaml; do
  try cat "$NODE/$path"
done
touch "$NODE/attempts/$KEY/scratch/x" "$NODE/runs/$RUN/x" "$NODE/attempts/x" 2> /dev/null && echo "GOT: a file there"
kill -0 $ADAS_PID 2> /dev/null && echo "GOT: a signal through"
echo looked
"""
PLANTED = """
ln -s /etc/shadow "$AIRYARD_OUTPUT_DIR/shadow"
ln -s / "$AIRYARD_OUTPUT_DIR/root"
mkfifo "$AIRYARD_OUTPUT_DIR/pipe"
ln -s "$BAIT" "$AIRYARD_CHECKPOINT_ACK"
ln -s /etc "$AIRYARD_SCRATCH/etc"
ln -s "$VICTIM" "$(dirname "$AIRYARD_STOP_FILE")/.stop.json.new" 2> /dev/null && echo planted a stop file
mv "$AIRYARD_SCRATCH" "$AIRYARD_SCRATCH.away" 2> /dev/null && echo moved its scratch
sleep 2
rm "$AIRYARD_CHECKPOINT_ACK"; mkfifo "$AIRYARD_CHECKPOINT_ACK"
echo planted
trap 'test -r "$AIRYARD_STOP_FILE" && echo read the stop file; exit 0' TERM
while true; do sleep 0.1; done
"""
STUBBORN = """
(trap '' TERM; setsid bash -c "trap '' TERM; while true; do sleep 0.1; done" &)
if test -n "$STAYS" -a "$AIRYARD_ATTEMPT" = 0; then trap '' TERM; else trap 'exit 0' TERM; fi
echo ready
while true; do sleep 0.1; done
"""
"""A process that left the session and ignores SIGTERM; where it ``STAYS``, the command itself does so, too, once."""


class ManagedYard(Yard):
    """A yard whose agent runs as root, with people who have accounts; its commands find Python passable.

    Its wall time can be set forward: a run is safe from preemption for its first minute.
    """

    clock: Path

    def __init__(self, base: Path, cache: Path) -> None:
        self._prefix = passable.prefix(base / "layers")
        super().__init__(base / "home", cache, simulate="GPU_1xA10=1")
        (self.home / "config.toml").write_text(CONFIG)
        (self.home / "users.yaml").write_text(USERS)

    def command(self, *arguments: str) -> list[str]:
        """See Yard."""
        return [*self._prefix, *super().command(*arguments)]


class User:
    """One person's command line."""

    def __init__(self, yard: ManagedYard, name: str) -> None:
        self._yard = yard
        token = yard.ok("token", "create", "--for", name, "--name", "t").strip()
        url = json.loads((yard.home / "server" / "endpoint.json").read_text())["url"]
        self._as = {"AIRYARD_HOST": url, "AIRYARD_TOKEN": token}

    def call(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self._yard.call(*arguments, stdin=stdin, **self._as)

    def submit(self, command: str, **fields: Any) -> int:
        done = self.call("-o", "json", "run", self._yard.file(command, **fields))
        assert done.returncode == 0, (done.stdout, done.stderr)
        return int(json.loads(done.stdout)["data"]["run_id"])

    def log(self, run_id: int) -> str:
        return self.call("logs", str(run_id), "--no-follow").stdout


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder that every account may pass, which those of pytest are not."""
    made = Path(tempfile.mkdtemp(prefix="ayr", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def yard(base: Path, environment_cache: Path, stepped: tuple[Path, Path]) -> Iterator[ManagedYard]:
    made = ManagedYard(base, environment_cache)
    library, made.clock = base / "stepped_clock.so", base / "clock"
    shutil.copy(stepped[0], library)  # where other accounts may read it, as the clock
    made.clock.write_text("0")
    made.set(LD_PRELOAD=str(library), STEPPED_CLOCK=str(made.clock))
    made.up()
    yield made
    made.close()


@pytest.fixture(scope="module")
def ada(yard: ManagedYard) -> User:
    return User(yard, "ada")


@pytest.fixture(scope="module")
def bob(yard: ManagedYard) -> User:
    return User(yard, "bob")


def processes_of(name: str) -> list[int]:
    uid = pwd.getpwnam(name).pw_uid
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_one_user_gets_nothing_of_another(yard: ManagedYard, ada: User, bob: User) -> None:
    assert ada.call("secrets", "put", "demo/token", stdin=SECRET).returncode == 0
    one = ada.submit(ADAS, secrets={"TOKEN_OF_ADA": "demo/token"})
    yard.until(one, lambda run: run["status"] in ("RUNNING", "FAILED"))
    lines = wait_for(
        lambda: (log := ada.log(one)) and "pid=" in log and log.splitlines(), what="ada's process"
    )
    assert lines[:3] == [ADA, "0077", pwd.getpwnam(ADA).pw_dir]
    status = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("Cap", "NoNew"))}
    assert {name: int(value, 16) for name, value in status.items()} == {
        "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1,
    }  # fmt: skip
    assert "hello" in lines
    pid = next(line for line in lines if line.startswith("pid=")).partition("=")[2]
    variables = {"ADAS_PID": pid, "KEY": f"{one}.0.0", "RUN": str(one), "NODE": str(yard.home / "node")}
    other = bob.submit(BOBS, env_variables=variables)
    yard.ended(other)
    assert bob.log(other).splitlines() == [BOB, "looked"]
    assert ada.call("cancel", str(one)).returncode == 0
    assert yard.ended(one)["status"] == "CANCELLED"
    kept = yard.home / "node" / "runs" / str(one) / "output" / "model"
    assert (kept.owner(), kept.stat().st_mode & 0o077) == (ADA, 0)
    assert ada.call("pull", str(one), "model").returncode == 0
    assert SECRET not in "".join(
        path.read_text(errors="replace") for path in (yard.home / "server").rglob("*.log")
    )


def test_what_a_job_plants_leads_nowhere_and_stops_nothing(yard: ManagedYard, base: Path, ada: User) -> None:
    bait, victim = base / "bait.json", base / "victim"
    bait.write_text('{"step": 777, "path": "of somebody else", "time": 1}')
    victim.write_text("untouched")
    for path in (bait, victim):
        path.chmod(0o600)
    run_id = ada.submit(PLANTED, env_variables={"BAIT": str(bait), "VICTIM": str(victim)})
    wait_for(lambda: "planted\n" in ada.log(run_id), what="what it plants")
    assert ada.call("cancel", str(run_id)).returncode == 0
    run = yard.ended(run_id)
    assert run["status"] == "CANCELLED"
    assert run["attempts"][0]["checkpoint"] is None
    said = ada.log(run_id).splitlines()
    assert said[0] == "planted", said
    assert "read the stop file" in said
    assert victim.read_text() == "untouched"
    for name in ("shadow", "root", "root/etc/shadow", "pipe"):
        assert ada.call("pull", str(run_id), name).returncode != 0, name
    folder = yard.home / "node" / "attempts" / f"{run_id}.0.0"
    wait_for(lambda: not (folder / "scratch").exists(), what="its scratch to go")


def test_cancel_and_preemption_end_every_process_of_another_account(
    yard: ManagedYard, ada: User, bob: User
) -> None:
    one = ada.submit(STUBBORN)
    wait_for(lambda: "ready" in ada.log(one), what="the stubborn one")
    assert len(processes_of(ADA)) >= 2
    assert ada.call("cancel", str(one)).returncode == 0
    assert yard.ended(one)["status"] == "CANCELLED"
    assert processes_of(ADA) == []

    victim = ada.submit(
        STUBBORN,
        accelerator="GPU_1xA10",
        compute={"priority_class": "BEST_EFFORT"},
        preemption={"grace_seconds": 1},
        env_variables={"STAYS": "1"},
    )
    wait_for(lambda: "ready" in ada.log(victim), what="the victim")
    yard.clock.write_text("120")
    winner = bob.submit("true", accelerator="GPU_1xA10")
    assert yard.ended(winner, timeout=90)["status"] == "SUCCEEDED"
    assert yard.get(victim)["attempts"][0]["outcome"] == "PREEMPTED"
    assert ada.call("cancel", str(victim)).returncode == 0
    yard.ended(victim)
    assert processes_of(ADA) == []


def test_each_account_tidies_its_own_environments(yard: ManagedYard) -> None:
    users = yard.home / "node" / "users"
    victim = yard.home.parent / "victim-of-tidying"
    victim.mkdir()
    (victim / ".complete").write_text("")
    os.utime(victim / ".complete", (0, 0))
    (users / str(pwd.getpwnam(BOB).pw_uid) / "envs" / "envs" / "trap").symlink_to(victim)
    found = list((users / str(pwd.getpwnam(ADA).pw_uid) / "envs" / "envs").glob("*/venv"))
    assert len(found) == 1, found
    for mark in users.glob("*/envs/envs/*/.last_used"):
        os.utime(mark, (0, 0))
    yard.ok("admin", "gc")
    assert not found[0].exists()
    assert (victim / ".complete").exists()


def test_who_has_no_account_is_refused(yard: ManagedYard) -> None:
    eve = User(yard, "eve")
    done = eve.call("-o", "json", "run", yard.file("true"))
    assert json.loads(done.stdout)["error"]["code"] == "NO_UNIX_USER"


@pytest.fixture
def unprivileged(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], tuple[MemberSide, int]]]:
    """Return what starts a runner of a zygote that runs as ada: its server's side and its pid."""
    account = pwd.getpwnam(ADA)
    place = Path(tempfile.mkdtemp(dir=base))
    place.chmod(0o755)
    folder = place / "node"
    folder.mkdir()
    os.chown(folder, account.pw_uid, account.pw_gid)
    wrapper = place / "python"
    drop = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    line = shlex.join([*passable.prefix(place / "more-layers"), *drop, sys.executable])
    wrapper.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    wrapper.chmod(0o755)
    api = RunnerApi()
    api.start()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(wrapper))
        zygote = Zygote(folder)

    def start() -> tuple[MemberSide, int]:
        attempt = AttemptFolder(folder / "attempts" / "1.0.0")
        attempt.create()
        for path in (attempt.path, attempt.path.parent):
            os.chown(path, account.pw_uid, account.pw_gid)
        token = f"aya_1.0.0.{secrets.token_hex(8)}"
        side = api.member(token)
        request = {
            "key": "1.0.0", "node": "n7", "devices": [], "token": token, "server_url": api.url, "epoch": 1,
            "cookie": secrets.token_hex(16),
        }  # fmt: skip
        return side, int(zygote.start(request, "127.0.0.1")["pid"])

    yield start
    zygote.close()
    api.stop()


def test_an_agent_without_the_rights_of_root_refuses(
    unprivileged: Callable[[], tuple[MemberSide, int]],
) -> None:
    """Its server would not have placed the run there: the last word is the node's."""
    side, _ = unprivileged()
    side.order("PREPARE", **prepare_order("id", run_as={"user": BOB, "allow_root": False}))
    ended = side.report("EXITED", 60)
    assert (ended["cause"], ended["started"]) == ("NODE", False)
    assert f"the agent of node n7 runs as {ADA}" in ended["message"]
    assert "run it as root there" in ended["message"]
    side.report("LOGS_CLOSED", 60)


def test_a_command_of_its_runners_account_finds_no_token_in_the_runner(
    unprivileged: Callable[[], tuple[MemberSide, int]],
) -> None:
    side, pid = unprivileged()
    side.order("PREPARE", **prepare_order(SPY.format(pid=pid)))
    side.report("READY", 90)
    side.order("GO", **GO)
    assert side.report("EXITED", 60)["cause"] is None
    side.report("LOGS_CLOSED", 60)
    said = side.output().decode().splitlines()
    assert said == [ADA, "500", "cmdline", "looked"], side.records
