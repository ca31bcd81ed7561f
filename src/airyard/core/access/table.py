"""The one table role × verb × kind of object, and the function that answers every question of rights from it.

Owns: who may do what. Must not know: routes, files, how an answer is told. docs/operate/people.md is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind, Right, Role, Scope, Thing, Verb
from airyard.core.workload import Permission


class Rule(Enum):
    """When a cell of the table says yes."""

    NO = "no"
    YES = "yes"
    VIEW_RIGHT = "with CAN_VIEW"
    MANAGE_RUN_RIGHT = "with CAN_MANAGE_RUN"
    MANAGE_RIGHT = "with CAN_MANAGE"
    OWN = "own"
    ADMITTED = "where admitted"


NO, YES, OWN, ADMITTED = Rule.NO, Rule.YES, Rule.OWN, Rule.ADMITTED
VIEW, STEER, MANAGE = Rule.VIEW_RIGHT, Rule.MANAGE_RUN_RIGHT, Rule.MANAGE_RIGHT

TABLE: Mapping[tuple[Thing, Verb], tuple[Rule, Rule, Rule, Rule]] = {
    #                                 viewer  user      operator  admin
    (Thing.RUN, Verb.VIEW):           (VIEW,  VIEW,     YES,      YES),
    (Thing.RUN, Verb.CREATE):         (NO,    YES,      YES,      YES),
    (Thing.RUN, Verb.MANAGE):         (NO,    STEER,    YES,      YES),
    (Thing.RUN, Verb.DELETE):         (NO,    MANAGE,   YES,      YES),
    (Thing.LOG, Verb.VIEW):           (VIEW,  VIEW,     YES,      YES),
    (Thing.OUTPUT, Verb.VIEW):        (VIEW,  VIEW,     YES,      YES),
    (Thing.CODE, Verb.VIEW):          (NO,    YES,      YES,      YES),
    (Thing.CODE, Verb.CREATE):        (NO,    YES,      YES,      YES),
    (Thing.QUEUE, Verb.VIEW):         (YES,   YES,      YES,      YES),
    (Thing.NODE, Verb.VIEW):          (YES,   YES,      YES,      YES),
    (Thing.NODE, Verb.MANAGE):        (NO,    NO,       YES,      YES),
    (Thing.POOL, Verb.VIEW):          (YES,   YES,      YES,      YES),
    (Thing.POOL, Verb.USE):           (NO,    ADMITTED, ADMITTED, ADMITTED),
    (Thing.POLICY, Verb.VIEW):        (YES,   YES,      YES,      YES),
    (Thing.POLICY, Verb.MANAGE):      (NO,    NO,       YES,      YES),
    (Thing.RESERVATION, Verb.VIEW):   (YES,   YES,      YES,      YES),
    (Thing.RESERVATION, Verb.CREATE): (NO,    NO,       YES,      YES),
    (Thing.RESERVATION, Verb.DELETE): (NO,    NO,       YES,      YES),
    (Thing.SECRET, Verb.VIEW):        (OWN,   OWN,      OWN,      OWN),
    (Thing.SECRET, Verb.CREATE):      (NO,    OWN,      OWN,      OWN),
    (Thing.SECRET, Verb.DELETE):      (NO,    OWN,      OWN,      OWN),
    (Thing.TOKEN, Verb.VIEW):         (OWN,   OWN,      OWN,      YES),
    (Thing.TOKEN, Verb.CREATE):       (OWN,   OWN,      OWN,      YES),
    (Thing.TOKEN, Verb.DELETE):       (OWN,   OWN,      OWN,      YES),
    (Thing.SERVER, Verb.VIEW):        (YES,   YES,      YES,      YES),
    (Thing.SERVER, Verb.MANAGE):      (NO,    NO,       YES,      YES),
    (Thing.SERVER, Verb.STOP):        (NO,    NO,       NO,       YES),
    (Thing.AUDIT, Verb.VIEW):         (NO,    NO,       NO,       YES),
    (Thing.TRACKING, Verb.VIEW):      (VIEW,  VIEW,     YES,      YES),
    (Thing.TRACKING, Verb.MANAGE):    (NO,    STEER,    YES,      YES),
}  # fmt: skip
"""One row for every verb that some kind of object has; the columns are the roles in their order."""

KIND_BARS: Mapping[Kind, frozenset[tuple[Thing, Verb]]] = {
    Kind.PERSON: frozenset(),
    Kind.AGENT: frozenset(
        {
            (Thing.TOKEN, Verb.CREATE),
            (Thing.TOKEN, Verb.DELETE),
            (Thing.SECRET, Verb.CREATE),
            (Thing.SECRET, Verb.DELETE),
            (Thing.POLICY, Verb.MANAGE),
            (Thing.SERVER, Verb.STOP),
            (Thing.AUDIT, Verb.VIEW),
        }
    ),
    Kind.SERVICE: frozenset({(Thing.TOKEN, Verb.CREATE), (Thing.TOKEN, Verb.DELETE)}),
}
"""What a kind of principal may not do, whatever its role."""

CONFINED = frozenset({Thing.RUN, Thing.CODE, Thing.POOL, Thing.TRACKING})
"""What a token of one project may change at all; looking is bounded by its project."""

NEEDED = {
    Rule.VIEW_RIGHT: Right.CAN_VIEW,
    Rule.MANAGE_RUN_RIGHT: Right.CAN_MANAGE_RUN,
    Rule.MANAGE_RIGHT: Right.CAN_MANAGE,
}
LEVELS = {right.value: right for right in Right if right is not Right.NONE} | {"IS_OWNER": Right.CAN_MANAGE}
"""The levels of a workload's ``permissions``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a question may depend on: whose object it is, what was granted on it, which project it is in.

    ``shared``: the caller is named among the members of that project (everybody by ``*`` is not).
    ``admitted``: what the object itself says of the caller, such as a pool of the projects that may use it.
    """

    owner: str | None = None
    project: str | None = None
    grants: tuple[Permission, ...] = ()
    shared: bool = False
    admitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An answer. ``hidden``: not even that the object exists is said."""

    allowed: bool
    reason: str
    hidden: bool = False


