"""Who gets in: the owner's token, an attempt's token, a browser session, and nobody else."""

from __future__ import annotations

import pytest

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Role
from airyard.core.errors import Denied
from airyard.core.ids import MemberKey
from airyard.server.auth import Gatekeeper

TOKEN = "ayt_0123456789abcdef0123456789abcdef"
KEY = MemberKey(12, 0, 1)
OWNER = Principal(name="ada", role=Role.ADMIN)


@pytest.fixture
def gate() -> Gatekeeper:
    return Gatekeeper(owner="ada", token=TOKEN, attempt_key=b"k" * 32)


def test_the_owners_token_is_the_owner(gate: Gatekeeper) -> None:
    principal = gate.authorise(f"Bearer {TOKEN}", None)
    assert (principal.name, principal.member) == ("ada", None)
    assert gate.authorise(f"bearer {TOKEN}", None).name == "ada"


def test_an_attempts_token_is_that_member_and_no_other(gate: Gatekeeper) -> None:
    token = gate.attempt_token(KEY)
    assert gate.authorise(f"Bearer {token}", None).member == KEY
    forged = token.replace("aya_12.0.1.", "aya_12.0.0.")
    for bad in (forged, token[:-1], token + "0", "aya_", "aya_12.0.1.", "aya_x.y.z.00"):
        with pytest.raises(Denied):
            gate.authorise(f"Bearer {bad}", None)


def test_a_commands_token_is_that_member_and_not_its_runner(gate: Gatekeeper) -> None:
    token, runners = gate.command_token(KEY), gate.attempt_token(KEY)
    found = gate.authorise(f"Bearer {token}", None)
    assert (found.member, found.is_command) == (KEY, True)
    assert not gate.authorise(f"Bearer {runners}", None).is_command
    mac = token.rpartition(".")[2]
    assert mac not in runners
    for bad in (
        f"aya_{KEY}.{mac}",
        f"ayc_{KEY}.{runners.rpartition('.')[2]}",
        f"ayc_12.0.0.{mac}",
        "ayc_",
        token[:-1],
    ):
        with pytest.raises(Denied):
            gate.authorise(f"Bearer {bad}", None)


def test_tokens_of_another_yard_are_refused(gate: Gatekeeper) -> None:
    other = Gatekeeper(owner="ada", token=TOKEN, attempt_key=b"x" * 32)
    for token in (other.attempt_token(KEY), other.command_token(KEY)):
        with pytest.raises(Denied):
            gate.authorise(f"Bearer {token}", None)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer ayt_wrong", "Bearer ü"]
)
def test_anything_else_is_401_and_does_not_say_what_was_wrong(gate: Gatekeeper, header: str | None) -> None:
    with pytest.raises(Denied) as caught:
        gate.authorise(header, None)
    assert caught.value.http_status == 401
    assert caught.value.code == "UNAUTHENTICATED"
    assert TOKEN not in caught.value.message


def test_a_link_gives_one_session_once(gate: Gatekeeper) -> None:
    code = gate.one_time_link(OWNER)
    session = gate.session_for(code)
    assert gate.authorise(None, session).name == "ada"
    with pytest.raises(Denied, match="has been used"):
        gate.session_for(code)
    with pytest.raises(Denied):
        gate.authorise(None, code)


def test_a_wrong_header_is_not_helped_by_a_good_session(gate: Gatekeeper) -> None:
    session = gate.session_for(gate.one_time_link(OWNER))
    with pytest.raises(Denied):
        gate.authorise("Bearer wrong", session)


def test_the_proof_depends_on_nonce_and_token(gate: Gatekeeper) -> None:
    other = Gatekeeper(owner="ada", token=TOKEN + "x", attempt_key=b"k" * 32)
    assert gate.proof("n1") == gate.proof("n1")
    assert len({gate.proof("n1"), gate.proof("n2"), other.proof("n1")}) == 3
