"""What is wrong with a policy taken by itself, said all at once.

Owns: the rules within a policy, and the record of a problem. Must not know: the yard it is for (``policy_fit.py``),
YAML, who asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from airyard.core.health.limit_names import NAMES, TABLES, wrong_with
from airyard.core.policy import (
    DEFAULT_PROJECT,
    EVERYBODY,
    NodeCommand,
    Policy,
    PoolPolicy,
    ProjectPolicy,
    Share,
    UserPolicy,
)
from airyard.core.workload import parse_accelerator

Path = tuple[str, ...]
"""Where a value stands in yard.yaml: ``("projects", "nlp", "pools", "h100", "guarantee")``."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
NAME_RULE = "1 to 100 ASCII letters, digits, '-', '_' and '.'"
MAX_RESERVATIONS = 1000
MAX_STORAGE = 16
MAX_NODE_COMMAND_MS = 3_600_000


class Rule(Enum):
    """Which rule a policy breaks; the last ones are warnings only."""

    BAD_NAME = "BAD_NAME"
    DUPLICATE_NAME = "DUPLICATE_NAME"
    RESERVED_NAME = "RESERVED_NAME"
    BAD_VALUE = "BAD_VALUE"
    CEILING_UNDER_GUARANTEE = "CEILING_UNDER_GUARANTEE"
    UNKNOWN_POOL = "UNKNOWN_POOL"
    UNKNOWN_PROJECT = "UNKNOWN_PROJECT"
    NOT_A_MEMBER = "NOT_A_MEMBER"
    GUARANTEES_EXCEED_POOL = "GUARANTEES_EXCEED_POOL"
    POOL_IN_USE = "POOL_IN_USE"
    PROJECT_IN_USE = "PROJECT_IN_USE"
    NOBODY_MAY = "NOBODY_MAY"
    POOL_WITHOUT_NODES = "POOL_WITHOUT_NODES"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    NODES_CLAIMED_TWICE = "NODES_CLAIMED_TWICE"
    NODES_LEAVE_POOL = "NODES_LEAVE_POOL"
    PROJECT_NOT_DECLARED = "PROJECT_NOT_DECLARED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with one value, or, as a ``warning``, doubtful. ``fix`` is the next step."""

    rule: Rule
    path: Path
    message: str
    fix: str
    warning: bool = False

    def to_json(self) -> dict[str, str]:
        """Return the form that the API gives; the path is dotted."""
        return {
            "rule": self.rule.value,
            "path": ".".join(self.path),
            "message": self.message,
            "fix": self.fix,
        }


def inner_problems(policy: Policy) -> tuple[Problem, ...]:
    """Return what is wrong with the policy whatever the yard is like, in the order of the file."""
    found: list[Problem] = []
    for pool in policy.pools:
        found += _pool(pool)
    found += _duplicates(("pools",), "pool", (pool.name for pool in policy.pools), fold=True)
    for project in policy.projects:
        found += _project(project)
    found += _duplicates(("projects",), "project", (project.name for project in policy.projects))
    for user in policy.users:
        found += _user(user, policy)
    found += _duplicates(("users",), "user", (user.name for user in policy.users))
    found += _positive(("half_life",), "the half-life of past usage", policy.half_life_ms)
    return tuple(found)


