"""``notify`` of a workload file: read, and refused with the name of the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from airyard.core.notify import NotifyRule, RunNotice
from airyard.core.workload import Workload
from airyard.spec.load import Loaded, load_text
from airyard.spec.problems import WorkloadInvalid
from airyard.wire.native import WorkloadPart

BASE = "experiment_name: e\ncommand: c\ncompute: {accelerator_type: CPU}\n"


def load(notify: str, tmp_path: Path, **options: object) -> Loaded:
    return load_text(f"{BASE}notify: {notify}\n", folder=tmp_path, file="w.yaml", **options)  # type: ignore[arg-type]  # passed on


def workload(notify: str, tmp_path: Path) -> Workload:
    return load(notify, tmp_path).workload


def test_rules_are_read_as_written_and_pass_the_wire(tmp_path: Path) -> None:
    text = (
        "[{on: [failed, Preempted, stalled, done, failed], to: 'https://hooks.example.org/a?b=c'}, "
        "{on: [failed], to: '{{secrets/ops/chat}}', secret: ops/key}]"
    )
    found = workload(text, tmp_path)
    assert found.notify == (
        NotifyRule(
            on=(RunNotice.FAILED, RunNotice.PREEMPTED, RunNotice.STALLED, RunNotice.DONE),
            to="https://hooks.example.org/a?b=c",
        ),
        NotifyRule(on=(RunNotice.FAILED,), to="{{secrets/ops/chat}}", secret="ops/key"),
    )
    assert WorkloadPart.model_validate(found.to_json()).workload() == found


def test_overrides_reach_into_rules_and_replace_them(tmp_path: Path) -> None:
    text = "[{on: [failed], to: 'https://one.example/'}]"
    one = load(text, tmp_path, overrides=["notify.0.to=https://two.example/"]).workload
    assert [rule.to for rule in one.notify] == ["https://two.example/"]
    other = load(text, tmp_path, overrides=["notify=[]"]).workload
    assert other.notify == ()


@pytest.mark.parametrize(
    ("notify", "code", "path", "words"),
    [
        ("[{on: [failed]}]", "MISSING_FIELD", "notify[0].to", "required"),
        ("[{to: 'https://a.example'}]", "MISSING_FIELD", "notify[0].on", "required"),
        ("[{on: [], to: 'https://a.example'}]", "INVALID_VALUE", "notify[0].on", "at least 1"),
        ("[{on: failed, to: 'https://a.example'}]", "WRONG_TYPE", "notify[0].on", "list"),
        (
            "[{on: [ended], to: 'https://a.example'}]",
            "INVALID_VALUE",
            "notify[0].on[0]",
            "none of failed, preempted, stalled, done",
        ),
        (
            "[{on: [done], to: 'ftp://a.example'}]",
            "INVALID_VALUE",
            "notify[0].to",
            "must begin with https://",
        ),
        ("[{on: [done], to: 'https://u:p@a.example'}]", "INVALID_VALUE", "notify[0].to", "no password"),
        ("[{on: [done], to: mail}]", "INVALID_VALUE", "notify[0].to", "must begin with https://"),
        (
            "[{on: [done], to: 'https://a.example', secret: plain}]",
            "INVALID_VALUE",
            "notify[0].secret",
            "scope/key",
        ),
        (
            "[{on: [done], to: 'https://a.example', url: x}]",
            "UNKNOWN_FIELD",
            "notify[0].url",
            "unknown field",
        ),
        ("{on: [done]}", "WRONG_TYPE", "notify", "list"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(
    notify: str, code: str, path: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadInvalid) as caught:
        load(notify, tmp_path)
    (problem,) = [each for each in caught.value.problems if each.path == path]
    assert problem.code.value == code
    assert words in problem.message


def test_more_rules_than_a_workload_may_have(tmp_path: Path) -> None:
    rules = ", ".join(f"{{on: [done], to: 'https://a.example/{number}'}}" for number in range(17))
    with pytest.raises(WorkloadInvalid) as caught:
        load(f"[{rules}]", tmp_path)
    assert [each.path for each in caught.value.problems] == ["notify"]


@pytest.mark.parametrize(
    "rule",
    [
        {"on": ["done"], "to": "file:///etc/passwd"},
        {"on": [], "to": "https://a.example"},
        {"on": ["ended"], "to": "https://a.example"},
        {"on": ["done"], "to": "https://a.example", "secret": "plain"},
    ],
)
def test_the_server_checks_again(rule: dict[str, object]) -> None:
    plain = {"experiment": "e", "command": "c", "compute": {"accelerator": "CPU"}}
    WorkloadPart.model_validate(plain)
    with pytest.raises(ValidationError):
        WorkloadPart.model_validate({**plain, "notify": [rule]})
