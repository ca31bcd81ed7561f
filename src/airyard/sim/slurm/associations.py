"""Reads ``sacctmgr show associations --parsable2``: accounts, their shares and limits, as projects.

Owns: how a tree of accounts becomes a flat list of projects. Must not know: jobs.
Source: sacctmgr(1), SPECIFICATIONS FOR ASSOCIATIONS; Slurm's guide to fair share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from airyard.sim.slurm.table import Row, open_table
from airyard.sim.slurm.tres import resources
from airyard.sim.trace.records import TraceProject
from airyard.sim.trace.refusal import Place, refused, wrong_value
from airyard.sim.trace.tally import Left, Tally

COMMAND = "sacctmgr show associations --parsable2 format=Cluster,Account,ParentName,User,Partition,Fairshare,GrpTRES"
ROOT = "root"
MOST_LEVELS = 100
LEAST_WEIGHT = 0.001
"""Of an account with a share of zero: it goes last, but it is served when nobody else asks."""
_LIMITS = ("grp", "max")


@dataclass(slots=True, kw_only=True)
class _Account:
    """One account. ``share`` is None for ``parent``: its users count as its parent's; ``users`` are their shares."""

    line: int
    name: str
    parent: str
    share: int | None
    ceiling: int | None
    users: list[int] = field(default_factory=list)
    user_ceilings: list[int | None] = field(default_factory=list)
    children: list[_Account] = field(default_factory=list)


def read_projects(lines: Iterable[str], source: str, tally: Tally) -> tuple[TraceProject, ...]:
    """Return a project for each account that has users, with the account's effective share as its weight.

    Weights are 1 on average. ``GrpTRES=gres/gpu`` of an account, or of one above it, is the ceiling; the same of all
    its users alike is the users' ceiling. Slurm has no guarantees: shares only order the queue.
    Raises: UserError for what is no such output, an account that comes twice, or a circle of accounts.
    """
    accounts = _accounts(lines, source, tally)
    root = accounts[ROOT]
    ceilings: dict[str, int | None] = {}
    _bound(root, None, 0, ceilings, tally)
    if lost := sorted(set(accounts) - set(ceilings)):
        first = accounts[lost[0]]
        problem = f"puts account {first.name} into a circle of accounts, or over {MOST_LEVELS} levels deep"
        raise refused(Place(source=source, line=first.line), problem, fix=f"Make the file anew: `{COMMAND}`.")
    weights: dict[str, float] = {}
    _spread(root, 1.0, weights)
    projects = [account for account in accounts.values() if _is_project(account)]
    average = sum(weights[account.name] for account in projects) / len(projects) if projects else 1.0
    return tuple(
        TraceProject(
            name=account.name,
            weight=max(LEAST_WEIGHT, round(weights[account.name] / average, 6)),
            ceiling=ceilings[account.name],
            user_ceiling=_user_ceiling(account, tally),
        )
        for account in projects
    )


def _accounts(lines: Iterable[str], source: str, tally: Tally) -> dict[str, _Account]:
    table = open_table(
        lines,
        source,
        marks=("Account", "User"),
        command=COMMAND,
        repeated_header=lambda: tally.add(Left.REPEATED_HEADERS),
    )
    table.require("Share|Fairshare")
    rows = list(table.rows())
    clusters = {row.get("Cluster") for row in rows} - {""}
    if len(clusters) > 1:
        problem = f"is of several clusters: {', '.join(sorted(clusters))}"
        raise refused(
            Place(source=source), problem, fix="Name one: sacctmgr show associations cluster=NAME ..."
        )
    accounts: dict[str, _Account] = {}
    path: list[tuple[int, str]] = []
    for row in rows:
        if row.get("User"):
            continue
        account = _account(row, _indented_parent(row, path))
        if account.name in accounts:
            problem = f"names account {account.name} again (first in line {accounts[account.name].line})"
            raise refused(row.place("Account"), problem, fix=f"Make the file anew: `{COMMAND}`.")
        accounts[account.name] = account
        _count_limits(row, tally)
    if not accounts:
        raise refused(Place(source=source), "has no account", fix=f"Make the file anew: `{COMMAND}`.")
    accounts.setdefault(ROOT, _Account(line=1, name=ROOT, parent="", share=1, ceiling=None))
    for row in rows:
        if row.get("User"):
            _add_user(row, accounts, tally)
    _link(accounts, tally)
    return accounts


def _indented_parent(row: Row, path: list[tuple[int, str]]) -> str:
    """Return the parent that the indentation of ``sacctmgr show associations tree`` tells, or none."""
    raw = row.values[row.table.columns["account"]]
    depth = len(raw) - len(raw.lstrip(" "))
    while path and path[-1][0] >= depth:
        path.pop()
    parent = path[-1][1] if path and depth else ""
    path.append((depth, row.get("Account").lower()))
    return parent


