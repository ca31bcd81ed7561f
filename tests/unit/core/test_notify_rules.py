"""What a workload's ``notify`` may say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core.notify import NotifyRule, RunNotice, check_address, check_target, shown_target
from airyard.core.workload import Compute, Workload

PLAIN = Workload(experiment="digits", command="true", compute=Compute.of("CPU"))


def test_a_workload_without_rules_keeps_its_hash_and_one_with_rules_its_rules() -> None:
    assert "notify" not in PLAIN.to_json()
    rule = NotifyRule(on=(RunNotice.FAILED, RunNotice.DONE), to="https://example.org/x", secret="ops/hook")
    told = replace(PLAIN, notify=(rule,))
    assert Workload.from_json(told.to_json()) == told
    assert told.spec_hash() != PLAIN.spec_hash()


@pytest.mark.parametrize(
    "good", ["https://example.org", "http://10.0.0.3:8065/hooks/a?b=c", "https://[2001:db8::1]:8443/x"]
)
def test_good_addresses(good: str) -> None:
    assert check_address(good) == good


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("ftp://example.org/x", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("https:///x", "name a host"),
        ("example.org/x", "must begin with https://"),
        ("https://user:secret@example.org/", "no user and no password"),
        ("https://example.org/#x", "no part behind #"),
        ("https://example.org:99999/", "cannot be read"),
        ("https://[::1/", "cannot be read"),
        ("https://example.org/a b", "printable ASCII"),
        ("https://example.org/\r\nHost: other", "printable ASCII"),
        ("https://exämple.org/", "printable ASCII"),
        ("https://example.org/" + "x" * 2048, "2048 characters"),
    ],
)
def test_bad_addresses(bad: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        check_address(bad)
    assert "secret" not in str(refused.value).replace("sign with secret", "")


def test_an_address_may_be_a_secret() -> None:
    assert check_target("{{secrets/ops/slack}}") == "{{secrets/ops/slack}}"
    with pytest.raises(ValueError, match="must begin"):
        check_address("{{secrets/ops/slack}}")


def test_what_is_shown_of_an_address() -> None:
    assert shown_target("https://hooks.example.org/T0/B0/token?key=1") == "https://hooks.example.org"
    assert shown_target("http://[fd00::1]:8065/hooks/x") == "http://[fd00::1]:8065"
    assert shown_target("{{secrets/ops/slack}}") == "{{secrets/ops/slack}}"
