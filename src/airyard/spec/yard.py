"""yard.yaml to a ``Policy``, or to every reason why not, each with its line.

Owns: the reading of that file. Must not know: which yard it is for, the server.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError, UserError
from airyard.core.policy import (
    DEFAULT_PROJECT,
    EVERYBODY,
    Budget,
    NodeCommand,
    OverBudget,
    Policy,
    PoolOrder,
    PoolPolicy,
    ProjectPolicy,
    Share,
    Slicing,
    UserLimits,
    UserPolicy,
)
from airyard.core.policy_json import limits_from_json
from airyard.core.policy_rules import Rule, inner_problems
from airyard.spec.catalogue import keys_of
from airyard.spec.document import MAX_BYTES, Document, parse_document
from airyard.spec.models import Block
from airyard.spec.problems import (
    FieldPath,
    Position,
    Problem,
    ProblemCode,
    Report,
    dotted_path,
    in_order,
    lines_of,
    near_miss,
)
from airyard.spec.validation import validate_as
from airyard.spec.yard_models import (
    BudgetBlock,
    NodeCommandBlock,
    PerUserBlock,
    PoolBlock,
    ProjectBlock,
    ShareBlock,
    SlicingBlock,
    UserBlock,
    YardFile,
)

DEFAULT_YARD_FILE = "yard.yaml"
_ANY = "*"
_BLOCKS: Mapping[tuple[str, ...], type[Block]] = {
    (): YardFile,
    ("pools", _ANY): PoolBlock,
    ("pools", _ANY, "slicing"): SlicingBlock,
    ("pools", _ANY, "prolog"): NodeCommandBlock,
    ("pools", _ANY, "epilog"): NodeCommandBlock,
    ("projects", _ANY): ProjectBlock,
    ("projects", _ANY, "pools", _ANY): ShareBlock,
    ("projects", _ANY, "budget"): BudgetBlock,
    ("projects", _ANY, "per_user"): PerUserBlock,
    ("users", _ANY): UserBlock,
}
"""Which block stands where; names that the file chooses are ``*``."""
_NAMED = frozenset({("pools",), ("projects",), ("projects", _ANY, "pools"), ("users",)})
_CODES = {
    Rule.CEILING_UNDER_GUARANTEE: ProblemCode.CONFLICTING_FIELDS,
    Rule.RESERVED_NAME: ProblemCode.RESERVED_NAME,
    Rule.DUPLICATE_NAME: ProblemCode.DUPLICATE_KEY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedYard:
    """What one file came to. ``digest`` (SHA-256, hex) is that of its text."""

    policy: Policy
    file: str
    digest: str
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By dotted path: where a value was written."""

    def place(self, path: str) -> Position:
        """Return where a dotted path was written, or the nearest part of it that was."""
        while path and path not in self.positions:
            path = path.rpartition(".")[0]
        return self.positions.get(path, Position(file=self.file))


class InvalidYardFile(UserError):
    """A file with problems of its own. ``rest`` is what it would be without the values that are wrong."""

    def __init__(self, problems: list[Problem], file: str, rest: LoadedYard | None) -> None:
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(
            f"{file} has {count}:\n" + "\n".join(lines_of(problems)),
            code="YARD_FILE_INVALID",
            details={"file": file, "problems": [problem.as_json() for problem in problems]},
            fix="docs/operate/quotas.md describes every field; `airyard schema --yard` is the schema for editors",
        )
        self.paths = tuple(problem.path for problem in problems)
        # A whole block may be missing under a wrong key: the yard would miss it, too.
        self.rest = rest if all("." in path for path in self.paths) else None

    def add(self, refusal: AiryardError) -> None:
        """Tell also how the rest does not fit the yard that refused it, but not what follows from the own problems."""
        found = refusal.details.get("problems")
        if self.rest is None or refusal.code != "POLICY_INVALID" or not isinstance(found, list):
            return
        broken = {tuple(path.split(".")[:2]) for path in self.paths}
        news = [each for each in found if not broken & _about(each["path"])]
        if not news:
            return
        lines = [f"{self.rest.place(each['path'])}  {each['path']}  {each['message']}" for each in news]
        self.message += "\nWithout these it would not fit this yard:\n" + "\n".join(lines)
        self.details["problems"] = [*self.details["problems"], *news]


