"""The reliability simulation: the same seed, the same figures; days of it; its arithmetic; what it must never do."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airyard.core.run import Cause
from airyard.sim.reliability.assumptions import FILE, Assumptions, Effect, load
from airyard.sim.reliability.draws import Noise, draw_alarms, draw_faults
from airyard.sim.reliability.nursed import Nursed
from airyard.sim.reliability.report import aims, study
from airyard.sim.reliability.retrying import Retrying
from airyard.sim.reliability.study import Question, analytic_ettr, figures, live
from airyard.sim.reliability.tally import Tally, percentile
from airyard.sim.reliability.training import Training
from airyard.sim.reliability.world import World

DAYS = Question(days=8)
NODES = [f"n{number:03}" for number in range(134)]


@pytest.fixture(scope="module")
def known() -> Assumptions:
    return load()


def quiet(known: Assumptions) -> Assumptions:
    """The same without signals that mean nothing."""
    return replace(known, noise=dict.fromkeys(known.noise, 0.0))


def test_some_days_with_health_are_better_than_without(known: Assumptions) -> None:
    found = study(known, DAYS, (1, 2, 3))
    assert found.well.ettr > found.plain.ettr
    assert found.well.ettr > 0.95
    assert found.well.recovery_p95_s < found.plain.recovery_p95_s
    assert found.well.breakers == 0
    text = found.as_text()
    assert text.startswith("1,024 GPUs for 8 days, 3 seeds; 6.5 failures per 1,000 node-days (rsc1)")
    assert "ETTR: 0.9" in text
    json.dumps(found.as_json())


def test_the_same_seed_gives_the_same_figures_whatever_the_hash_seed() -> None:
    program = (
        "from airyard.sim.reliability.study import *; from airyard.sim.reliability.assumptions import load;"
        "k = load(); q = Question(days=6, gpus=512);"
        "print([figures(k, [live(k, q, 5, health=h)]) for h in (True, False)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_both_ways_meet_the_same_failures(known: Assumptions) -> None:
    first, again = (draw_faults(known, NODES, per_1000_node_days=6.5, days=60, seed=3) for _ in range(2))
    assert first == again
    assert draw_faults(known, NODES, per_1000_node_days=6.5, days=60, seed=4) != first


def test_failures_come_at_the_published_rate_and_in_the_published_mix(known: Assumptions) -> None:
    faults = [
        fault
        for seed in range(20)
        for fault in draw_faults(known, NODES, per_1000_node_days=6.5, days=60, seed=seed)
    ]
    ours = [fault for fault in faults if not fault.kind.user]
    per_1000 = len(ours) / (20 * 60 * len(NODES)) * 1000
    assert per_1000 == pytest.approx(6.5, rel=0.1)
    assert sum(fault.lemon for fault in ours) / len(ours) == pytest.approx(0.3, abs=0.05)
    assert len({fault.node for fault in ours if fault.lemon}) <= 2 * 20
    assert sum(kind.count for kind in known.kinds) == 419
    assert {fault.kind.effect for fault in faults} == set(Effect)


def test_without_failures_only_checkpoints_cost(known: Assumptions) -> None:
    calm = replace(quiet(known), rates={"none": 0.0})
    lived = live(calm, Question(days=4, rate="none"), 1, health=True)
    assert lived.tally.interruptions == lived.tally.cordons == 0
    assert lived.ettr == pytest.approx(3600 / 3620, abs=0.002)


def test_without_alarms_nobody_is_taken_out_falsely(known: Assumptions) -> None:
    lives = [live(quiet(known), DAYS, seed, health=True) for seed in range(1, 5)]
    assert sum(life.tally.false_cordons for life in lives) == 0
    assert sum(life.tally.cordons for life in lives) > 0


def test_what_jobs_print_never_takes_a_node_out(known: Assumptions) -> None:
    loud = replace(quiet(known), rates={"none": 0.0}, noise={**quiet(known).noise, "job_text": 3000.0})
    lived = live(loud, Question(days=4, rate="none", gpus=256), 1, health=True)
    assert lived.tally.cordons == 0


def test_a_node_that_a_person_mended_twice_tested_works_again(known: Assumptions) -> None:
    """Tests of 20 minutes fit twice: each has its own time."""
    cable = next(kind for kind in known.kinds if kind.name == "switch or cable")
    broken = replace(cable, cured={}, count=1.0)
    one = replace(
        quiet(known), kinds=(broken,), rates={"often": 60.0}, fleet={**known.fleet, "lemon_faults": 0.0}
    )
    lived = live(one, Question(days=12, rate="often", gpus=128), 2, health=True)
    assert lived.tally.returned_helped > 0
    assert lived.tally.visits <= lived.tally.cordons + 1


def test_alarms_of_every_kind_are_drawn(known: Assumptions) -> None:
    alarms = [alarm for seed in range(30) for alarm in draw_alarms(known, NODES, days=60, seed=seed)]
    assert {alarm.noise for alarm in alarms} == set(Noise)
    assert alarms[:1]


def test_every_decision_is_of_a_real_state(known: Assumptions) -> None:
    """The nodes of the simulated world are those of the control plane's state, and so are their cordons."""
    faults = draw_faults(known, NODES, per_1000_node_days=40, days=3, seed=1)
    world = World(known, NODES, 120, days=3, seed=1, faults=faults, alarms=())
    nursed = Nursed(world, 1)
    world.run(nursed)
    assert set(nursed.state.nodes) == set(NODES)
    assert nursed.state.health
    closed = {name for name, node in nursed.state.nodes.items() if node.cordoned}
    assert closed == set(NODES) - set(nursed.usable())


