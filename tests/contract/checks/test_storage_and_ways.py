"""Folders of runs and caches on real file systems (full, read-only, one whose server never answers); ways by TCP."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airyard.checks import apart, mount_checks
from airyard.checks.contract import Profile, Site
from airyard.checks.preflight import network, storage, ways
from airyard.checks.preflight.setting import Setting
from airyard.checks.running import run
from airyard.checks.thresholds import limits, of_pool, packaged
from airyard.core.health.facts import CheckResult
from airyard.node import preflight

DETACH = 2
SPACIOUS = of_pool(packaged(), {"all": {"cache_free_gib_fail": 0, "cache_free_gib_warn": 0}}, "p")
"""What is free on the machine of the tests is not what is tried."""


@contextmanager
def mounted(folder: Path, *how: str) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(["mount", *how, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@contextmanager
def dead_server(folder: Path) -> Iterator[Path]:
    """A file system whose server never answers, as of a file server that is away: whoever looks there waits."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if libc.mount(b"dead", str(folder).encode(), b"fuse", 0, options) != 0:
            pytest.skip(f"nothing can be mounted here: {os.strerror(ctypes.get_errno())}")
        try:
            yield folder
        finally:
            libc.umount2(str(folder).encode(), DETACH)
    finally:
        os.close(server)


def checked(setting: Setting, table: Any = SPACIOUS) -> dict[str, list[CheckResult]]:
    """Run both probes as preflight does, and return what their checks said, by name."""
    found: dict[str, list[CheckResult]] = {}
    for result in run([storage.PROBE, network.PROBE], setting, table):
        found.setdefault(result.check, []).append(result)
    return found


def said(setting: Setting, name: str, table: Any = SPACIOUS) -> list[tuple[str, str]]:
    return [(one.status.value, one.message) for one in checked(setting, table)[name]]


def group() -> set[str]:
    """Return who lives in the process group of the tests; what a probe starts is in it, whoever its parent is.

    Workers of one pytest are one group; what another one has started is not looked at.
    """
    found, mine = set(), f"PYTEST_XDIST_WORKER={os.environ.get('PYTEST_XDIST_WORKER', '')}".encode()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = stat.read_text().rpartition(")")[2].split()[:3]
            variables = stat.with_name("environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if any(one.startswith(b"PYTEST_XDIST_WORKER=") and one != mine for one in variables):
            continue
        if of_group == str(os.getpgrp()) and state != "Z":
            found.add(stat.parent.name)
    return found


def test_folders_are_written_and_nothing_is_left(tmp_path: Path) -> None:
    one, other = tmp_path / "checkpoints", tmp_path / "output"
    one.mkdir()
    other.mkdir()
    (one / storage._probe_name()).write_text("of a round that hung")
    setting = Setting(writes=(str(one), str(other)), caches=(str(tmp_path / "code"),))
    found = checked(setting)
    assert [result.message for result in found["storage.writes"]] == ["2 folders written and read"]
    assert [result.message for result in found["storage.cache"]] == ["1 folder of caches written and read"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "output"]
    assert os.listdir(one) == os.listdir(other) == []


def test_rounds_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    works = [partial(storage._write, tmp_path) for _ in range(8)]
    for _ in range(5):
        assert [one.problem for one in apart.each(works, 30) if one is not None] == [""] * 8
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_full_or_read_only_or_none_fails_by_name(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "full", "-t", "tmpfs", "-o", "size=64k", "none") as full,
        mounted(tmp_path / "fixed", "-t", "tmpfs", "-o", "ro", "none") as fixed,
    ):
        (full / "filler").write_bytes(b"\0" * 65536)
        (tmp_path / "file").write_text("")
        places = (full, fixed, tmp_path / "file", tmp_path / "gone")
        assert said(Setting(writes=tuple(map(str, places))), "storage.writes") == [
            ("FAIL", f"{full}: No space left on device"),
            ("FAIL", f"{fixed}: Read-only file system"),
            ("FAIL", f"{tmp_path / 'file'}: Not a directory"),
            ("FAIL", f"{tmp_path / 'gone'}: No such file or directory"),
        ]
        assert os.listdir(full) == ["filler"]
        assert [status for status, _ in said(Setting(caches=(str(fixed / "envs"),)), "storage.cache")] == [
            "FAIL"
        ]