def _about(path: str) -> set[tuple[str, ...]]:
    """Return the pools, projects and users that a problem of a policy is about."""
    parts = path.split(".")
    pools = {("pools", part) for at, part in enumerate(parts) if at and parts[at - 1] == "pools"}
    return {tuple(parts[:2]), *pools}


def load_yard(path: Path | str) -> LoadedYard:
    """Read a file. Raises: UserError (``YARD_FILE_INVALID``) with all problems at once, or why it cannot be read."""
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_bytes().decode("utf-8") if size <= MAX_BYTES else " " * size
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} on line "
            f"{error.object[: error.start].count(10) + 1}",
            code="YARD_FILE_INVALID",
            fix="save the file as UTF-8",
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}",
            code="FILE_NOT_FOUND",
            fix="name the file with -f; `airyard apply --show` prints what is declared now, to begin with",
        ) from None
    return load_yard_text(text, file=str(path))


def load_yard_text(text: str, *, file: str = DEFAULT_YARD_FILE) -> LoadedYard:
    """Read text. Raises: InvalidYardFile (``YARD_FILE_INVALID``) with all problems at once."""
    document, problems = parse_document(text, file=file)
    report = Report(positions=document.positions, raw=document.raw, file=file, problems=problems)
    _labels_from_raw(document)
    model = validate_as(YardFile, document.data, report, _unknown)
    whole = model if model is not None else _mended(document.data, report)
    if whole is not None:
        _check_rules(_policy(whole), report)
    loaded = None
    if whole is not None:
        loaded = LoadedYard(
            policy=_policy(whole),
            file=file,
            digest=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            positions={dotted_path(path): position for path, position in document.positions.items()},
        )
    if report.problems or model is None or loaded is None:
        raise InvalidYardFile(in_order(report.problems, file), file, loaded)
    return loaded


def placed(error: AiryardError, loaded: LoadedYard) -> AiryardError:
    """Return a refusal of the file's policy with the line of each problem; any other error as it is."""
    problems = error.details.get("problems")
    if error.code != "POLICY_INVALID" or not isinstance(problems, list):
        return error
    found = [{**each, "place": str(loaded.place(each["path"]))} for each in problems]
    lines = [f"{each['place']}  {each['path']}  {each['message']}" for each in found]
    if len(found) > 1:  # of a single one the next step stands below
        lines = [f"{line}\n  next: {each['fix']}" for line, each in zip(lines, found, strict=True)]
    count = f"{len(found)} problem{'s' if len(found) != 1 else ''}"
    return UserError(
        f"{loaded.file} does not fit this yard: {count}; nothing was changed:\n" + "\n".join(lines),
        code="POLICY_INVALID",
        details={**error.details, "problems": found},
        fix=error.fix,
    )


def _unknown(path: FieldPath, report: Report) -> None:
    """Report an unknown key with its near miss and the keys of its block."""
    block = _BLOCKS.get(_shape(path[:-1]))
    keys = keys_of(block) if block is not None else ()
    report.add(
        ProblemCode.UNKNOWN_FIELD,
        path,
        "unknown field",
        near_miss=near_miss(str(path[-1]), keys),
        valid_keys=keys,
    )


def _shape(path: FieldPath) -> tuple[str, ...]:
    """Put ``*`` for the names that the file chooses."""
    out: tuple[str, ...] = ()
    for part in path:
        out = (*out, _ANY if out in _NAMED else str(part))
    return out


def _labels_from_raw(document: Document) -> None:
    """Labels are text: take them as written, not as the number or date YAML saw."""
    pools: Any = document.data.get("pools")
    for name, pool in pools.items() if isinstance(pools, dict) else ():
        labels: Any = pool.get("labels") if isinstance(pool, dict) else None
        for key, value in list(labels.items()) if isinstance(labels, dict) else ():
            if isinstance(value, bool | int | float):
                labels[key] = document.raw.get(("pools", name, "labels", key), str(value))