def near(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` when one of the names is near, else nothing."""
    by_lower = {name.lower(): name for name in names}
    found = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def listed(names: Iterable[str], limit: int = 10) -> str:
    """Join names, at most ``limit``: ``a, b and 3 more``."""
    all_names = sorted(names)
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return ", ".join(all_names[:limit]) + more


def counted(count: int, word: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def _pool(pool: PoolPolicy) -> Iterator[Problem]:
    here = ("pools", pool.name)
    yield from _named(here, "pool", pool.name)
    try:
        parse_accelerator(pool.accelerator)
    except ValueError:
        yield Problem(
            rule=Rule.BAD_VALUE,
            path=(*here, "accelerator"),
            message=f"{pool.accelerator!r} is neither GPU_<count per node>x<MODEL>, such as GPU_8xH100, nor CPU",
            fix="`airyard nodes` shows the accelerator type of each node",
        )
    yield from _reserved(here, pool)
    yield from _positive((*here, "ageing"), "ageing", pool.ageing_ms)
    if pool.slicing is not None:
        yield from _positive(
            (*here, "slicing", "first_slice"), "the first slice", pool.slicing.first_slice_ms
        )
        yield from _positive(
            (*here, "slicing", "apart"), "the time between two slices", pool.slicing.apart_ms
        )
    for name, command in (("prolog", pool.prolog), ("epilog", pool.epilog)):
        if command is not None:
            yield from _node_command((*here, name), name, command)
    yield from _limits((*here, "thresholds"), pool)
    yield from _storage((*here, "storage"), pool)
    if not 0 <= pool.reservations <= MAX_RESERVATIONS:
        yield _bad(
            (*here, "reservations"),
            f"{pool.reservations} reservations of blocked runs; 0 to {MAX_RESERVATIONS} are possible",
            "8 is the default; 0 holds nothing back for runs that are blocked",
        )


def _limits(here: Path, pool: PoolPolicy) -> Iterator[Problem]:
    for table, name, value in pool.thresholds:
        if table not in TABLES:
            yield _bad(
                (*here, table),
                f"there are no limits for {table!r} in pool {pool.name}{near(table, TABLES)}",
                f"the tables are {', '.join(TABLES)}",
            )
        elif name not in NAMES:
            yield _bad(
                (*here, table, name),
                f"no check asks for a limit {name!r}, table {table} of pool {pool.name}{near(name, NAMES)}",
                "docs/health.md names the limits",
            )
        elif wrong := wrong_with(name, value):
            yield _bad(
                (*here, table, name),
                f"the limit {name} of pool {pool.name} is {value:g}, {wrong}",
                "mend it, or leave it out: then the machine's limit holds, or the packaged one",
            )


def _storage(here: Path, pool: PoolPolicy) -> Iterator[Problem]:
    if len(pool.storage) > MAX_STORAGE:
        yield _bad(
            here,
            f"pool {pool.name} names {len(pool.storage)} folders of file servers; {MAX_STORAGE} are possible",
            "name those that its runs write to: each is tried on every node",
        )
    for folder in pool.storage:
        if not folder.startswith("/") or ".." in folder.split("/") or "\0" in folder:
            yield _bad(
                here,
                f"{folder!r} of pool {pool.name} is no whole path of a folder",
                "give the path from the root on, such as /mnt/checkpoints",
            )


def _node_command(here: Path, name: str, command: NodeCommand) -> Iterator[Problem]:
    if not command.command.strip():
        yield _bad(
            (*here, "command"),
            f"the {name} has no command",
            f"give one, or leave {name} out: then nothing runs",
        )
    if not 0 < command.timeout_ms <= MAX_NODE_COMMAND_MS:
        yield _bad(
            (*here, "timeout"),
            f"a time limit of {command.timeout_ms // 1000} s for the {name}",
            f"give 1s to {MAX_NODE_COMMAND_MS // 60_000}m; 1m is the default",
        )


def _reserved(here: Path, pool: PoolPolicy) -> Iterator[Problem]:
    """The names of accelerator types are those of the pools that nobody declares: what is left of each type."""
    try:
        parse_accelerator(pool.name)
    except ValueError:
        return
    if pool.name != pool.accelerator or pool.labels or pool.nodes:
        yield Problem(
            rule=Rule.RESERVED_NAME,
            path=here,
            message=f"{pool.name} is the name of what is left of all nodes of that type; a pool of its own needs "
            "another one",
            fix=f"name it otherwise, or declare {pool.name} with accelerator {pool.name}, without labels and nodes",
        )


def _project(project: ProjectPolicy) -> Iterator[Problem]:
    here = ("projects", project.name)
    yield from _named(here, "project", project.name)
    for share in project.shares:
        yield from _share((*here, "pools", share.pool), share)
    yield from _duplicates((*here, "pools"), "pool", (share.pool for share in project.shares), fold=True)
    budget = project.budget
    if budget is not None and not (math.isfinite(budget.gpu_hours) and budget.gpu_hours >= 0):
        yield _bad(
            (*here, "budget", "gpu_hours"),
            f"a budget of {budget.gpu_hours} GPU-hours a month",
            "give the GPU-hours of a month as a number from 0, or leave the budget out",
        )
    limits = project.per_user
    for name, value in (
        ("waiting", limits.waiting),
        ("running", limits.running),
        ("devices", limits.devices),
    ):
        if value is not None and value < 0:
            yield _bad(
                (*here, "per_user", name),
                f"a limit of {value} per user",
                "give a whole number from 0, or leave the limit out",
            )
    yield from _people(here, project)


def _people(here: Path, project: ProjectPolicy) -> Iterator[Problem]:
    if not project.members:
        yield Problem(
            rule=Rule.NOBODY_MAY,
            path=(*here, "members"),
            message=f"nobody may submit to project {project.name}: it has no members",
            fix="name its members, or leave `members` out: then everybody may",
            warning=True,
        )
    if EVERYBODY in project.members:
        return
    outside = set(project.critical) - set(project.members) - {EVERYBODY}
    if outside:
        yield Problem(
            rule=Rule.NOT_A_MEMBER,
            path=(*here, "critical"),
            message=f"{listed(outside)} may use CRITICAL in project {project.name} but may not submit to it",
            fix="add them to `members` as well",
            warning=True,
        )


def _share(here: Path, share: Share) -> Iterator[Problem]:
    if share.guarantee < 0:
        yield _bad(
            (*here, "guarantee"),
            f"a guarantee of {share.guarantee} devices",
            "give a whole number of devices from 0",
        )
    if share.ceiling is not None and share.ceiling < 0:
        yield _bad(
            (*here, "ceiling"),
            f"a ceiling of {share.ceiling} devices",
            "give a whole number of devices from 0, or leave the ceiling out",
        )
    elif share.ceiling is not None and share.ceiling < share.guarantee:
        yield Problem(
            rule=Rule.CEILING_UNDER_GUARANTEE,
            path=(*here, "ceiling"),
            message=f"the ceiling of {counted(share.ceiling, 'device')} is under the guarantee of {share.guarantee}",
            fix=f"raise the ceiling to {share.guarantee} or more, or lower the guarantee",
        )
    if not (math.isfinite(share.weight) and share.weight > 0):
        yield _bad(
            (*here, "weight"),
            f"a weight of {share.weight}",
            "a weight is a number over 0; 1 is the default, and 2 is twice the share",
        )


def _user(user: UserPolicy, policy: Policy) -> Iterator[Problem]:
    here = ("users", user.name)
    if not user.name.strip() or user.name == EVERYBODY:
        yield Problem(
            rule=Rule.BAD_NAME,
            path=here,
            message=f"{user.name!r} is no user",
            fix="name the user as `airyard list` shows the owner of a run",
        )
    name = user.default_project
    project = policy.project(name)
    if project is None:
        if policy.projects and name != DEFAULT_PROJECT:
            names = [each.name for each in policy.projects]
            yield Problem(
                rule=Rule.UNKNOWN_PROJECT,
                path=(*here, "project"),
                message=f"project {name!r} of user {user.name} is not declared{near(name, names)}",
                fix=f"declare it, or give one of {listed([*names, DEFAULT_PROJECT])}",
            )
        elif not NAME.fullmatch(name):
            yield _name_problem((*here, "project"), "project", name)
    elif not project.admits(user.name):
        yield Problem(
            rule=Rule.NOT_A_MEMBER,
            path=(*here, "project"),
            message=f"{user.name} is no member of {name}, where runs that name no project would go",
            fix=f"add {user.name} to projects.{name}.members, or give another project",
        )


def _named(here: Path, what: str, name: str) -> Iterator[Problem]:
    if not NAME.fullmatch(name):
        yield _name_problem(here, what, name)


def _name_problem(here: Path, what: str, name: str) -> Problem:
    return Problem(
        rule=Rule.BAD_NAME,
        path=here,
        message=f"{name!r} is not a {what} name: {NAME_RULE}",
        fix=f"give the {what} another name",
    )


def _duplicates(here: Path, what: str, names: Iterable[str], *, fold: bool = False) -> Iterator[Problem]:
    """Report every further use of a name; with ``fold`` letter case makes no other name."""
    seen: dict[str, str] = {}
    for name in names:
        key = name.lower() if fold else name
        first = seen.get(key)
        if first is None:
            seen[key] = name
            continue
        why = "" if first == name else f": {first} is the same name, as letter case does not count"
        yield Problem(
            rule=Rule.DUPLICATE_NAME,
            path=(*here, name),
            message=f"{what} {name} is given twice{why}",
            fix="keep one of them",
        )


def _positive(path: Path, what: str, value_ms: int) -> Iterator[Problem]:
    if value_ms <= 0:
        yield _bad(
            path, f"{what} is {value_ms / 1000:g} s; it must be longer than nothing", "give it as 2h, or 7d"
        )


def _bad(path: Path, message: str, fix: str) -> Problem:
    return Problem(rule=Rule.BAD_VALUE, path=path, message=message, fix=fix)
