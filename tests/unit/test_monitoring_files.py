"""The rules and the dashboard under ``deploy/monitoring`` hold together, and name only metrics that are promised."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
PAGE = (ROOT / "docs" / "operate" / "alerts.md").read_text()
_METRIC = re.compile(r"\bairyard_[a-z0-9_]+")
_LABEL = re.compile(r"(airyard_[a-z0-9_]+)\{([^}]*)\}")


def promised() -> dict[str, set[str]]:
    """Return each metric of the page with its labels."""
    rows = re.findall(r"^\| `(airyard_\w+)` \|([^|]*)\|", PAGE, re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield where an expression stands, and the expression."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def test_every_metric_is_one_that_is_promised_and_none_is_promised_in_vain() -> None:
    named = {name for _, expression in expressions() for name in _METRIC.findall(expression)}
    assert named == promised().keys()


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text[:40])
def test_an_expression_asks_for_labels_that_its_metrics_have(where: str, expression: str) -> None:
    for name, matchers in _LABEL.findall(expression):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert asked <= promised()[name], where


def test_every_rule_says_what_is_wrong_what_to_do_and_whom_it_wakes() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}, rule
        assert rule["annotations"].keys() == {"summary", "action"}, rule
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in PAGE


def test_alertmanager_names_alerts_and_receivers_that_there_are() -> None:
    found = yaml.safe_load((FOLDER / "alertmanager.yaml").read_text())
    receivers = {each["name"] for each in found["receivers"]}
    route = found["route"]
    assert {route["receiver"], *(each["receiver"] for each in route["routes"])} == receivers
    names = [rule["alert"] for rule in rules()]
    for inhibit in found["inhibit_rules"]:
        for matcher in [*inhibit["source_matchers"], *inhibit["target_matchers"]]:
            parts = re.fullmatch(r'(\w+) (=~?) "(.*)"', matcher)
            assert parts is not None, matcher
            sign, pattern = parts[2], parts[3]
            hit = [one for one in names if (re.fullmatch(pattern, one) if sign == "=~" else one == pattern)]
            assert hit, matcher


def test_prometheus_reads_the_rules_that_are_shipped() -> None:
    found = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    assert all((FOLDER / name).is_file() for name in found["rule_files"])
    (job,) = found["scrape_configs"]
    assert f'job="{job["job_name"]}"' in (FOLDER / "alerts.yaml").read_text()


def test_panels_have_numbers_of_their_own_and_lie_beside_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_rules_do_what_their_own_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here (package prometheus)")
    for arguments in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