def _mended(data: Mapping[str, Any], report: Report) -> YardFile | None:
    """Return the file without the values that are wrong by themselves, so that the rules can speak too."""
    tree: dict[str, Any] = copy.deepcopy(dict(data))
    for problem in report.problems:
        if problem.code is ProblemCode.DUPLICATE_KEY:
            continue  # the later value stands, and may be right
        path = next((path for path in _paths(tree, ()) if dotted_path(path) == problem.path), None)
        if path is not None:
            _at(tree, path[:-1]).pop(path[-1], None)
    for block in _maps_in(tree.get("pools")):
        block.setdefault("accelerator", "CPU")
    for block in _maps_in(tree.get("projects")):
        for budget in _maps_in({"budget": block.get("budget")}):
            budget.setdefault("gpu_hours", 0)
    for block in _maps_in(tree.get("users")):
        block.setdefault("project", DEFAULT_PROJECT)
    scratch = Report(positions={}, file=report.file)
    return validate_as(
        YardFile, tree, scratch, lambda path, into: into.add(ProblemCode.UNKNOWN_FIELD, path, "")
    )


def _maps_in(tree: Any) -> list[dict[str, Any]]:
    return [value for value in tree.values() if isinstance(value, dict)] if isinstance(tree, dict) else []


def _paths(node: Any, path: FieldPath) -> list[FieldPath]:
    if not isinstance(node, dict):
        return []
    return [below for key, value in node.items() for below in ((*path, key), *_paths(value, (*path, key)))]


def _at(tree: Any, path: FieldPath) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def _check_rules(policy: Policy, report: Report) -> None:
    """Report what the core finds wrong within the policy; a value that is reported already is left alone."""
    for problem in inner_problems(policy):
        if not problem.warning and not report.has(problem.path):
            code = _CODES.get(problem.rule, ProblemCode.INVALID_VALUE)
            report.add(code, problem.path, f"{problem.message}: {problem.fix}")


def _policy(file: YardFile) -> Policy:
    plain = Policy()
    return Policy(
        pools=tuple(_pool(name, block) for name, block in (file.pools or {}).items()),
        projects=tuple(_project(name, block) for name, block in (file.projects or {}).items()),
        users=tuple(
            UserPolicy(name=name, default_project=block.project) for name, block in (file.users or {}).items()
        ),
        half_life_ms=plain.half_life_ms if file.half_life is None else file.half_life * 1000,
    )


def _pool(name: str, block: PoolBlock) -> PoolPolicy:
    plain = PoolPolicy(name=name, accelerator=block.accelerator)
    return PoolPolicy(
        name=name,
        accelerator=block.accelerator,
        labels=tuple(sorted((block.labels or {}).items())),
        nodes=tuple(block.nodes or ()),
        order=block.order or PoolOrder.PREDICTED,
        share=block.share is not False,
        slicing=_slicing(block.slicing),
        ageing_ms=plain.ageing_ms if block.ageing is None else block.ageing * 1000,
        reservations=plain.reservations if block.reservations is None else block.reservations,
        prolog=_node_command(block.prolog),
        epilog=_node_command(block.epilog),
        preflight=plain.preflight if block.preflight is None else block.preflight,
        thresholds=limits_from_json(block.thresholds or {}),
        storage=tuple(block.storage or ()),
    )


def _node_command(block: NodeCommandBlock | None) -> NodeCommand | None:
    if block is None:
        return None
    plain = NodeCommand(command=block.command)
    return plain if block.timeout is None else replace(plain, timeout_ms=block.timeout * 1000)


def _slicing(value: bool | SlicingBlock | None) -> Slicing | None:
    if not isinstance(value, SlicingBlock):
        return Slicing() if value else None
    plain = Slicing()
    return Slicing(
        first_slice_ms=plain.first_slice_ms if value.first_slice is None else value.first_slice * 1000,
        apart_ms=plain.apart_ms if value.apart is None else value.apart * 1000,
    )


def _project(name: str, block: ProjectBlock | None) -> ProjectPolicy:
    if block is None:
        return ProjectPolicy(name=name)
    limits = block.per_user or PerUserBlock()
    return ProjectPolicy(
        name=name,
        shares=tuple(_share(pool, share or ShareBlock()) for pool, share in (block.pools or {}).items()),
        budget=Budget(gpu_hours=float(block.budget.gpu_hours), over=block.budget.over or OverBudget.REFUSE)
        if block.budget
        else None,
        per_user=UserLimits(waiting=limits.waiting, running=limits.running, devices=limits.devices),
        members=(EVERYBODY,) if block.members is None else tuple(block.members),
        critical=tuple(block.critical or ()),
        slicing=block.slicing,
    )


def _share(pool: str, block: ShareBlock) -> Share:
    return Share(
        pool=pool,
        guarantee=block.guarantee or 0,
        ceiling=block.ceiling,
        weight=1.0 if block.weight is None else float(block.weight),
    )
