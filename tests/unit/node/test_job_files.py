"""What a job plants in its folders leads a process of more rights nowhere."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import BinaryIO

import pytest

from airyard.node.code_cache import CodeCache
from airyard.node.exit_record import AttemptFolder
from airyard.node.identity import Identity, IdentityRefused, closed_folder, find_identity
from airyard.node.job_files import give_tree, make_folder, open_way, read_small, remove_tree, write_file
from airyard.node.runner import read_acknowledgement

root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
ADA = Identity(name="ada", uid=54321, gid=54321, groups=(54321,), home="/nowhere", shell="/usr/sbin/nologin")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("planted", ["link", "pipe", "folder", "large"])
def test_only_a_small_plain_file_is_read(tmp_path: Path, planted: str) -> None:
    secret, path = tmp_path / "secret", tmp_path / "reply.json"
    secret.write_text('{"step": 1, "path": "of somebody else"}')
    if planted == "link":
        path.symlink_to(secret)
    elif planted == "pipe":
        os.mkfifo(path)
    elif planted == "folder":
        path.mkdir()
    else:
        path.write_text("x" * 101)
    try:
        assert read_small(path, None, limit_bytes=100) is None
    except OSError:
        assert planted == "link"


@root
def test_a_second_name_of_a_file_of_others_is_not_read(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path / "1.0.0")
    folder.control.mkdir(parents=True)
    make_folder(folder.replies, ADA)
    secret = tmp_path / "secret.json"
    secret.write_text('{"step": 1, "path": "of somebody else"}')
    os.link(secret, folder.acknowledgement_file)
    assert read_acknowledgement(folder, None) is not None
    assert read_acknowledgement(folder, None, ADA) is None


@root
def test_a_folder_that_is_a_link_is_not_given_away(tmp_path: Path) -> None:
    target = tmp_path / "etc"
    target.mkdir(mode=0o755)
    (tmp_path / "output").symlink_to(target)
    with pytest.raises(OSError):  # noqa: PT011  # which of two errors depends on the kernel
        make_folder(tmp_path / "output", ADA)
    assert target.stat().st_uid == 0


@root
def test_a_tree_is_given_away_with_its_links_and_without_what_they_lead_to(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "code"
    outside.write_text("not the job's")
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "main.py").write_text("pass")
    (tree / "deep" / "way").symlink_to(outside)
    give_tree(tree, ADA)
    assert outside.stat().st_uid == 0
    assert {each.lstat().st_uid for each in (tree, *tree.rglob("*"))} == {ADA.uid}
    assert mode(tree) == 0o700


@root
def test_what_is_written_for_an_account_is_its_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "command.sh", "true", ADA)
    assert mode(tmp_path / "command.sh") == 0o600
    assert (tmp_path / "command.sh").stat().st_uid == ADA.uid
    (tmp_path / "planted").symlink_to(tmp_path / "command.sh")
    with pytest.raises(OSError, match="planted"):
        write_file(tmp_path / "planted", "overwritten", ADA)


def test_the_way_is_open_and_all_beside_it_closed(tmp_path: Path) -> None:
    home, node = tmp_path / "home", tmp_path / "home" / "node"
    for name in ("server", "node/code", "node/envs", "node/attempts/1.0.0", "node/runs/1"):
        (home / name).mkdir(parents=True)
    (home / "config.toml").write_text("")
    for _ in range(2):
        open_way(home, node, node / "runs" / "2")
        (node / "runs" / "3").mkdir(mode=0o700, exist_ok=True)
    assert [mode(each) for each in (home, node, node / "attempts", node / "runs", node / "users")] == [
        0o711
    ] * 5
    assert mode(node / "runs" / "2") == 0o711
    for name in ("server", "node/code", "node/envs", "node/attempts/1.0.0", "node/runs/1", "node/runs/3"):
        assert mode(home / name) & 0o077 == 0, name
    assert mode(home / "config.toml") & 0o077 == 0


def test_caches_that_are_filled_after_the_way_is_open_are_closed(tmp_path: Path) -> None:
    home, node, data = tmp_path / "home", tmp_path / "home" / "node", io.BytesIO()
    node.mkdir(parents=True)
    with tarfile.open(fileobj=data, mode="w"):
        pass

    def fill(stream: BinaryIO) -> None:
        stream.write(data.getvalue())

    before = os.umask(0o022)
    try:
        open_way(home, node, node / "runs" / "1")
        CodeCache(node / "code").ensure("a" * 16, fill)
        CodeCache(tmp_path / "other").ensure("a" * 16, fill)
        (node / "later").mkdir()
        (node / "envs").chmod(0o755)
        open_way(home, node, node / "runs" / "2")
    finally:
        os.umask(before)
    assert mode(node) == 0o711
    for folder in (node / "code", node / "envs", node / "later", tmp_path / "other"):
        assert mode(folder) == 0o700, folder


def test_a_tree_deeper_than_any_stack_goes(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("what another account made is removed by root")
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("stays")
    top = tmp_path / "scratch"
    top.mkdir()
    handle = os.open(top, os.O_RDONLY)
    for depth in range(3000):
        os.mkdir("d", dir_fd=handle)
        if depth % 500 == 0:
            os.symlink(kept, "way", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    remove_tree(top)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept"]
    assert (kept / "file").read_text() == "stays"


def test_a_link_is_no_tree_to_remove(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "kept")
    if os.geteuid() == 0:
        remove_tree(tmp_path / "way")
    assert (tmp_path / "kept").is_dir()


def test_a_folder_that_an_account_may_not_pass_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "below").mkdir(parents=True)
    tmp_path.chmod(0o711)
    closed.chmod(0o700)
    found = closed_folder(closed / "below" / "python", ADA)
    assert found is not None
    assert found == closed or closed.is_relative_to(found)
    assert closed_folder(Path("/usr/bin/env"), ADA) is None


def test_accounts_that_nobody_may_have_are_refused() -> None:
    with pytest.raises(IdentityRefused, match=r"node n7 has no Unix user 'no-such-account'"):
        find_identity("no-such-account", node="n7")
    with pytest.raises(IdentityRefused, match="members do not run as root") as caught:
        find_identity("root", node="n7")
    assert caught.value.permanent


def test_the_variables_are_those_of_a_login(tmp_path: Path) -> None:
    found = ADA.variables(homeless=str(tmp_path))
    assert found == {"HOME": str(tmp_path), "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/bash"}
