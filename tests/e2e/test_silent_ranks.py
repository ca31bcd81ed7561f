"""Sums over a gang by real torch (gloo, loopback): ranks that hang, stop or never come, and who is named for it."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airyard.checks.thresholds import limits, packaged
from airyard.node import gang_ranks
from airyard.node.gang_checks import GangChecks, GangUnfit
from airyard.node.gang_ranks import Part
from e2e.test_fleet_ddp import build
from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

BEFORE = """#!/bin/sh
exec {python} - "$@" <<'END'
import runpy, sys, time
def hang(*_, **__):
    while True:
        time.sleep(60)
sys.argv = ["-"] + sys.argv[2:]
{patch}
runpy.run_path({child!r}, run_name="__main__")
END
"""
NEVER_COMES = "hang()"
NEVER_JOINS = "import torch.distributed as d; d.init_process_group = hang"
NEVER_SUMS = "import torch.distributed as d; meet = d.init_process_group\n" + (
    "d.init_process_group = lambda *a, **k: (meet(*a, **k), hang())"
)
AFTER_ONE = "import torch.distributed as d; add = d.all_reduce\n" + (
    "d.all_reduce = lambda *a, **k: (add(*a, **k), hang())"
)
ONE_IS_WRONG = """import os, torch.distributed as d
add = d.all_reduce
def wrong(data, *a, **k):
    add(data, *a, **k)
    data += os.environ["LOCAL_RANK"] == "1"
d.all_reduce = wrong"""
STUCK_IN_IT = "import torch.distributed as d; d.all_reduce = hang"


@pytest.fixture(scope="module")
def torch_python(make_yard: Callable[..., Yard], environment_cache: Path) -> Iterator[Path]:
    """The interpreter of the example's environment, which has torch."""
    if named := os.environ.get("AIRYARD_TEST_TORCH_PYTHON"):
        yield Path(named)
        return
    alone = make_yard()
    build(alone, environment_cache)
    alone.close()
    (torch,) = environment_cache.glob("envs/envs/*/venv/lib/python*/site-packages/torch")
    yield torch.parents[3] / "bin" / "python"


