"""Certificates: when one holds, that a torn file is none, and that nothing unknown is certified."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airyard.checks.contract import Profile, failed, passed, skipped, warned
from airyard.checks.preflight import certificate
from airyard.checks.preflight.certificate import LASTS_MS, Identity
from airyard.core.health.facts import CheckResult, CheckStatus, Component

NODE = Identity(node="n1", boot_id="b", driver="570", uuids=("GPU-0", "GPU-1"), rules="1/1")
GOOD = [passed("a.b", "", value=4, unit="W"), skipped("c.d", "none"), warned("e.f", "odd", "look")]


def test_it_comes_back_as_it_was_written_and_holds_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "certificates" / "n1.json"
    issued = certificate.issue(NODE, Profile.FAST, GOOD, 1_000)
    assert issued is not None
    certificate.store(path, issued)
    kept = certificate.load(path)
    assert kept == issued
    assert [one["check"] for one in kept.checks] == ["a.b", "c.d", "e.f"]
    assert kept.holds(NODE, Profile.FAST, 1_000 + LASTS_MS - 1)
    assert not kept.holds(NODE, Profile.FAST, 1_000 + LASTS_MS)
    assert not kept.holds(NODE, Profile.FAST, 999), "the clock was set back"
    certificate.revoke(path)
    certificate.revoke(path)
    assert certificate.load(path) is None
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "profile", "holds"),
    [
        (NODE, Profile.FAST, True),
        (NODE, Profile.FULL, False),
        (replace(NODE, uuids=("GPU-1",)), Profile.FAST, True),
        (replace(NODE, uuids=("GPU-2",)), Profile.FAST, False),
        (replace(NODE, boot_id="c"), Profile.FAST, False),
        (replace(NODE, driver="580"), Profile.FAST, False),
        (replace(NODE, node="n2"), Profile.FAST, False),
        (replace(NODE, rules="2/1"), Profile.FAST, False),
    ],
)
def test_it_is_of_one_node_as_it_was(other: Identity, profile: Profile, holds: bool) -> None:
    issued = certificate.issue(NODE, Profile.FAST, GOOD, 1_000)
    assert issued is not None
    assert issued.holds(other, profile, 2_000) is holds
    full = certificate.issue(NODE, Profile.FULL, GOOD, 1_000)
    assert full is not None
    assert full.holds(NODE, Profile.FAST, 2_000)


def test_a_failure_or_what_is_not_known_gives_none() -> None:
    bad = failed("x.y", "broken", "mend", Component.GPU)
    unknown = CheckResult(check="x.y", status=CheckStatus.UNKNOWN, message="late")
    assert certificate.issue(NODE, Profile.FAST, [*GOOD, bad], 1) is None
    assert certificate.issue(NODE, Profile.FAST, [*GOOD, unknown], 1) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "identity": {"x": 1}}'])
def test_what_is_no_certificate_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "n1.json"
    path.write_text(text)
    assert certificate.load(path) is None
