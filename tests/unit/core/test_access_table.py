"""The table of rights: complete, and no role may less than the ones before it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Right, Role, Scope, Thing, Verb
from airyard.core.access.table import CONFINED, KIND_BARS, NEEDED, TABLE, Facts, Rule, allowed, right_of
from airyard.core.access.tokens import HOUR_MS, KEPT_MS, Spent, Token
from airyard.core.ids import MemberKey
from airyard.core.workload import Permission

UMA = Principal(name="uma", role=Role.USER, groups=frozenset({"vision"}))
CELLS = list(TABLE)
STRANGERS = Facts(owner="bob", project="nlp")


def grant(level: str, **who: str) -> Facts:
    return replace(STRANGERS, grants=(Permission(level=level, **who),))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0].value}-{cell[1].value}")
def test_no_role_may_less_than_the_one_before_it(cell: tuple[Thing, Verb]) -> None:
    thing, verb = cell
    everything = Facts(owner="uma", shared=True, admitted=True)
    for facts in (None, STRANGERS, everything, grant("CAN_VIEW", user_name="uma")):
        answers = [allowed(replace(UMA, role=role), verb, thing, facts).allowed for role in Role]
        assert answers == sorted(answers)


def test_every_kind_of_object_has_a_row() -> None:
    assert {thing for thing, _ in TABLE} == set(Thing)
    assert {verb for _, verb in TABLE} == set(Verb)
    assert set(KIND_BARS) == set(Kind)
    assert all(cell in TABLE for bars in KIND_BARS.values() for cell in bars)


def test_what_is_not_in_the_table_is_refused() -> None:
    decision = allowed(replace(UMA, role=Role.ADMIN), Verb.STOP, Thing.RUN, None)
    assert not decision.allowed
    assert "no rule" in decision.reason


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0].value}-{cell[1].value}")
def test_an_attempts_token_has_no_right_at_all(cell: tuple[Thing, Verb]) -> None:
    runner = Principal(name="ada", role=Role.ADMIN, member=MemberKey(1, 0, 0))
    assert not allowed(runner, cell[1], cell[0], Facts(owner="ada", shared=True, admitted=True)).allowed


@pytest.mark.parametrize(("level", "right"), [(right.value, right) for right in Right if right.rank])
def test_a_grant_counts_for_its_user_group_or_service(level: str, right: Right) -> None:
    assert right_of(UMA, grant(level, user_name="uma")) is right
    assert right_of(UMA, grant(level, group_name="vision")) is right
    assert right_of(UMA, grant(level, user_name="vic")) is Right.NONE
    assert right_of(UMA, grant(level, group_name="nlp")) is Right.NONE
    assert right_of(UMA, grant(level, service_principal_name="uma")) is Right.NONE
    service = replace(UMA, kind=Kind.SERVICE)
    assert right_of(service, grant(level, service_principal_name="uma")) is right
    assert right_of(service, grant(level, user_name="uma")) is Right.NONE


def test_the_highest_of_several_grants_counts_and_an_unknown_level_does_not() -> None:
    facts = replace(
        STRANGERS,
        grants=(
            Permission(level="CAN_FLY", user_name="uma"),
            Permission(level="CAN_VIEW", user_name="uma"),
            Permission(level="CAN_MANAGE_RUN", group_name="vision"),
        ),
    )
    assert right_of(UMA, facts) is Right.CAN_MANAGE_RUN
    assert right_of(UMA, grant("CAN_FLY", user_name="uma")) is Right.NONE
    assert right_of(UMA, grant("IS_OWNER", user_name="uma")) is Right.CAN_MANAGE


def test_a_named_member_of_the_project_sees_its_runs_and_steers_none() -> None:
    facts = replace(STRANGERS, shared=True)
    assert allowed(UMA, Verb.VIEW, Thing.RUN, facts).allowed
    steering = allowed(UMA, Verb.MANAGE, Thing.RUN, facts)
    assert not steering.allowed
    assert not steering.hidden
    assert "CAN_MANAGE_RUN" in steering.reason


def test_what_one_may_not_see_is_hidden_whatever_is_asked() -> None:
    for verb, role in itertools.product((Verb.VIEW, Verb.MANAGE, Verb.DELETE), (Role.VIEWER, Role.USER)):
        assert allowed(replace(UMA, role=role), verb, Thing.RUN, STRANGERS).hidden
    seen = allowed(
        replace(UMA, role=Role.VIEWER), Verb.MANAGE, Thing.RUN, grant("CAN_MANAGE", user_name="uma")
    )
    assert (seen.allowed, seen.hidden) == (False, False)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0].value}-{cell[1].value}")
def test_scopes_only_narrow(cell: tuple[Thing, Verb]) -> None:
    thing, verb = cell
    facts = Facts(owner="uma", admitted=True)
    for role in Role:
        may = {
            scope: allowed(replace(UMA, role=role, scope=scope), verb, thing, facts).allowed
            for scope in Scope
        }
        assert may[Scope.READ] == (may[Scope.ADMIN] and verb is Verb.VIEW)
        as_user = allowed(replace(UMA, role=min(role, Role.USER, key=lambda r: r.rank)), verb, thing, facts)
        assert may[Scope.WRITE] == (may[Scope.ADMIN] if verb is Verb.VIEW else as_user.allowed)


def test_an_agent_makes_no_tokens_and_touches_no_secrets() -> None:
    agent = Principal(name="adam", role=Role.ADMIN, kind=Kind.AGENT)
    facts = Facts(owner="adam")
    assert allowed(agent, Verb.CREATE, Thing.RUN, None).allowed
    for thing, verb in KIND_BARS[Kind.AGENT]:
        assert "an agent may not" in allowed(agent, verb, thing, facts).reason


def test_a_token_of_one_project_stays_in_it() -> None:
    confined = Principal(name="adam", role=Role.ADMIN, project="nlp")
    assert allowed(confined, Verb.VIEW, Thing.RUN, STRANGERS).allowed
    other = allowed(confined, Verb.VIEW, Thing.RUN, replace(STRANGERS, project="vision"))
    assert (other.allowed, other.hidden) == (False, True)
    own_elsewhere = Facts(owner="adam", project="vision")
    assert not allowed(confined, Verb.MANAGE, Thing.RUN, own_elsewhere).allowed
    for thing, verb in TABLE:
        if verb is not Verb.VIEW and thing not in CONFINED:
            assert not allowed(confined, verb, thing, Facts(owner="adam", project="nlp", shared=True)).allowed


def test_every_rule_with_a_right_says_which() -> None:
    assert set(NEEDED) == set(Rule) - {Rule.YES, Rule.NO, Rule.OWN, Rule.ADMITTED}


def test_a_token_counts_until_it_is_revoked_or_over() -> None:
    token = Token(
        token_id="k", digest="d", user="uma", name="n", scope=Scope.READ, kind=Kind.PERSON, by="uma", created_ms=0,
        expires_ms=100,
    )  # fmt: skip
    assert token.counts(99)
    assert not token.counts(100)
    assert not replace(token, revoked_ms=5).counts(50)
    assert not token.forgettable(100 + KEPT_MS - 1)
    assert replace(token, revoked_ms=5).forgettable(5 + KEPT_MS)
    assert not replace(token, expires_ms=None).forgettable(10**15)


def test_spending_counts_what_is_held() -> None:
    spent = Spent(at_ms=0).changed(0, 4)
    assert spent.hours(HOUR_MS) == 4
    spent = spent.changed(HOUR_MS, -3).changed(2 * HOUR_MS, -1)
    assert spent.hours(10 * HOUR_MS) == 5
    assert spent.changed(HOUR_MS, 0).used_ms == spent.used_ms, "an earlier time changes nothing"