def _account(row: Row, indented_parent: str) -> _Account:
    name = row.get("Account").lower()
    if not name:
        raise wrong_value(row.place("Account"), name, "the name of an account")
    return _Account(
        line=row.line,
        name=name,
        parent=row.get("ParentName").lower() or indented_parent,
        share=_share(row),
        ceiling=_ceiling(row),
    )


def _add_user(row: Row, accounts: dict[str, _Account], tally: Tally) -> None:
    account = accounts.get(row.get("Account").lower())
    if account is None:
        problem = f"names a user of account {row.get('Account') or '(none)'}, which has no line of its own"
        raise refused(row.place("Account"), problem, fix=f"Make the file anew: `{COMMAND}`.")
    account.users.append(_share(row) or 1)
    ceiling = _ceiling(row)
    if row.get("Partition"):
        if ceiling is not None:
            tally.add(Left.USER_CEILINGS, f"{account.name}/{row.get('User')}")
    else:
        account.user_ceilings.append(ceiling)
    _count_limits(row, tally)


def _link(accounts: dict[str, _Account], tally: Tally) -> None:
    for account in accounts.values():
        if account.name == ROOT:
            continue
        parent = accounts.get(account.parent) or accounts[ROOT]
        parent.children.append(account)
        if parent.name != ROOT:
            tally.add(Left.ACCOUNT_TREE, f"{account.name} in {parent.name}")
        if len(set(account.users)) > 1:
            tally.add(Left.USER_SHARES, account.name)


def _spread(account: _Account, share: float, weights: dict[str, float]) -> None:
    """Divide an account's share among its users and the accounts inside it."""
    members = _members(account)
    whole = sum(account.users) + sum(units for _, units in members)
    weights[account.name] = share * sum(account.users) / whole if whole and account.users else share
    for child, units in members:
        _spread(child, share * units / whole if whole else 0.0, weights)


def _members(account: _Account) -> list[tuple[_Account, float]]:
    """Return the accounts inside one and their units; one whose share is its parent's counts as what it holds."""
    return [
        (child, float(child.share) if child.share is not None else _units(child))
        for child in account.children
    ]


def _units(account: _Account) -> float:
    return float(sum(account.users)) + sum(
        float(child.share) if child.share is not None else _units(child) for child in account.children
    )


def _bound(
    account: _Account, above: int | None, level: int, ceilings: dict[str, int | None], tally: Tally
) -> None:
    """Note the least ceiling on the way down to each account that can be reached from the root."""
    if level > MOST_LEVELS:
        return
    own = account.ceiling
    ceilings[account.name] = min((bound for bound in (own, above) if bound is not None), default=None)
    if own is not None and account.children:
        tally.add(Left.SHARED_CEILINGS, account.name)
    for child in account.children:
        _bound(child, ceilings[account.name], level + 1, ceilings, tally)


def _is_project(account: _Account) -> bool:
    """True for an account that people can run under; root belongs to the site."""
    return account.name != ROOT and (bool(account.users) or not account.children)


def _user_ceiling(account: _Account, tally: Tally) -> int | None:
    bounds = set(account.user_ceilings)
    if len(bounds) == 1:
        return bounds.pop()
    if bounds - {None}:
        tally.add(Left.USER_CEILINGS, account.name)
    return None


def _share(row: Row) -> int | None:
    column, text = row.first("Share", "Fairshare")
    if text.lower() == "parent":
        return None
    if text == "":
        return 1
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise wrong_value(row.place(column), text, "a share: a whole number, not below zero, or parent")
    return int(text)


def _ceiling(row: Row) -> int | None:
    text = row.get("GrpTRES")
    found = resources(row.place("GrpTRES"), text)
    return found.gpus if "gres/gpu=" in text and "gres/gpu=-1" not in text else None


def _count_limits(row: Row, tally: Tally) -> None:
    """Count the limits that are not kept."""
    who = "/".join(name for name in (row.get("Account"), row.get("User")) if name)
    for name in row.table.names:
        if name.lower().startswith(_LIMITS) and name.lower() != "grptres" and row.get(name):
            tally.add(Left.LIMITS, f"{who} {name}")
    for entry in row.get("GrpTRES").split(","):
        if entry.startswith("gres/gpu:") and not entry.endswith("=-1"):
            tally.add(Left.TYPED_CEILINGS, who)
        elif entry and not entry.startswith("gres/gpu") and not entry.endswith("=-1"):
            tally.add(Left.LIMITS, f"{who} GrpTRES {entry.partition('=')[0]}")