@pytest.mark.parametrize(("least", "few", "status"), [(0, 1e9, "WARN"), (1e9, 1e9, "FAIL"), (0, 0, "PASS")])
def test_the_room_of_a_cache_is_judged(tmp_path: Path, least: float, few: float, status: str) -> None:
    table = of_pool(packaged(), {"all": {"cache_free_gib_fail": least, "cache_free_gib_warn": few}}, "p")
    ((found, words),) = said(Setting(caches=(str(tmp_path / "envs"),)), "storage.cache", table)
    assert found == status
    assert status == "PASS" or words.startswith(f"{tmp_path} has ")


def test_a_server_that_never_answers_fails_by_name_hides_nothing_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    well = tmp_path / "well"
    well.mkdir()
    with dead_server(tmp_path / "dead") as dead:
        setting = Setting(
            writes=(str(dead), str(well)), caches=(str(dead / "envs"),), manifest=str(dead / "m")
        )
        before, began = group(), time.monotonic()
        found = checked(setting)
        assert time.monotonic() - began < storage.PROBE.deadline_s
        assert group() <= before
    assert [one.message for one in found["storage.writes"]] == [f"{dead}: does not answer"]
    assert [one.message for one in found["storage.cache"]] == [
        f"{dead / 'envs'} (on {dead}, fuse): does not answer",
        f"{dead / 'm'} or what it lists does not answer",
    ]
    assert os.listdir(well) == []


def test_a_dead_mount_is_told_of_and_the_others_are_looked_at(tmp_path: Path) -> None:
    with dead_server(tmp_path / "dead") as dead:
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "mounts").write_text(f"x {dead} fuse.x rw 0 0\ny / ext4 rw 0 0\n")
        read = {mount.path: mount.took_ms for mount in mount_checks.collect(Site(root=tmp_path))}
    assert read[str(dead)] is None
    assert read["/"] is not None


def test_work_apart_that_raises_or_dies_is_told_apart() -> None:
    def broken() -> int:
        raise ValueError("no such thing")

    def gone() -> int:
        os._exit(3)

    assert apart.each([lambda: 1, gone, lambda: 3], 30) == [1, None, 3]
    with pytest.raises(RuntimeError, match="ValueError: no such thing"):
        apart.each([broken], 30)
    assert apart.each([], 1) == []


def test_a_preflight_that_waits_for_a_dead_server_is_given_up_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def noted(*args: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **named))
        return started[-1]

    real = subprocess.Popen
    monkeypatch.setattr(preflight.subprocess, "Popen", noted)
    with dead_server(tmp_path / "dead") as dead:
        wish = {"profile": Profile.FAST.value, "setting": Setting(writes=(str(dead),)).as_json()}
        began = time.monotonic()
        assert preflight.check(wish, 2.0) is None
        assert time.monotonic() - began < 10
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                os.killpg(started[0].pid, 0)  # the group of all that it started
            except ProcessLookupError:
                break
            time.sleep(0.05)
        else:
            pytest.fail("a process of the preflight is still there")


@contextmanager
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_large_packets_arrive_where_nobody_accepts() -> None:
    with listening() as place:
        refused = closed_port()
        one, other = ways.call([place, refused, place], load=ways.LOAD)
    assert (one.place, one.problem) == (place, "")
    assert one.mtu is not None
    assert (other.refused, other.problem) == (True, "connection refused")
    (told,) = ways.judged([one, other], limits(packaged(), ""))
    assert told.status.value == "PASS", "who refuses has answered"


def test_a_place_to_which_no_way_leads_does_not_answer() -> None:
    # A stream is never connected to the broadcast address: the kernel says so at once, and not again by the socket.
    for load in (0, ways.LOAD):
        (way,) = ways.call(["255.255.255.255:80"], load=load, within_s=0.5)
        assert way.problem == "network is unreachable"
        assert not way.refused


