"""The example slurm-pilot on a real Slurm: a batch job joins its two nodes to a fleet, works for it, and leaves."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.fleet import Fleet
from e2e.hosts import Hosts, why_not
from e2e.yard import Yard, wait_for
from slurm_cluster import Place, SlurmCluster, why_no_slurm

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
PILOT = Path(__file__).parents[2] / "examples" / "slurm-pilot" / "pilot.sbatch"
OURS = r"ray::|raylet|airyard|sleep 300"


class Pilot:
    """A fleet whose server is on h0, beside Slurm's controller; h1 and h2 are Slurm's nodes n0 and n1."""

    def __init__(self, fleet: Fleet, slurm: SlurmCluster, environment_cache: Path) -> None:
        self.fleet = fleet
        self.slurm = slurm
        # Ray's sockets need short paths; a job's are the cluster's to remove.
        self.temporary = str(slurm.folder / "t")
        Path(self.temporary).mkdir()
        self.homes = fleet.folder / "p"
        for name in slurm.names:
            node = self.homes / name / "node"
            node.mkdir(parents=True, mode=0o700)
            for kept in ("envs", "uv-cache"):
                (node / kept).symlink_to(environment_cache / kept)

    def submit(self, *options: str) -> str:
        """Start the batch job as a user would; return its number."""
        settings = {
            "AIRYARD": str(self.fleet.folder / "airyard"),
            "AIRYARD_SERVER": self.fleet.address(),
            "AIRYARD_TOKEN_FILE": str(self.fleet.token_file),
            "AIRYARD_NODES": str(self.homes),
            "AIRYARD_JOIN": "--simulated GPU_8xH100=1 --cpu-slots 1",
            "AIRYARD_LEAVE": "6",
            "AIRYARD_GRACE": "4",
            "TMPDIR": self.temporary,
        }
        carried = ",".join(["ALL", *(f"{name}={value}" for name, value in settings.items())])
        output = str(self.fleet.folder / "job-%j.out")
        return self.slurm.run(
            "sbatch", "--parsable", f"--export={carried}", f"--output={output}", *options, str(PILOT)
        )

    def output(self, job: str) -> str:
        """Return what the job wrote."""
        return (self.fleet.folder / f"job-{job}.out").read_text(errors="replace")

    def until_joined(self, job: str) -> dict[str, dict[str, Any]]:
        """Wait until both nodes are in the fleet; return all nodes by name."""
        wanted = {f"{name}-sim-8xh100-0" for name in self.slurm.names}
        wait_for(
            lambda: wanted <= self.fleet.alive() or self.slurm.state_of(job) not in ("PENDING", "RUNNING"),
            timeout=120,
            what="n0 and n1",
        )
        assert wanted <= self.fleet.alive(), self.output(job)
        return {node["name"]: node for node in self.fleet.data("nodes")["nodes"]}

    def long_run(self) -> int:
        """Start a run on both nodes that would go on for minutes."""
        run_id = self.fleet.submit("sleep 300", accelerator="GPU_8xH100", nodes=2)
        self.fleet.until(run_id, lambda run: run["status"] == "RUNNING")
        return run_id

    def nothing_is_left(self, job: str) -> None:
        """Wait until the job is over, and nothing of it runs on the nodes."""
        over = ("COMPLETED", "CANCELLED", "ENDED")
        wait_for(lambda: self.slurm.state_of(job) in over, timeout=90, what="the end of the job")
        for number in (1, 2):
            host = self.fleet.hosts[number]
            wait_for(lambda host=host: not host.pids(OURS), what=f"nothing on {host.name}")
        assert not {name for name in self.fleet.alive() if name.startswith(("n0", "n1"))}, self.output(job)


@pytest.fixture(scope="module")
def pilot(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Pilot]:
    if (reason := why_not() or why_no_slurm()) is not None:
        pytest.skip(f"no Slurm on hosts made of namespaces here: {reason}")
    alone = make_yard()
    alone.ended(alone.submit("true"))
    alone.close()
    with contextlib.ExitStack() as parts:
        hosts = Hosts(3)
        fleet = Fleet(hosts, tmp_path_factory.mktemp("fleet"), environment_cache)
        parts.callback(fleet.remove_temporary)
        parts.callback(hosts.close)
        command = fleet.folder / "airyard"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m airyard.cli "$@"\n')
        command.chmod(0o755)
        head, *nodes = [
            Place(hostname=host.name, address=host.address, prefix=tuple(host.prefix()))
            for host in hosts.hosts
        ]
        slurm = SlurmCluster(nodes, controller=head, cpus=2, gpus=2)
        parts.callback(slurm.close)
        # What a site has: the grace of this test's job has to fit into it.
        slurm.config.write_text(slurm.config.read_text().replace("KillWait=5", "KillWait=60"))
        slurm.start()
        fleet.up()
        parts.callback(fleet.close)
        yield Pilot(fleet, slurm, environment_cache)


def test_a_job_joins_works_and_leaves_when_its_end_is_near(pilot: Pilot) -> None:
    fleet = pilot.fleet
    job = pilot.submit("--time=7-0", "--cpus-per-task=1", "--gres=gpu:1")
    nodes = pilot.until_joined(job)
    labels = nodes["n0-sim-8xh100-0"]["labels"]
    assert labels == {"slurm-job": job}, labels
    # Of two cores and two GPUs it offers those of the job.
    said = pilot.output(job)
    assert "with GPUs 0, 1 cores" in said, said
    assert f"of Slurm job {job}" in said
    assert nodes["n1-cpu-0"]["cpus"] == 1
    (held, _) = sorted(fleet.data("reservations")["reservations"], key=lambda each: each["nodes"])
    assert (held["maintenance"], held["nodes"][0][:2]) == (True, "n0"), held
    hello = fleet.ended(fleet.submit("echo hello $NODE_RANK", accelerator="GPU_8xH100", nodes=2))
    assert hello["outcome"] == "SUCCEEDED", hello
    run_id = pilot.long_run()
    pilot.slurm.run("scancel", "--batch", "--signal=USR1", job)
    run = fleet.until(run_id, lambda run: run["attempts"][0]["state"] == "ENDED", timeout=120)
    assert (run["attempts"][0]["cause"], run["state"]) == ("OPERATOR", "QUEUED"), run
    pilot.nothing_is_left(job)
    assert pilot.slurm.state_of(job) in ("COMPLETED", "ENDED"), pilot.output(job)
    fleet.call("cancel", str(run_id))


def test_a_cancelled_job_takes_its_nodes_back_and_the_run_goes_on_in_the_next(pilot: Pilot) -> None:
    fleet = pilot.fleet
    job = pilot.submit("--time=7-0")
    pilot.until_joined(job)
    run_id = pilot.long_run()
    pilot.slurm.run("scancel", job)
    pilot.nothing_is_left(job)
    run = fleet.get(run_id)
    assert (run["attempts"][0]["cause"], run["state"]) == ("OPERATOR", "QUEUED"), run
    job = pilot.submit("--time=7-0")
    fleet.until(run_id, lambda run: run["status"] == "RUNNING" and run["attempt"] == 1, timeout=120)
    fleet.call("cancel", str(run_id))
    pilot.slurm.run("scancel", "--batch", "--signal=USR1", job)
    pilot.nothing_is_left(job)
