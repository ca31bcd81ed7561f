"""One run over several hosts: DistributedDataParallel over gloo on 2 and 4, and stops that reach all members."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from e2e.fleet import Fleet
from e2e.gang_stamps import MEMBER, stamps_ms, stop_of
from e2e.hosts import Hosts, why_not
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits-ddp" / "workload.yaml"
MEMBERS = 4
EPOCHS = 12
LINES = 5_000
TURNS = 8
SAFE_S = 61.0
"""A run is safe from preemption for its first minute."""
STOP_LIMIT_MS = 10_000
"""Far above the aim of a second, which the benchmark of gangs is for."""
IMPORTS = (
    "import mlflow, torch._dynamo, torch.distributed.run, yaml; from sklearn.datasets import load_digits; "
    "from sklearn.model_selection import train_test_split; load_digits()"
)
"""What the example's processes import; DistributedDataParallel imports ``torch._dynamo``, the most of it."""

# Members take turns, half a second apart, so that one order is right for all of them.
TALK = """
import os, sys, time
folder, lines, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NUM_NODES"])
for line in range(lines):
    print(f"line {line} of {rank}")
for turn in range(turns):
    if turn % nodes == rank:
        while turn and not os.path.exists(f"{folder}/turn-{turn - 1}"):
            time.sleep(0.01)
        time.sleep(0.5)
        print(f"turn {turn}", flush=True)
        open(f"{folder}/turn-{turn}", "w").close()
"""


def over(hosts: int, *overrides: str) -> list[str]:
    """Return the arguments that run the example on the CPU slots of so many hosts."""
    size = ("compute.accelerator_type=CPU", f"compute.num_accelerators={hosts}", "max_retries=0")
    return [str(EXAMPLE), *(word for text in (*size, *overrides) for word in ("--override", text))]


def build(yard: Yard, cache: Path) -> None:
    """Build the example's environment where there is a network; skip where PyTorch cannot be had."""
    run_id = int(yard.data("run", *over(1, "tracking=off", "command=echo built"))["run_id"])
    built = yard.ended(run_id, timeout=240)
    if built["cause"] == "ENVIRONMENT":
        pytest.skip(f"PyTorch cannot be had here: {built['failure']['message'][:200]}")
    assert built["outcome"] == "SUCCEEDED", built
    # On few cores environments are not compiled, and each of the processes below would do it for itself.
    (torch,) = cache.glob("envs/envs/*/venv/lib/python*/site-packages/torch")
    python = torch.parents[3] / "bin" / "python"
    subprocess.run([python, "-c", IMPORTS], check=True, env={"PATH": "/usr/bin:/bin"})


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Fleet]:
    """A server on h0 with MLflow, and four hosts that find the example's environment built."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no hosts made of namespaces here: {reason}")
    alone = make_yard()
    build(alone, environment_cache)
    alone.close()
    with contextlib.ExitStack() as parts:
        hosts = Hosts(1 + MEMBERS)
        made = Fleet(hosts, tmp_path_factory.mktemp("fleet"), environment_cache)
        made.set(AIRYARD_TRACKING_SERVER="embedded")
        parts.callback(made.remove_temporary)
        parts.callback(hosts.close)
        made.up()
        parts.callback(made.close)
        with ThreadPoolExecutor() as pool:
            list(pool.map(made.join, hosts.hosts[1:]))
        yield made


class Gang:
    """A gang of waiting members, one on each host, that say when they began and when they were stopped."""

    def __init__(self, fleet: Fleet, name: str, *, deaf: bool = False, **fields: Any) -> None:
        self._fleet = fleet
        self.folder = fleet.folder / name
        code = self.folder / "code"
        code.mkdir(parents=True)
        shutil.copy(MEMBER, code)
        self.run_id = fleet.submit(
            f"exec python {MEMBER.name} {self.folder} {'deaf' if deaf else ''}",
            nodes=MEMBERS,
            code_source={"type": "snapshot", "snapshot": {"root_path": str(code)}},
            tracking="off",
            **fields,
        )

    def stamps(self, what: str, count: int = MEMBERS) -> dict[int, float]:
        """Wait until so many members have left a stamp; return all that are there."""
        path = self.folder
        wait_for(lambda: len(stamps_ms(path, what)) >= count, timeout=60, what=f"{count} times {what!r}")
        return stamps_ms(path, what)

    def attempt(self) -> dict[str, Any]:
        """Return its first attempt, whose members lie on as many hosts."""
        attempt: dict[str, Any] = self._fleet.get(self.run_id)["attempts"][0]
        assert len({member["machine"] for member in attempt["members"]}) == MEMBERS
        return attempt

    def report(self, name: str, begun_ms: float, last_ms: float) -> None:
        """Print what a stop took, for people; the benchmark of gangs has figures that mean something."""
        spent_ms = last_ms - begun_ms
        print(f"measured: {name} {spent_ms:.0f} ms")
        assert -100 < spent_ms < STOP_LIMIT_MS, spent_ms


@pytest.fixture(scope="module")
def victim(fleet: Fleet) -> Gang:
    """A gang on the simulated nodes that is old enough to be preempted once the other tests are through."""
    return Gang(fleet, "victim", accelerator="GPU_8xH100")


def node_lines(fleet: Fleet, run_id: int, node: int) -> list[str]:
    """Return one member's output."""
    return fleet.ok("logs", str(run_id), "--node", str(node)).splitlines()


