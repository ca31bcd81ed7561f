"""The users file: read again when it changes, refused when it is broken, with the last good one kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airyard.core.access.roles import Kind, Role
from airyard.core.errors import UserError
from airyard.server.people_file import PeopleFile
from airyard.spec.people import read_people

GOOD = "users:\n  ada: {role: admin, groups: [vision]}\n  bob:\n  nightly: {kind: service}\n"


def people_file(path: Path) -> PeopleFile:
    return PeopleFile(path, owner="root", look_s=0.0)


def test_without_a_file_the_owner_is_the_only_user() -> None:
    people = PeopleFile(None, owner="root").current()
    owner = people.find("root")
    assert owner is not None
    assert owner.role is Role.ADMIN
    assert people.find("ada") is None
    assert not people.declared


def test_an_edit_counts_and_a_broken_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text(GOOD)
    file = people_file(path)
    assert file.current().find("bob") is not None
    path.write_text(GOOD + "  eve: {role: viewer}\n")
    eve = file.current().find("eve")
    assert eve is not None
    assert eve.role is Role.VIEWER
    path.write_text(GOOD + "  eve: {role: viewer}\n  mallory: {role: [admin}\n")
    assert file.current().find("eve") is not None
    assert file.problem is not None
    assert f"{path}:6" in file.problem
    path.unlink()
    assert file.current().find("eve") is not None
    assert file.problem is not None
    path.write_text(GOOD)
    assert file.current().find("eve") is None
    assert file.problem is None


def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    path.write_text("users: {ada: }\n")
    file = people_file(path)
    stamp = path.stat()
    other = tmp_path / "new"
    other.write_text("users: {bob: }\n")
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(path)
    assert file.current().find("bob") is not None


def test_a_broken_file_is_no_start(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    for text in ("", "users:\n  - ada\n", "users: {ada: {rol: admin}}\n", "\0"):
        path.write_text(text)
        with pytest.raises(UserError) as caught:
            people_file(path)
        assert caught.value.code == "USERS_FILE_INVALID"
    with pytest.raises(UserError, match="No such file"):
        people_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("users:\n  ada: {rol: admin}\n", "users.yaml:2:9  users.ada.rol  unknown field"),
        ("users:\n  ada: {role: king}\n", "users.yaml:2:9  users.ada.role  'king' is none of viewer, user"),
        ("users:\n  ada: {kind: agent}\n", "agents have tokens of the people they act for"),
        ("users:\n  ada:\n  ada: {role: admin}\n", "users.yaml:3:3  users.ada  given twice"),
        ("users:\n  'a:b':\n", "is no name of a user"),
        ("users:\n  '../x':\n", "is no name of a user"),
        ("pools: {}\n", "users  is required"),
        ("users: {}\npools: {h: {project: [a]}}\n", "pools.h.project  unknown field"),
        ("users:\n  ada: {groups: vision}\n", "expected a list"),
    ],
)
def test_every_problem_is_told_with_its_line(text: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        read_people(text, file="users.yaml", owner="root")
    assert told in caught.value.message


def test_the_owner_stays_an_admin_whatever_the_file_says() -> None:
    people = read_people("users:\n  root: {role: viewer, groups: [vision]}\n", file="u", owner="root")
    owner = people.find("root")
    assert owner is not None
    assert (owner.role, owner.groups) == (Role.ADMIN, frozenset({"vision"}))


def test_defaults_are_a_user_and_a_person() -> None:
    people = read_people(GOOD, file="u", owner="root")
    bob, nightly = people.find("bob"), people.find("nightly")
    assert bob is not None
    assert nightly is not None
    assert (bob.role, bob.kind, nightly.kind) == (Role.USER, Kind.PERSON, Kind.SERVICE)


def test_accounts_are_read_and_kept_to_what_they_may_be() -> None:
    text = (
        "users:\n  ada: {unix_user: ada1}\n  nightly: {kind: service, unix_user: svc, lent_to: [vision]}\n"
        "pools:\n  managed: {run_as: user}\n  closed: {run_as: user, groups: [vision]}\n"
    )
    people = read_people(text, file="users.yaml", owner="root")
    assert people.unix_user_of("ada") == "ada1"
    assert people.unix_user_of("eve") == ""
    assert people.known["nightly"].lent_to == {"vision"}
    assert people.pools["managed"].open
    assert not people.pools["closed"].open
    assert people.asks_for_account("Managed")
    assert not people.asks_for_account("other")
    for broken in (
        "users: {ada: {unix_user: '0'}}",
        "users: {ada: {unix_user: a b}}",
        "users: {ada: {unix_user: -x}}",
    ):
        with pytest.raises(UserError, match="Unix user"):
            read_people(broken, file="users.yaml", owner="root")
