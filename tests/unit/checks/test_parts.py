"""The full profile in parts: all of it, nothing twice but what is read of GPUs at work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airyard.checks import catalogue
from airyard.checks.contract import Profile, passed
from airyard.checks.preflight import __main__ as program
from airyard.checks.preflight import certificate, compute, load, parts
from airyard.checks.preflight.certificate import LASTS_MS, Identity
from airyard.core.health.facts import CheckResult, CheckStatus, Retest
from airyard.core.health.retesting import needed

WELL = [passed("compute.burn", "as it should be")]
NOW = 10 * LASTS_MS
OWN_FILE = """
from airyard.checks.contract import Check, Probe, passed
CHECK = Check(name="site.own", title="t", passes="p", judge=lambda read, limits: [passed("site.own", "well")])
PROBE = Probe(name="own", collect=lambda site: 1, checks=(CHECK,))
"""


def test_the_parts_are_all_of_the_full_profile() -> None:
    of_all = [check for checks in catalogue.parts(gpus=True).values() for check in checks]
    every = {check.name for probe in catalogue.PROBES for check in probe.checks}
    assert set(of_all) == {*every, catalogue.OWN}
    assert sorted(name for name in set(of_all) if of_all.count(name) > 1) == [load.NAME]
    assert set(needed(Retest.T3, 8)) <= set(of_all)
    assert list(catalogue.parts(gpus=False)) == [catalogue.READING, "storage.speed"]


def test_a_part_keeps_what_reads_gpus_for_their_limits() -> None:
    probes = catalogue.probes(Profile.FULL)
    burn = catalogue.only(probes, ["compute.burn"])
    assert {probe.name: [check.name for check in probe.checks] for probe in burn} == {
        "gpus": [],
        "compute": ["compute.burn"],
    }
    reading = catalogue.only(probes, catalogue.parts(gpus=True)[catalogue.READING])
    assert {"compute", "speed", "loopback"}.isdisjoint(probe.name for probe in reading)
    assert {"gpus", "stores", "mounts"} <= {probe.name for probe in reading}


def test_own_checks_are_run_with_what_is_read_and_with_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_FILE)
    for only, said in (((catalogue.OWN,), {"host.swap", "site.own"}), ((), {"host.swap"})):
        setting = {"own_folder": str(tmp_path), "only": ["host.swap", *only]}
        found = program.check({"profile": "full", "setting": setting})
        assert {one["check"] for one in found} == said


def test_only_the_tests_that_are_wanted_are_run() -> None:
    class Counting:
        def __init__(self) -> None:
            self.ran: list[str] = []

        def run(self, test: str, *, full: bool, budget_s: float) -> compute.Outcome:
            self.ran.append(test)
            return compute.Outcome()

    counting = Counting()
    found = compute.run_tests(counting, full=True, only=["compute.memory", load.NAME])
    assert counting.ran == ["memory"]
    assert found["burn"].skipped == "in another part"


def test_parts_make_a_certificate_that_is_as_old_as_the_oldest(tmp_path: Path) -> None:
    path, who = tmp_path / "n1.parts", Identity(node="n1", boot_id="b1", uuids=("u",))
    unknown = CheckResult(check="compute.burn", status=CheckStatus.UNKNOWN, message="late")
    assert parts.take(path, who, "a", "abc", WELL, NOW) is None
    assert parts.take(path, who, "b", "abc", [unknown], NOW + 1) is None
    assert parts.take(path, who, "c", "abc", WELL, NOW + 2) is None, "one is not known"
    made = parts.take(path, who, "b", "abc", WELL, NOW + 3)
    assert made is not None
    assert (made.issued_ms, made.expires_ms, made.profile) == (NOW, NOW + LASTS_MS, Profile.FULL)
    assert made.holds(who, Profile.FULL, NOW + 4)
    assert not path.exists()


def test_parts_of_another_boot_or_of_yesterday_or_of_a_torn_file_do_not_count(tmp_path: Path) -> None:
    path, who = tmp_path / "n1.parts", Identity(node="n1", boot_id="b1", uuids=("u",))
    parts.take(path, who, "a", "ab", WELL, NOW)
    assert parts.take(path, replace(who, boot_id="b2"), "b", "ab", WELL, NOW + 1) is None
    parts.forget(path)
    parts.take(path, who, "a", "ab", WELL, NOW)
    assert parts.take(path, who, "b", "ab", WELL, NOW + LASTS_MS) is None
    path.write_text("{")
    assert parts.take(path, who, "a", "ab", WELL, NOW + LASTS_MS) is None
    assert certificate.load(path) is None