def merged(fleet: Fleet, run_id: int, nodes: int) -> list[str]:
    """Return the output of all members, in which each member's own must be whole and in its order."""
    lines = fleet.ok("logs", str(run_id)).splitlines()
    for node in range(nodes):
        mark = f"[n{node}] "
        own = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
        assert own == [line.removeprefix(mark) for line in node_lines(fleet, run_id, node)]
    return lines


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("count", [2, MEMBERS])
def test_digits_ddp_over_hosts(fleet: Fleet, count: int) -> None:
    wait_for(lambda: fleet.data("status")["mlflow"]["kind"].upper() == "UP", timeout=90, what="MLflow")
    run_id = int(fleet.data("run", *over(count, f"parameters.epochs={EPOCHS}"))["run_id"])
    run = fleet.ended(run_id, timeout=150)
    assert run["outcome"] == "SUCCEEDED", run
    members = run["attempts"][0]["members"]
    assert len({member["machine"] for member in members}) == count
    assert all(member["logs"]["complete"] for member in members), members

    lines = merged(fleet, run_id, count)
    said = {node: [line for line in lines if line.startswith(f"[n{node}] rank")] for node in range(count)}
    assert said == {
        node: [f"[n{node}] rank {node} of {count} on cpu: 1437 training images"] for node in range(count)
    }
    epochs = [int(found[1]) for line in lines if (found := re.match(r"\[n0\] epoch (\d+): loss", line))]
    assert epochs == list(range(EPOCHS))
    final = next(line for line in lines if line.startswith("[n0] final accuracy "))
    right = float(final.split()[-1])
    assert right > 0.95

    def metrics() -> dict[str, Any]:
        found: dict[str, Any] = fleet.data("metrics", str(run_id))["runs"][0]["metrics"]
        return found

    wanted = {f"system/node_{node}/cpu_utilization_percentage" for node in range(count)}
    wait_for(lambda: wanted <= metrics().keys(), what="the nodes' metrics")
    accuracy = metrics()["accuracy"]
    assert (round(accuracy["value"], 4), accuracy["step"]) == (right, EPOCHS - 1)
    artifacts = fleet.home / "server" / "mlflow"
    wait_for(
        lambda: len(list(artifacts.rglob("logs/node_*/output-000.log"))) >= count, what="logs as artifacts"
    )


def test_a_gang_sums_over_its_nodes_before_its_code_and_once_a_day(fleet: Fleet) -> None:
    names = fleet.folder / "hosts"
    names.write_text(
        "127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in fleet.hosts.hosts)
    )
    for host in fleet.hosts.hosts[1:]:  # a pool that asks for checks has hosts that are named
        host.run("mount", "--bind", str(names), "/etc/hosts")
    declared = fleet.folder / "yard.yaml"
    declared.write_text("pools:\n  checked: {accelerator: CPU, preflight: fast}\n")
    fleet.ok("apply", "-f", str(declared))
    try:
        said = []
        for _ in range(2):
            short = ("tracking=off", "command=echo begun $NODE_RANK")
            run = fleet.ended(int(fleet.data("run", *over(2, *short))["run_id"]), timeout=150)
            told = fleet.call("logs", str(run["run_id"]), "--no-follow")
            log = told.stdout + told.stderr
            if run["outcome"] != "SUCCEEDED" and "preflight: node" in log:
                pytest.skip(
                    f"this machine does not pass the checks of its own: {run['failure']['message'][:200]}"
                )
            assert run["outcome"] == "SUCCEEDED", run
            said.append([line for line in log.splitlines() if "net.all_reduce over" in line])
            assert "[n0] begun 0" in log
    finally:
        declared.write_text("pools: {}\n")
        fleet.ok("apply", "-f", str(declared))
    assert len(said[0]) == 2, said
    assert all("net.all_reduce over 2 nodes, 2 ranks, in " in line for line in said[0])
    assert said[1] == [], "the two nodes are certified together"