def allowed(principal: Principal, verb: Verb, thing: Thing, facts: Facts | None) -> Decision:
    """Say whether the caller may do this to such an object.

    ``facts`` None asks before the object is known: the answer is no when it could be yes for none.
    """
    what = f"{verb.value} {_article(thing)}"
    if principal.member is not None:
        return _no("the token of an attempt has no rights here")
    row = TABLE.get((thing, verb))
    if row is None:
        return _no(f"there is no rule for {what}")
    if (thing, verb) in KIND_BARS[principal.kind]:
        return _no(f"{_with_article(principal.kind.value)} may not {what}")
    if principal.scope is Scope.READ and verb is not Verb.VIEW:
        return _no(f"a token of scope read may not {what}")
    if principal.project is not None and verb is not Verb.VIEW and thing not in CONFINED:
        return _no(f"a token of project {principal.project} alone may not {what}")
    rule = row[_role(principal, verb).rank]
    if facts is not None and not _in_project(principal, thing, facts):
        return _no(f"the token is for project {principal.project} only", hidden=True)
    if rule is Rule.NO:
        return _no(
            f"the role {principal.role.value}{_narrowed(principal, verb)} may not {what}", facts, principal
        )
    if rule is Rule.YES or facts is None:
        return Decision(allowed=True, reason=f"the role {principal.role.value} may {what}")
    return _by_facts(principal, rule, what, facts)


def right_of(principal: Principal, facts: Facts) -> Right:
    """Return the highest right that a caller has on one run by itself, its groups or the run's project."""
    if principal.name == facts.owner:
        return Right.CAN_MANAGE
    found = [LEVELS.get(grant.level, Right.NONE) for grant in facts.grants if _names(grant, principal)]
    if facts.shared:
        found.append(Right.CAN_VIEW)
    return max(found, key=lambda right: right.rank, default=Right.NONE)


def _names(grant: Permission, principal: Principal) -> bool:
    if grant.group_name is not None:
        return grant.group_name in principal.groups
    service = principal.kind is Kind.SERVICE
    return principal.name == (grant.service_principal_name if service else grant.user_name)


def _by_facts(principal: Principal, rule: Rule, what: str, facts: Facts) -> Decision:
    if rule is Rule.ADMITTED:
        if facts.admitted:
            return Decision(allowed=True, reason=f"{principal.name} is admitted")
        return _no(f"{principal.name} is not admitted")
    if rule is Rule.OWN:
        if facts.owner == principal.name or facts.shared:
            return Decision(allowed=True, reason="it is the caller's own")
        return _no(f"{principal.name} may {what} of its own only", hidden=True)
    needed, has = NEEDED[rule], right_of(principal, facts)
    if has.rank >= needed.rank:
        return Decision(allowed=True, reason=f"{principal.name} has {has.value}")
    if has is Right.NONE:
        return _no(f"{principal.name} has no right on it", hidden=True)
    return _no(f"{principal.name} has {has.value} on it, and {what} takes {needed.value}")


def _role(principal: Principal, verb: Verb) -> Role:
    """Return the column that counts: a token of scope write changes no more than a user may."""
    if principal.scope is Scope.WRITE and verb is not Verb.VIEW and principal.role.rank > Role.USER.rank:
        return Role.USER
    return principal.role


def _narrowed(principal: Principal, verb: Verb) -> str:
    return " with a token of scope write" if _role(principal, verb) is not principal.role else ""


def _in_project(principal: Principal, thing: Thing, facts: Facts) -> bool:
    bound = {Thing.RUN, Thing.LOG, Thing.OUTPUT, Thing.TRACKING, Thing.POOL}
    return principal.project is None or thing not in bound or facts.project == principal.project


def _no(
    reason: str, facts: Facts | None = None, principal: Principal | None = None, *, hidden: bool = False
) -> Decision:
    """Refuse; an object that the caller may not even see is hidden."""
    if facts is not None and principal is not None and facts.owner is not None:
        sees = principal.role.rank >= Role.OPERATOR.rank or right_of(principal, facts) is not Right.NONE
        hidden = hidden or not sees
    return Decision(allowed=False, reason=reason, hidden=hidden)


def _article(thing: Thing) -> str:
    return thing.value if thing in (Thing.CODE, Thing.TRACKING) else _with_article(thing.value)


def _with_article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