def test_a_way_that_swallows_large_packets_fails() -> None:
    """A listener whose buffer takes next to nothing stands for switches that drop what is large."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        place = f"127.0.0.1:{server.getsockname()[1]}"
        (way,) = ways.call([place], load=ways.LOAD, within_s=0.5)
    (told,) = ways.judged([way], limits(packaged(), ""))
    assert told.status.value == "FAIL"
    assert (
        told.message
        == f"{place} cannot be reached: it answers, but large packets did not arrive within 0.5 s"
    )


def test_packets_that_are_smaller_than_asked_for_are_warned_of() -> None:
    limit = limits(of_pool(packaged(), {"all": {"mtu_least": 8972}}, "p"), "")
    (told,) = ways.judged([ways.Way(place="n2:7", mtu=1500)], limit)
    assert (told.status.value, told.value, told.threshold) == ("WARN", 1500, 8972)


def test_a_server_that_is_away_is_warned_of_and_a_run_of_one_has_nobody_else_to_call() -> None:
    with listening() as place:
        away = closed_port()
        alone = "this run has one member: there is no other node to call"
        assert said(Setting(servers=(place,), alone=alone), "net.peers") == [
            ("PASS", f"1 server answers; {alone}")
        ]
        ((status, words),) = said(Setting(servers=(place, away)), "net.peers")
        assert (status, words) == ("WARN", f"the server at {away} cannot be reached: connection refused")
    assert said(Setting(), "net.peers") == [("SKIP", "no run: there is no other node to call")]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://yard.example", "yard.example:443"),
        ("http://10.0.0.1:8290/x", "10.0.0.1:8290"),
        ("http://[fd00::1]:80", "[fd00::1]:80"),
        ("yard", ""),
        ("http://x:99999", ""),
    ],
)
def test_an_address_is_a_place(url: str, place: str) -> None:
    assert preflight.place_of(url) == place


NOBODY = 65_534
CLOSED_TO_ROOT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
"""As a file server that takes root for nobody: user 0, and no right that a folder's mode does not give."""


def squashed(setting: Setting) -> list[tuple[str, str]]:
    """Return what ``storage.writes`` comes to for root without root's rights."""
    script = (
        "import json, sys; from airyard.checks.preflight.__main__ import check; "
        "print(json.dumps([(r['status'], r['message']) for r in check(json.load(sys.stdin))]))"
    )
    wish = {"profile": "fast", "setting": {**setting.as_json(), "only": ["storage.writes"]}}
    done = subprocess.run(
        [*CLOSED_TO_ROOT, sys.executable, "-c", script],
        input=json.dumps(wish),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return [(status, message) for status, message in json.loads(done.stdout)]


@pytest.fixture
def of_nobody(tmp_path: Path) -> Path:
    """A folder of another account alone, whose way from ``tmp_path`` is closed to all but root."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another account")
    (tmp_path / "closed").mkdir(mode=0o700)
    folder = tmp_path / "closed" / "work"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    return folder


def test_a_server_that_takes_root_for_nobody_says_nothing_of_the_node(of_nobody: Path) -> None:
    (told,) = squashed(Setting(data_folder=of_nobody.parent, writes=(str(of_nobody),)))
    assert told[0] == "UNKNOWN"
    assert told[1].startswith(f"{of_nobody}: Permission denied for the account that tried")


def test_the_runs_own_folder_that_its_account_cannot_write_fails(of_nobody: Path) -> None:
    folder = str(of_nobody)
    assert squashed(Setting(data_folder=of_nobody.parent, writes=(folder,), own=(folder,))) == [
        ("FAIL", f"{folder}: Permission denied")
    ]
    of_nobody.chmod(0o500)
    mine = Setting(writes=(folder,), own=(folder,), account=(NOBODY, NOBODY))
    assert said(mine, "storage.writes") == [("FAIL", f"{folder}: Permission denied")]


def test_a_folder_is_tried_as_the_account_that_will_write_there(of_nobody: Path, tmp_path: Path) -> None:
    """The way to it is not opened to that account yet, and what it leaves behind is nothing."""
    of_pool = tmp_path / "closed" / "of_others"
    of_pool.mkdir(mode=0o755)
    setting = Setting(writes=(str(of_nobody),), own=(str(of_nobody),), account=(NOBODY, NOBODY, NOBODY))
    assert said(setting, "storage.writes") == [("PASS", "1 folder written and read")]
    assert list(of_nobody.iterdir()) == []
    both = replace(setting, writes=(str(of_nobody), str(of_pool)))
    ((status, message),) = said(both, "storage.writes")
    assert (status, message.partition(":")[0]) == ("UNKNOWN", str(of_pool))