def test_work_since_the_last_checkpoint_is_lost_and_a_last_one_saves_it() -> None:
    training = Training(checkpoint_s=100, write_s=10)
    training.begin(0)
    training.stall(350)  # three of 110, and 20 of the fourth
    assert (training.saved_s, training.lost_s, training.writing_s) == (300, 20, 30)
    training.begin(400)
    training.leave(440)
    assert training.done_s(440) == 340
    training.begin(500)
    training.pace(500, 0.5)
    training.stall(600)
    assert training.slow_s == 50
    assert training.done_s(1000) == 340


def test_the_published_model() -> None:
    per_day = 0.0065 * 128
    found = [round(analytic_ettr(per_day, minutes * 60, 3600, 20), 3) for minutes in (30, 10, 3)]
    assert found == [0.960, 0.971, 0.976]


def test_retries_are_those_of_production() -> None:
    retrying = Retrying()
    assert retrying.after(Cause.DEVICE, "n1", 10_000, 7_200) == 0
    assert retrying.avoid == ("n1",)
    assert retrying.after(Cause.PLATFORM, "n2", 10_100, 60) == 10
    assert retrying.after(Cause.PLATFORM, "", 10_200, 60) == 30
    assert retrying.after(Cause.DEVICE, "n3", 90_000, 79_000) == 0  # it had worked for a day
    for _ in range(6):
        retrying.after(Cause.DEVICE, "n4", 90_100, 1)
    assert retrying.after(Cause.DEVICE, "n4", 90_200, 1) is None
    retrying.resume()
    assert retrying.after(Cause.DEVICE, "n4", 90_300, 1) == 0


def test_figures_of_nothing() -> None:
    assert math.isnan(percentile([], 0.5))
    assert percentile([3, 1, 2], 0.5) == 2
    assert Tally(kills={"n1": [0.0, 10.0, 2_000_000.0]}).repeated_kills() == 1
    lived = live(load(), Question(days=0.5, gpus=8), 1, health=False)
    assert asdict(figures(load(), [lived]))["ettr"] > 0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airyard.cli", "sim", "reliability", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_a_start_finds_days_later_says_nothing_of_how_fast_monitors_are(known: Assumptions) -> None:
    found = study(known, Question(gpus=1024, days=20.0, rate="rsc1"), [1])
    assert found.well.found_at_start > 0
    assert found.well.kernel_cordon_p95_s < 15
    assert [aim.partition(":")[0] for aim in aims(found.well)][-2:] == [
        "the kernel's faults to cordon, p95 in s",
        "what is polled to cordon, p95 in s",
    ]
    late = replace(found.well, kernel_cordon_p95_s=16.0, polled_cordon_p95_s=float("nan"))
    assert aims(late)[-1].endswith("MISSED")
    assert len(aims(late)) == len(aims(found.well)) - 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no [detection]"),
        (FILE.read_text(encoding="utf-8") + "\n[weather]\n", "no section weather"),
        (FILE.read_text(encoding="utf-8").replace("\ncount = ", "\ncounted = ", 1), "[[kind]] number 1"),
    ],
)
def test_assumptions_with_an_error_say_where(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(says)):
        load(file)


def test_the_command_prints_the_table_or_its_figures() -> None:
    options = ("--days", "2", "--gpus", "64", "--seed", "1")
    assert "with health" in command(*options).stdout
    said = json.loads(command(*options, "-o", "json").stdout)["data"]
    assert (said["gpus"], said["seeds"]) == (64, 1)
    assert 0 < said["with_health"]["ettr"] <= 1


def test_the_command_says_what_is_wrong_with_rates_and_files(tmp_path: Path) -> None:
    assert "there are rsc1, rsc2, llama3" in command("--rate", "x").stderr
    broken = tmp_path / "mine.toml"
    broken.write_text(FILE.read_text().replace('effect = "kill"', 'effect = "maim"', 1))
    done = command("--assumptions", str(broken))
    assert done.returncode == 2
    assert "maim" in done.stderr