def test_logs_of_all_members_are_whole_and_in_order(fleet: Fleet) -> None:
    folder = fleet.folder / "talk"
    folder.mkdir()
    (folder / "talk.py").write_text(TALK)
    command = f"python talk.py {folder} {LINES} {TURNS}"
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    path = fleet.file(command, nodes=MEMBERS, code_source=source, tracking="off")
    watched = fleet.call("run", path, "--watch")
    assert watched.returncode == 0, watched.stderr
    run_id = int(fleet.data("list", "--limit", "1")["runs"][0]["run_id"])
    assert fleet.ended(run_id)["logs_complete"]
    lines = merged(fleet, run_id, MEMBERS)
    for node in range(MEMBERS):
        own = [f"[n{node}] line {line} of {node}" for line in range(LINES)]
        own += [f"[n{node}] turn {turn}" for turn in range(node, TURNS, MEMBERS)]
        assert [line for line in lines if line.startswith(f"[n{node}]")] == own
        assert [line for line in watched.stdout.splitlines() if line.startswith(f"[n{node}]")] == own
    turns = [int(line.split()[-1]) for line in lines if " turn " in line]
    assert turns == list(range(TURNS))


def test_a_cancel_reaches_all_members(fleet: Fleet) -> None:
    gang = Gang(fleet, "cancelled")
    gang.stamps("began")
    fleet.ok("cancel", str(gang.run_id))
    stopped = gang.stamps("stopped")
    gang.report("cancel_to_last_member", stop_of(gang.attempt()), max(stopped.values()))
    run = fleet.ended(gang.run_id)
    assert run["outcome"] == "CANCELLED"
    assert [member["exit_code"] for member in run["attempts"][0]["members"]] == [143] * MEMBERS
    assert len(stamps_ms(gang.folder, "stopped")) == MEMBERS


def test_the_end_of_one_member_ends_the_others(fleet: Fleet) -> None:
    gang = Gang(fleet, "failed", deaf=True, max_retries=0)
    gang.stamps("began")
    (gang.folder / "fail.2").touch()
    stopped = gang.stamps("stopped", MEMBERS - 1)
    (failed,) = gang.stamps("failed", 1).values()
    gang.report("member_failure_to_last_member", failed, max(stopped.values()))
    run = fleet.ended(gang.run_id)
    assert sorted(stopped) == [0, 1, 3]
    assert (run["outcome"], run["failure"]["member"], run["failure"]["exit_code"]) == ("FAILED", 2, 3)
    ends = [(member["exit_code"], member["signal"]) for member in run["attempts"][0]["members"]]
    assert ends == [(None, 9), (None, 9), (3, None), (None, 9)], "the deaf ones are killed"


def test_a_preemption_reaches_all_members(fleet: Fleet, victim: Gang) -> None:
    began_ms = max(victim.stamps("began").values())
    time.sleep(max(0.0, SAFE_S - (time.clock_gettime(time.CLOCK_BOOTTIME) - began_ms / 1000)))
    urgent = fleet.submit(
        "sleep 1",
        accelerator="GPU_8xH100",
        nodes=MEMBERS,
        compute={"priority_class": "CRITICAL"},
        tracking="off",
    )
    stopped = victim.stamps("stopped")
    attempt = victim.attempt()
    victim.report("preemption_to_last_member", stop_of(attempt), max(stopped.values()))
    assert (attempt["stop"]["reason"], attempt["stop"]["for_run"]) == ("PREEMPTED", urgent)
    assert fleet.ended(urgent)["outcome"] == "SUCCEEDED"
    ends = [fleet.get(urgent)["attempts"][0]["placed_at"], victim.attempt()["ended_at"]]
    assert all(later >= earlier for later, earlier in pairwise(ends)), ends
    fleet.ok("cancel", str(victim.run_id))
    assert fleet.ended(victim.run_id)["attempts"][0]["outcome"] == "PREEMPTED"
