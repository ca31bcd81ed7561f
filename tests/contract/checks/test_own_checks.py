"""A site's own check files that fail in every way: theirs are unknown, the others' results stand. Real processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airyard.checks import catalogue, own_files, running
from airyard.checks.contract import Profile, Site
from airyard.checks.thresholds import packaged
from airyard.core.errors import UserError
from airyard.core.health.facts import CheckResult, CheckStatus
from airyard.node import preflight

OWN = '''
"""A scratch disk that has to be there."""
from dataclasses import dataclass

from airyard.checks.contract import Check, Probe, failed, passed
from airyard.core.health.facts import Component


@dataclass
class Scratch:
    there: bool


def collect(site):
    return Scratch(there=site.path("/scratch").is_dir())


def judge(read, limits):
    if read.there:
        return [passed("site.scratch", "there")]
    return [failed("site.scratch", "/scratch is not there", "mount it", Component.DISK)]


CHECK = Check(name="site.scratch", title="the scratch disk", passes="it is there", judge=judge)
PROBE = Probe(name="scratch", collect=collect, checks=(CHECK,), deadline_s=2.0)
'''
AT_COLLECT = "    return Scratch(there=site.path"
AT_JUDGE = "    if read.there:"


_PIPE = (
    "import gc, os, time; from multiprocessing.connection import Connection; "
    "pipe = [o for o in gc.get_objects() if issubclass(type(o), Connection) and not o.closed][-1].fileno(); "
)
HALF = _PIPE + "os.write(pipe, (100).to_bytes(4, 'big') + b'{'); time.sleep(60)"
"""Half a message, and then nothing."""
DRIP = (
    _PIPE + "os.write(pipe, (9999).to_bytes(4, 'big')); "
    "[(os.write(pipe, b' '), time.sleep(.05)) for _ in range(9999)]"
)
"""A message that comes by the octet."""


def collecting(what: str) -> str:
    return OWN.replace(AT_COLLECT, f"    {what}\n{AT_COLLECT}")


def judging(what: str) -> str:
    return OWN.replace(AT_JUDGE, f"    {what}\n{AT_JUDGE}")


def go(folder: Path, *, profile: Profile = Profile.FAST) -> list[CheckResult]:
    """Run a site's own files alone."""
    return running.run([], Site(root=folder), packaged(), catalogue.own(folder, profile))


def test_a_check_of_ones_own_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "scratch.py").write_text(OWN)
    (result,) = go(tmp_path)
    assert (result.check, result.status) == ("site.scratch", CheckStatus.FAIL)
    assert result.next_step == "mount it"
    (tmp_path / "scratch").mkdir()
    (result,) = go(tmp_path)
    assert result.status is CheckStatus.PASS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (", "SyntaxError"),
        ("raise ValueError('no')", "ValueError: no (line 1)"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("import os; os._exit(0)", "its process ended without a word"),
        ("while True: pass", "it is not loaded within 1 s"),
        ("PROBE = 1", "it has no PROBE"),
        (OWN.replace("site.scratch", "gpu.count"), "the name gpu.count is taken"),
        (OWN.replace("site.scratch", "Scratch\\x1b[31m"), "is no name of a check"),
        (OWN.replace("deadline_s=2.0", "deadline_s=float('nan')"), "its deadline_s is nan"),
        (OWN.replace("checks=(CHECK,)", "checks=()"), "it has no checks"),
        (collecting("while True: pass"), "the probe scratch is late"),
        (collecting("raise SystemExit('enough')"), "the probe scratch crashed: SystemExit: enough"),
        (collecting("import os; os.kill(os.getpid(), 9)"), "the probe scratch crashed: its process ended"),
        (collecting(HALF), "the probe scratch is late"),
        (judging(HALF), "the rules of scratch are late"),
        (collecting(DRIP), "the probe scratch is late"),
        (judging("raise KeyError('x')"), "the check itself crashed: KeyError: 'x'"),
        (judging("while True: pass"), "the rules of scratch are late"),
        (judging("import os; os._exit(3)"), "the rules of scratch crashed: its process ended"),
        (judging("return ['fail']"), "it said 'fail', which is no CheckResult"),
        (judging("return None"), "TypeError"),
        (judging("return [passed('gpu.lost', 'well')]"), "it spoke of gpu.lost, which is not its own"),
        (judging("return [passed('site.scratch', 'm', value='7')]"), "value is no number: '7'"),
        (judging("return [passed('site.scratch', 'm', value=float('nan'))]"), "value is no number: nan"),
        (judging("return (passed('site.scratch', 'm') for _ in iter(int, 1))"), "more than 256 results"),
    ],
)
def test_what_an_own_file_does_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(own_files, "LOAD_S", 1.0)
    monkeypatch.setattr(own_files, "JUDGE_S", 1.0)
    (tmp_path / "a_bad.py").write_text(text)
    (tmp_path / "good.py").write_text(OWN.replace("site.scratch", "site.good"))
    bad, good = go(tmp_path)
    assert bad.status is CheckStatus.UNKNOWN
    assert words in bad.message
    assert "a_bad.py" in bad.message + bad.next_step
    assert (good.check, good.status) == ("site.good", CheckStatus.FAIL)


