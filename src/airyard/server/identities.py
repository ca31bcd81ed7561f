"""Whose Unix account a run gets: its submitter's own, or that of a service that was lent to a group of theirs.

Owns: that choice, when it must be made, and who may choose what. Must not know: nodes, how accounts are switched to.
It is made at the submit and stays with the run: a later edit of the users file is for later runs.
"""

from __future__ import annotations

from airyard.core.access.people import People, RunAs
from airyard.core.access.principals import Principal
from airyard.core.access.roles import Kind
from airyard.core.errors import Denied, UserError
from airyard.core.workload import Workload


def account_for(people: People, principal: Principal, workload: Workload) -> tuple[str, bool]:
    """Return the Unix account that the run may have, empty for none, and whether it is to have it anywhere.

    Raises: Denied (``RUN_AS_NOT_ALLOWED``), UserError (``NO_UNIX_USER``) where the file or the yard asks for one.
    """
    name = workload.run_as or principal.name
    if name != principal.name:
        _check_lent(people, principal, name)
    account = people.unix_user_of(name)
    wanted = workload.run_as is not None or people.run_as is RunAs.USER
    if wanted and not account:
        raise no_account(name)
    if account == "root" and not people.allow_root:
        raise Denied(
            f"the Unix user of {name} is root, and runs do not run as root here",
            code="ROOT_NOT_ALLOWED",
            fix="an admin of this yard gives the user another unix_user, or sets [people] allow_root = true",
        )
    return account, wanted


def no_account(name: str, pools: str = "") -> UserError:
    """Return the refusal of a run that is to have an account of its own, and whose user has none."""
    where = f"pool {pools} asks" if pools else "this run is to have"
    return UserError(
        f"{where} {'for ' if pools else ''}a Unix account of its own, and {name} has none in this yard",
        code="NO_UNIX_USER",
        details={"user": name},
        fix=f"an admin of this yard writes one into the users file: `{name}: {{unix_user: NAME}}`",
    )


def _check_lent(people: People, principal: Principal, name: str) -> None:
    person = people.known.get(name)
    lent = person is not None and person.active and person.kind is Kind.SERVICE
    if person is None or not lent or not principal.groups & person.lent_to:
        raise Denied(
            f"{principal.name} may not run as {name}",
            code="RUN_AS_NOT_ALLOWED",
            fix="leave run_as out, or name a service that the users file lends to a group of yours (`lent_to`)",
        )