class Gang:
    """Members on this machine that take themselves for nodes n0, n1, ...; ``odd``: what some do beforehand."""

    def __init__(self, folder: Path, python: Path, count: int, odd: Mapping[int, str], gpus: int = 0) -> None:
        self.folder, self.count, self.gpus = folder, count, gpus
        folder.mkdir(exist_ok=True)
        self.notes: dict[int, list[str]] = {member: [] for member in range(count)}
        self.said: dict[int, str] = {}
        self.stop = threading.Event()
        self.pythons = dict.fromkeys(range(count), python)
        for member, patch in odd.items():
            path = folder / f"python-{member}"
            path.write_text(BEFORE.format(python=python, patch=patch, child=str(gang_ranks.CHILD)))
            path.chmod(0o755)
            self.pythons[member] = path

    def order(self, member: int) -> dict[str, Any]:
        """What a member is told; GPUs by their names, as a profile of a fake NVML has them: without a driver."""
        mine = [f"GPU-{member}-{index}" for index in range(self.gpus)]
        return {
            "member": member,
            "preflight": {"strict": True, "uuids": mine},
            "devices": list(range(self.gpus)),
            "visible_devices": ",".join(mine),
        }

    def run(self) -> None:
        """Have all members check at once, until each has said what came of it."""
        made = {member: self._checks(member) for member in range(self.count)}
        told = [checks.facts(self.order(member)) for member, checks in made.items()]
        facts = [{**each["facts"], "driver": ""} for each in told]
        asked = {"store_port": told[0]["store_port"], "facts": facts}
        if self.gpus:  # as of nodes on one machine
            go: dict[str, Any] = {"gang_checks": {**asked, "address": "127.0.0.1"}}
        else:
            go = {"gang_checks": asked, "peers": [{"address": "127.0.0.1"}]}
        with ThreadPoolExecutor(self.count) as pool:
            for each in [pool.submit(self._check, member, checks, go) for member, checks in made.items()]:
                each.result()

    def _checks(self, member: int) -> GangChecks:
        return GangChecks(
            node=f"n{member}",
            node_folder=self.folder / f"n{member}",
            note=self.notes[member].append,
            should_stop=self.stop.is_set,
        )

    def _check(self, member: int, checks: GangChecks, go: Mapping[str, Any]) -> None:
        part = Part(
            python=self.pythons[member],
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
            before_exec=lambda: None,
            limits=limits(packaged(), ""),
        )
        try:
            checks.check(self.order(member), go, part)
            self.said[member] = ""
        except GangUnfit as unfit:
            self.said[member] = f"{unfit.cause} {unfit.message}"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines that a busy machine of two cores keeps, and a test can wait for."""
    monkeypatch.setattr(gang_ranks, "JOIN_S", 40.0)
    monkeypatch.setattr(gang_ranks, "SUM_S", 16.0)


def test_a_gang_that_is_well_sums(tmp_path: Path, torch_python: Path) -> None:
    gang = Gang(tmp_path, torch_python, 3, {})
    gang.run()
    assert gang.said == dict.fromkeys(range(3), "")
    assert all("net.all_reduce over 3 nodes, 3 ranks" in notes[-1] for notes in gang.notes.values())


def test_every_gpu_takes_part_and_one_that_sums_wrongly_is_named(tmp_path: Path, torch_python: Path) -> None:
    well = Gang(tmp_path / "well", torch_python, 2, {}, gpus=2)
    well.run()
    assert well.said == dict.fromkeys(range(2), "")
    assert all("over 2 nodes, 4 ranks" in notes[-1] for notes in well.notes.values())
    gang = Gang(tmp_path / "ill", torch_python, 2, {1: ONE_IS_WRONG}, gpus=2)
    gang.run()
    words = "NODE preflight: node n1 failed net.all_reduce: a sum over the run's nodes came out wrong on its GPU 1;"
    assert words in gang.said[1], gang.said
    assert gang.said[0].startswith("PLATFORM"), "it waits to be stopped"


@pytest.mark.usefixtures("short")
def test_of_many_ranks_the_silent_one_is_named(tmp_path: Path, torch_python: Path) -> None:
    one = "import os\nif os.environ['LOCAL_RANK'] == '1':\n" + textwrap.indent(NEVER_SUMS, "    ")
    gang = Gang(tmp_path, torch_python, 2, {1: one}, gpus=2)
    gang.run()
    words = "rank 3 on node n1 told that it came, and got no further, unlike the others [suspect: n1]"
    assert [said for said in gang.said.values() if said.startswith("NETWORK") and words in said], gang.said


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (
            NEVER_COMES,
            "rank 2 on node n2 told nothing, and got no further, unlike the others [suspects: n2 n0]",
        ),
        (NEVER_JOINS, "no rank on 3 nodes got to join the others: any node or edge may be at fault"),
    ],
)
def test_who_does_not_come_is_named_and_the_gang_goes_on(
    tmp_path: Path, torch_python: Path, patch: str, words: str
) -> None:
    gang = Gang(tmp_path, torch_python, 3, {2: patch})
    gang.run()
    assert gang.said == dict.fromkeys(range(3), "")
    assert any(words in line for notes in gang.notes.values() for line in notes), gang.notes


@pytest.mark.usefixtures("short")
def test_who_does_not_sum_is_named(tmp_path: Path, torch_python: Path) -> None:
    gang = Gang(tmp_path, torch_python, 3, {1: NEVER_SUMS})
    gang.run()
    words = "rank 1 on node n1 told that it came, and got no further, unlike the others [suspect: n1]"
    assert [said for said in gang.said.values() if said.startswith("NETWORK") and words in said], gang.said


@pytest.mark.usefixtures("short")
def test_where_all_are_in_the_sum_nobody_is(tmp_path: Path, torch_python: Path) -> None:
    gang = Gang(tmp_path, torch_python, 3, {1: STUCK_IN_IT})
    gang.run()
    words = "no rank on 3 nodes got to a first sum: any node or edge may be at fault"
    assert [said for said in gang.said.values() if said.startswith("NETWORK") and words in said], gang.said
    assert not any("[suspect" in said for said in gang.said.values())


@pytest.mark.usefixtures("short")
def test_who_leaves_one_sum_behind_is_named(tmp_path: Path, torch_python: Path) -> None:
    """Its part of the first sum was given, so that the others go on without it, to the second."""
    gang = Gang(tmp_path, torch_python, 3, {2: AFTER_ONE})
    gang.run()
    words = "rank 2 on node n2 told that it joined the others, and got no further, unlike the others [suspect: n2]"
    assert [said for said in gang.said.values() if said.startswith("NETWORK") and words in said], gang.said


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("stopped", "words"),
    [
        (2, "rank 2 on node n2 told that it joined the others, and then nothing more [suspects: n2 n0]"),
        (0, "node n0, where the ranks meet, does not answer node n"),
    ],
)
def test_a_process_that_stands_still_is_named(
    tmp_path: Path, torch_python: Path, stopped: int, words: str
) -> None:
    pid = tmp_path / "pid"
    patch = (
        "import os, time, torch.distributed as d\n"
        f"def stand(*_): time.sleep(1.5); open({str(pid)!r}, 'w').write(str(os.getpid())); hang()\n"
        "d.all_reduce = stand"
    )
    gang = Gang(tmp_path, torch_python, 3, {stopped: patch})

    def stop() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        os.kill(int(pid.read_text()), signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    gang.run()
    thread.join()
    assert [said for said in gang.said.values() if words in said], gang.said
