"""users.yaml to the people of a yard, or to every reason why not, each with its line.

Owns: the fields and the reading of that file. Must not know: tokens, the server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from airyard.core.access.logins import USER_NAME
from airyard.core.access.people import People, Person, PoolRights, RunAs
from airyard.core.access.roles import Kind, Role
from airyard.core.errors import UserError
from airyard.spec.catalogue import keys_of
from airyard.spec.document import MAX_BYTES, parse_document
from airyard.spec.fields import NotBlank, quoted, refuse, setting
from airyard.spec.models import Block
from airyard.spec.problems import FieldPath, ProblemCode, Report, in_order, lines_of, near_miss
from airyard.spec.validation import validate_as


def _role(value: Any) -> Role:
    found = next((role for role in Role if role.value == value), None)
    return found or refuse(f"{quoted(value)} is none of {', '.join(role.value for role in Role)}")


def _kind(value: Any) -> Kind:
    if value in (Kind.PERSON.value, Kind.SERVICE.value):
        return Kind(value)
    return refuse(
        f"{quoted(value)} is neither person nor service; agents have tokens of the people they act for"
    )


def _name(value: str) -> str:
    if USER_NAME.fullmatch(value):
        return value
    return refuse(f"{quoted(value)} is no name of a user: letters, digits, '.', '_', '-', '+' and '@'")


def _unix_user(value: str) -> str:
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}", value):
        return value
    return refuse(
        f"{quoted(value)} is no name of a Unix user: letters, digits, '_', '.', '-' and '@', no number"
    )


def _run_as(value: Any) -> RunAs:
    found = next((each for each in RunAs if each.value == value), None)
    return found or refuse(f"{quoted(value)} is neither server nor user")


UserName = Annotated[str, AfterValidator(_name)]
RoleName = Annotated[Role, BeforeValidator(_role), WithJsonSchema({"enum": [role.value for role in Role]})]
KindName = Annotated[Kind, BeforeValidator(_kind), WithJsonSchema({"enum": ["person", "service"]})]


UnixUser = Annotated[str, AfterValidator(_unix_user)]
RunAsName = Annotated[
    RunAs, BeforeValidator(_run_as), WithJsonSchema({"enum": [each.value for each in RunAs]})
]


class PersonBlock(Block):
    """One user."""

    role: RoleName | None = setting("What the user is in this yard.", shown_default="user")
    kind: KindName | None = setting("Whether a human stands behind the name.", shown_default="person")
    groups: list[NotBlank] | None = setting("Groups, which rights may be granted to.", shown_default="none")
    active: bool | None = setting("Whether the user gets in at all.", shown_default="true")
    unix_user: UnixUser | None = setting("Unix account of the user's runs.", shown_default="none")
    lent_to: list[NotBlank] | None = setting(
        "Of a service: groups whose runs may use its Unix account (`run_as`).", shown_default="none"
    )


class PoolRightsBlock(Block):
    """Who may use one pool; nobody else may."""

    projects: list[NotBlank] | None = setting("Runs of these projects.", shown_default="none")
    groups: list[NotBlank] | None = setting("Users of these groups.", shown_default="none")
    users: list[NotBlank] | None = setting("Users of these names.", shown_default="none")
    run_as: RunAsName | None = setting(
        "user: every run in it has a Unix account of its own.", shown_default="as the yard"
    )


class PeopleFile(Block):
    """The whole file."""

    users: dict[UserName, PersonBlock | None] = setting("By name.", required=True)
    pools: dict[NotBlank, PoolRightsBlock] | None = setting("By name; others are open.", shown_default="none")


_BLOCKS: dict[tuple[str, int], type[Block]] = {("users", 3): PersonBlock, ("pools", 3): PoolRightsBlock}


def load_people(path: Path, *, owner: str) -> People:
    """Read a file. Raises: UserError (``USERS_FILE_INVALID``) with all problems and their lines."""
    try:
        size = path.stat().st_size
        text = path.read_bytes().decode("utf-8") if size <= MAX_BYTES else " " * size
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(10) + 1
        raise _invalid(path, [f"{path}:{line}  it is not UTF-8 text"]) from None
    except OSError as error:
        raise _invalid(path, [f"{path}: {error.strerror}"]) from None
    return read_people(text, file=str(path), owner=owner)


def read_people(text: str, *, file: str, owner: str) -> People:
    """Read text. Raises: as ``load_people``."""
    document, problems = parse_document(text, file=file)
    report = Report(positions=document.positions, raw=document.raw, file=file, problems=problems)
    model = validate_as(PeopleFile, document.data, report, _unknown)
    if report.problems or model is None:
        raise _invalid(file, list(lines_of(in_order(report.problems, file))))
    return People(
        owner=owner,
        declared=True,
        known={name: _person(name, block or PersonBlock()) for name, block in model.users.items()},
        pools={name.lower(): _pool(block) for name, block in (model.pools or {}).items()},
    )


def _person(name: str, block: PersonBlock) -> Person:
    return Person(
        name=name,
        role=block.role or Role.USER,
        kind=block.kind or Kind.PERSON,
        groups=frozenset(block.groups or ()),
        active=block.active is not False,
        unix_user=block.unix_user or "",
        lent_to=frozenset(block.lent_to or ()),
    )


def _pool(block: PoolRightsBlock) -> PoolRights:
    return PoolRights(
        projects=frozenset(block.projects or ()),
        groups=frozenset(block.groups or ()),
        users=frozenset(block.users or ()),
        run_as=block.run_as or RunAs.SERVER,
        open=block.run_as is not None and block.projects is block.groups is block.users is None,
    )


def _unknown(path: FieldPath, report: Report) -> None:
    block = _BLOCKS.get((str(path[0]), len(path)), PeopleFile)
    keys = keys_of(block)
    report.add(
        ProblemCode.UNKNOWN_FIELD,
        path,
        "unknown field",
        near_miss=near_miss(str(path[-1]), keys),
        valid_keys=keys,
    )


def _invalid(file: object, lines: list[str]) -> UserError:
    count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
    return UserError(
        f"{file} has {count}:\n" + "\n".join(lines),
        code="USERS_FILE_INVALID",
        details={"file": str(file), "problems": lines},
        fix="docs/operate/people.md describes every field",
    )
