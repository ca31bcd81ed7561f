"""``airyard sim run``: what it prints and how it exits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airyard.sim import cli
from airyard.sim.world import simulate


def test_one_seed_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--seed", "3"]) == 0
    assert capsys.readouterr().out.startswith("seed 3: ")


def test_a_range_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--seeds", "3..4"]) == 0
    out = capsys.readouterr().out
    assert "event: RunEnded" in out
    assert out.splitlines()[-1].startswith("2 seeds in ")


def test_json_holds_the_hash_that_another_run_must_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--seed", "3", "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is True
    assert answer["journal_sha256"] == simulate(3).journal_hash


def test_a_trace_shows_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["run", "--seed", "3", "--trace"])
    out = capsys.readouterr().out
    assert "MachineJoined" in out
    assert "all faults end" in out


def test_a_broken_promise_names_seed_step_and_the_way_to_see_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--seed", "3", "--steps", "500"]) == 1
    out = capsys.readouterr().out
    assert "seed 3: 500 steps" in out
    assert "BROKEN at step 500" in out
    assert "no rest after 500 steps" in out
    assert out.rstrip().endswith("again: airyard sim run --seed 3 --trace")


def test_the_report_of_a_failure_ends_with_its_trace() -> None:
    text = cli.report(
        replace(simulate(3, step_limit=200), problem="two trees on one device", tail=("x", "y"))
    )
    assert text.splitlines()[1:] == [
        "x", "y", "  two trees on one device", "  again: airyard sim run --seed 3 --trace",
    ]  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["run", "--seeds", "a..b"], ["fly"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert "usage: airyard sim" in capsys.readouterr().err
