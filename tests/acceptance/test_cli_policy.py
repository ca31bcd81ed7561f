"""Declaring pools and projects by the command line and the configuration, on a real server."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e

POLICY = """\
pools:
  fast: {accelerator: GPU_1xA10}
projects:
  nlp:
    pools: {fast: {guarantee: 1, ceiling: 2}}
    budget: {gpu_hours: 0}
  open: {}
"""


def data(yard: Yard, *arguments: str) -> Any:
    """Run a verb with -o json; return its data."""
    done = yard.run(*arguments, "-o", "json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)["data"]


def test_a_policy_is_shown_applied_changed_and_remembered(own_yard: Yard) -> None:
    file = own_yard.work / "yard.yaml"
    file.write_text(POLICY)
    assert own_yard.run("up", "--simulate", "GPU_1xA10=2").returncode == 0
    assert own_yard.run("apply", "--show").stdout.startswith("# Nothing is declared")
    shown = own_yard.run("apply", "--diff")
    assert "+ projects.nlp.pools.fast.guarantee: 1\n" in shown.stdout
    assert own_yard.run("projects").stdout.count("\n") == 2
    assert own_yard.run("apply").stdout == shown.stdout
    assert own_yard.run("apply").stdout == "no changes\n"

    file.write_text(POLICY.replace("guarantee: 1", "guarantee: 2"))
    assert own_yard.run("apply").stdout == "~ projects.nlp.pools.fast.guarantee: 1 -> 2\n"
    row = next(row for row in data(own_yard, "quota")["rows"] if row["pool"] == "fast")
    assert (row["project"], row["guarantee"], row["used"]) == ("nlp", 2, 0)
    history = data(own_yard, "projects", "--history")["history"]
    assert [(entry["by"], entry["source"]) for entry in history] == [(history[0]["by"], "api")] * 2
    assert [change["path"] for change in history[0]["changes"]] == ["projects.nlp.pools.fast.guarantee"]

    file.write_text(POLICY.replace("guarantee: 1, ceiling: 2", "guarantee: 3, ceiling: 1"))
    refused = own_yard.run("apply")
    assert refused.returncode == 2
    assert "yard.yaml:5:34  projects.nlp.pools.fast.ceiling" in refused.stderr
    assert own_yard.run("admin", "verify").returncode == 0


def test_what_the_policy_forbids_leaves_with_its_exit_code(own_yard: Yard) -> None:
    (own_yard.work / "yard.yaml").write_text(POLICY)
    assert own_yard.run("up", "--simulate", "GPU_1xA10=2").returncode == 0
    assert own_yard.run("apply").returncode == 0
    file = own_yard.write("forbidden", "sleep 60", accelerator="GPU_1xA10")
    unknown = own_yard.run("run", file, "--override", "project=npl")
    assert (unknown.returncode, "did you mean 'nlp'?" in unknown.stderr) == (2, True)
    spent = own_yard.run("run", file, "--override", "project=nlp")
    assert (spent.returncode, "0.0 of its 0 GPU-hours" in spent.stderr) == (8, True)
    urgent = own_yard.run("run", file, "--override", "compute.priority_class=CRITICAL")
    assert (urgent.returncode, "may not use CRITICAL" in urgent.stderr) == (4, True)

    run_id = data(own_yard, "run", file, "--override", "project=open")["run_id"]
    assert data(own_yard, "get", str(run_id))["project"] == "open"
    (own_yard.work / "yard.yaml").write_text("projects: {nlp: }\n")
    gone = own_yard.run("apply")
    assert gone.returncode == 2
    assert f"project open would be gone, but run {run_id} is charged to it" in gone.stderr


def begun(yard: Yard) -> dict[str, int]:
    """How many servers took the journal over, and how many of them came to lead."""
    kinds = "SELECT kind, count(*) FROM journal WHERE kind IN ('EpochBegan', 'LeadBegan') GROUP BY kind"
    with closing(sqlite3.connect(next(yard.home.rglob("journal.db")))) as journal:
        return dict(journal.execute(kinds).fetchall())


def test_the_configured_file_is_declared_at_start_and_a_broken_one_refuses_it(own_yard: Yard) -> None:
    file = own_yard.home / "yard.yaml"
    with (own_yard.home / "config.toml").open("a") as config:
        config.write('[engine]\nsimulate = { GPU_1xA10 = 2 }\n[policy]\nfile = "yard.yaml"\n')
    file.write_text(POLICY.replace("guarantee: 1", "guarantee: 1, wieght: 2"))
    broken = own_yard.run("list")
    assert (broken.returncode, 'did you mean "weight"?' in broken.stderr) == (2, True)
    file.write_text(POLICY.replace("guarantee: 1, ceiling: 2", "guarantee: 3"))
    unfit = own_yard.run("list")
    assert (unfit.returncode, "pool fast has 2 devices on 2 nodes" in unfit.stderr) == (2, True)
    assert begun(own_yard) == {"EpochBegan": 1}, "nobody is told of a server that does not come to lead"

    file.write_text(POLICY)
    history = data(own_yard, "projects", "--history")["history"]
    assert [entry["source"] for entry in history] == ["config"]
    assert begun(own_yard) == {"EpochBegan": 2, "LeadBegan": 1}
    # What is applied by hand since holds over a restart, until the file is edited.
    (own_yard.work / "yard.yaml").write_text(POLICY.replace("ceiling: 2", "ceiling: 1"))
    assert own_yard.run("apply").returncode == 0
    assert own_yard.run("down").returncode == 0
    assert [row["ceiling"] for row in data(own_yard, "quota", "--project", "nlp")["rows"]] == [1]