def test_a_second_file_of_the_same_name_is_unknown_and_the_first_holds(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(OWN)
    (tmp_path / "b.py").write_text(OWN)
    first, second = go(tmp_path)
    assert (first.check, first.status) == ("site.scratch", CheckStatus.FAIL)
    assert (second.check, second.status) == ("own.b", CheckStatus.UNKNOWN)


def test_text_of_an_own_check_is_bounded_and_without_control_characters(tmp_path: Path) -> None:
    said = judging("return [failed('site.scratch', '\\x1b[2J' + 'x' * 10**7, 'y' * 10**6, Component.DISK)]")
    (tmp_path / "loud.py").write_text(said)
    (result,) = go(tmp_path)
    assert result.status is CheckStatus.FAIL
    assert result.message.startswith("\\x1b[2Jxxx")
    assert result.message.endswith("characters)")
    assert (len(result.message), len(result.next_step)) == (1_000, 1_000)


def test_an_own_file_of_the_full_profile_waits_for_it(tmp_path: Path) -> None:
    full = OWN.replace("deadline_s=2.0", "profile=Profile.FULL").replace(
        "Check, Probe", "Check, Probe, Profile"
    )
    (tmp_path / "scratch.py").write_text(full)
    assert go(tmp_path) == []
    (result,) = go(tmp_path, profile=Profile.FULL)
    assert result.check == "site.scratch"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        catalogue.own(tmp_path / "none", Profile.FAST)


def test_of_very_many_files_those_beyond_the_bound_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_files, "MOST_FILES", 2)
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.py").write_text(OWN.replace("site.scratch", f"site.{name}"))
    *known, rest = go(tmp_path)
    assert [one.check for one in known] == ["site.a", "site.b"]
    assert rest.status is CheckStatus.UNKNOWN
    assert "2 more files" in rest.message


@pytest.mark.parametrize(
    "text",
    [
        "x = (",
        "import sys; sys.exit(0)",
        "while True: pass",
        "import os; print('{' * 1000); os.write(1, b'[1]' * 1000)",
        collecting("import os; os.write(1, b'x' * 10**6); print('y' * 10**6)"),
        judging("import os; os.write(1, b'z'); os._exit(0)"),
    ],
)
def test_a_preflight_keeps_what_the_other_checks_found(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "checks"
    folder.mkdir()
    (folder / "bad.py").write_text(text)
    wish = {"profile": "fast", "setting": preflight.setting_of("", (), tmp_path).as_json()}
    began = time.monotonic()
    results = preflight.check(wish, 75.0)
    assert results is not None
    assert time.monotonic() - began < 40
    found = {one.check: one.status for one in results}
    assert found["host.disk"] is CheckStatus.PASS
    mine = [one for one in results if one.check in ("own.bad", "site.scratch")]
    assert [one.status for one in mine] in ([CheckStatus.UNKNOWN], [CheckStatus.FAIL])
    json.dumps([one.message for one in results])
