"""From claims to a user: which names, groups and addresses get in, and as what."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core.access.logins import Login, LoginRules, admitted
from airyard.core.access.people import People, Person
from airyard.core.access.roles import Kind, Role, Scope
from airyard.core.access.tokens import Token
from airyard.core.errors import Denied

CLAIMS: dict[str, Any] = {
    "iss": "https://id",
    "sub": "17",
    "preferred_username": "bob",
    "groups": ["vision", "gpu-ops"],
}


def test_a_user_has_the_highest_role_of_their_groups() -> None:
    rules = LoginRules(roles={"gpu-ops": Role.OPERATOR, "vision": Role.VIEWER})
    name, login = admitted(rules, CLAIMS)
    assert (name, login.role, login.groups) == ("bob", Role.OPERATOR, ("gpu-ops", "vision"))
    assert admitted(rules, {**CLAIMS, "groups": None})[1].role is Role.USER
    assert admitted(rules, {**CLAIMS, "groups": "vision"})[1].groups == ("vision",)


@pytest.mark.parametrize(
    ("rules", "changes", "reason"),
    [
        (LoginRules(default_role=None), {}, "none of the groups"),
        (LoginRules(groups=frozenset({"nlp"})), {}, "in none of the groups that this yard admits"),
        (LoginRules(), {"preferred_username": None}, "it is missing"),
        (LoginRules(), {"preferred_username": "bob; rm"}, "no name that users here can have"),
        (LoginRules(), {"preferred_username": ["bob"]}, "no name that users here can have"),
        (LoginRules(user_claim="email"), {"email": "bob@lab.org"}, "not verified"),
        (LoginRules(domains=frozenset({"lab.org"})), {"email": "bob@lab.org"}, "not verified"),
        (
            LoginRules(domains=frozenset({"lab.org"})),
            {"email": "bob@lab.org.evil.org", "email_verified": True},
            "does not admit",
        ),
        (LoginRules(), {"groups": [f"g{number}" for number in range(1001)]}, "1001 groups"),
    ],
)
def test_who_does_not_get_in(rules: LoginRules, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Denied, match=reason):
        admitted(rules, {**CLAIMS, **changes})


def test_an_address_that_the_provider_vouches_for_is_a_name() -> None:
    claims = {**CLAIMS, "email": "bob@Lab.org", "email_verified": True}
    rules = LoginRules(user_claim="email", domains=frozenset({"lab.org"}))
    assert admitted(rules, claims)[0] == "bob@Lab.org"


def token_of(user: str, login: Login | None) -> Token:
    return Token(
        token_id="t", digest="d", user=user, name="n", scope=Scope.ADMIN, kind=Kind.PERSON, by=user, created_ms=0,
        login=login,
    )  # fmt: skip


def test_the_file_wins_over_the_provider() -> None:
    login = Login(issuer="https://id", subject="17", role=Role.ADMIN, groups=("vision",))
    known = {
        "bob": Person(name="bob", role=Role.VIEWER, groups=frozenset({"nlp"})),
        "eve": Person(name="eve", role=Role.ADMIN, active=False),
    }
    people = People(owner="ada", known=known, declared=True)
    bob = people.holder(token_of("bob", login))
    assert bob is not None
    assert (bob.role, bob.groups) == (Role.VIEWER, frozenset({"nlp", "vision"}))
    zoe = people.holder(token_of("zoe", login))
    assert zoe is not None
    assert (zoe.role, zoe.groups) == (Role.ADMIN, frozenset({"vision"}))
    assert people.holder(token_of("zoe", None)) is None
    assert people.holder(token_of("eve", login)) is None
    assert people.find("eve") is None


def test_the_owners_name_is_the_owner_only_where_the_file_says_so() -> None:
    login = Login(issuer="https://id", subject="17", role=Role.USER)
    assert People(owner="ada").holder(token_of("ada", login)) is None
    named = People(owner="ada", known={"ada": Person(name="ada", role=Role.VIEWER)})
    found = named.holder(token_of("ada", login))
    assert found is not None
    assert found.role is Role.ADMIN
    gone = People(owner="ada", known={"ada": Person(name="ada", active=False)})
    assert gone.holder(token_of("ada", login)) is None
    assert gone.find("ada") is not None, "whoever holds the data folder stays an admin"
