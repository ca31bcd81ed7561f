"""What can be wrong with a workload file, said all at once.

Owns: `Problem`, its codes, the report that collects problems, the error that carries them, near misses.
Must not know: which fields exist, how a file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from airyard.core.errors import UserError

FieldPath = tuple[str | int, ...]
"""Where a value lies in the file: ``("compute", "pool_id")``, ``("containers", 0, "ranks")``."""


class ProblemCode(Enum):
    """The closed set of codes a problem may carry; stable, machines read them."""

    YAML_SYNTAX = "YAML_SYNTAX"
    EMPTY_FILE = "EMPTY_FILE"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    FILE_NOT_FOUND = "FILE_NOT_FOUND"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    BASES_CYCLE = "BASES_CYCLE"
    INVALID_OVERRIDE = "INVALID_OVERRIDE"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    MISSING_FIELD = "MISSING_FIELD"
    WRONG_TYPE = "WRONG_TYPE"
    INVALID_VALUE = "INVALID_VALUE"
    CONFLICTING_FIELDS = "CONFLICTING_FIELDS"
    RESERVED_NAME = "RESERVED_NAME"
    NOT_SUPPORTED_YET = "NOT_SUPPORTED_YET"
    NOT_ENFORCED = "NOT_ENFORCED"
    """A warning: the value is stored and shown, and changes nothing yet."""
    LOOKS_WRONG = "LOOKS_WRONG"
    """A warning: the value is legal and probably not what was meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a file; line and column count from 1, line 0 means the source has no lines (an override)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong (or, as a warning, doubtful) with one value."""

    code: ProblemCode
    path: str
    """Dotted path; empty for the file as a whole."""
    message: str
    position: Position
    near_miss: str | None = None
    valid_keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(self.position)]
        if self.path:
            parts.append(self.path)
        message = self.message
        if self.near_miss:
            message += f'; did you mean "{self.near_miss}"?'
        if self.valid_keys:
            message += f" (valid: {', '.join(self.valid_keys)})"
        return "  ".join([*parts, message])

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``details["problems"]`` and ``-o json`` carry."""
        return {
            "code": self.code.value,
            "path": self.path,
            "file": self.position.file,
            "line": self.position.line or None,
            "column": self.position.column or None,
            "message": self.message,
            "near_miss": self.near_miss,
            "valid_keys": list(self.valid_keys),
        }


class WorkloadInvalid(UserError):
    """A workload file that cannot become a run; ``problems`` holds every reason found."""

    default_code = "WORKLOAD_INVALID"

    def __init__(self, problems: Sequence[Problem], *, file: str) -> None:
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        lines = "\n".join(lines_of(problems))
        super().__init__(
            f"{file} has {count}:\n{lines}",
            fix=_fix_of(problems),
            details={"file": file, "problems": [problem.as_json() for problem in problems]},
        )
        self.problems = tuple(problems)


def lines_of(problems: Sequence[Problem]) -> Iterator[str]:
    """Write each problem; what a block takes is listed once."""
    listed: set[tuple[str, ...]] = set()
    for problem in problems:
        yield str(replace(problem, valid_keys=()) if problem.valid_keys in listed else problem)
        listed.add(problem.valid_keys)


def _fix_of(problems: Sequence[Problem]) -> str:
    """Point at the help of the first block that has a problem."""
    first = next((problem for problem in problems if problem.path), None)
    block = first.path.split(".")[0].split("[")[0] if first else ""
    if first and first.path == block and first.code is ProblemCode.UNKNOWN_FIELD:
        block = first.near_miss or ""  # a field that does not exist has no help
    return f"`airyard run -h config{'.' + block if block else ''}` lists the fields and what they take"


def in_order(problems: Sequence[Problem], file: str) -> list[Problem]:
    """Order by place, the main file first; the same complaint once, and a misspelled field is not missing."""
    misspelled = {
        f"{parent}{dot}{problem.near_miss}"
        for problem in problems
        if problem.code is ProblemCode.UNKNOWN_FIELD
        for parent, dot, _ in [problem.path.rpartition(".")]
    }
    unique = {
        (problem.path, problem.code, problem.message): problem
        for problem in reversed(problems)
        if not (problem.code is ProblemCode.MISSING_FIELD and problem.path in misspelled)
    }
    return sorted(
        unique.values(),
        key=lambda problem: (
            problem.position.file != file,
            problem.position.file,
            problem.position.line,
            problem.position.column,
            problem.path,
        ),
    )


@dataclass(slots=True, kw_only=True)
class Report:
    """Collects problems and warnings while a file is read; knows where each path was written."""

    positions: Mapping[FieldPath, Position]
    file: str
    raw: Mapping[FieldPath, str] = field(default_factory=dict)
    """Scalars as they were written."""
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def add(
        self,
        code: ProblemCode,
        path: FieldPath,
        message: str,
        *,
        near_miss: str | None = None,
        valid_keys: Iterable[str] = (),
    ) -> None:
        """Record a problem at a path."""
        self.problems.append(self._problem(code, path, message, near_miss, valid_keys))

    def warn(self, code: ProblemCode, path: FieldPath, message: str) -> None:
        """Record something doubtful at a path; the file stays valid."""
        self.warnings.append(self._problem(code, path, message, None, ()))

    def has(self, path: FieldPath) -> bool:
        """True when a problem was recorded at this path or below it."""
        dotted = dotted_path(path)
        return any(
            problem.path == dotted or problem.path.startswith((dotted + ".", dotted + "["))
            for problem in self.problems
        )

    def _problem(
        self, code: ProblemCode, path: FieldPath, message: str, near_miss: str | None, valid: Iterable[str]
    ) -> Problem:
        return Problem(
            code=code,
            path=dotted_path(path),
            message=message,
            position=position_of(path, self.positions, self.file),
            near_miss=near_miss,
            valid_keys=tuple(valid),
        )


def position_of(path: FieldPath, positions: Mapping[FieldPath, Position], file: str) -> Position:
    """Return where a path was written, or its nearest written parent."""
    for length in range(len(path), -1, -1):
        found = positions.get(path[:length])
        if found is not None:
            return found
    return Position(file=file, line=1, column=1)


def dotted_path(path: FieldPath) -> str:
    """Write a path as people do: ``containers[0].ranks``."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            out += f".{part}" if out else part
    return out


_PREFIX_LETTERS = 4


def near_miss(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate within an edit distance of max(len/3, 1), the nearest first; else the only one it begins.

    A plural counts as its singular: ``env_vars`` begins ``env_variables``.
    """
    lowered = word.lower()
    letters = len(word.lstrip("-"))
    limit = min(max(len(word) // 3, 1), letters - 1)
    candidates = tuple(candidates)
    scored = [
        (distance, candidate)
        for candidate in candidates
        if abs(len(candidate) - len(word)) <= limit
        and (distance := edit_distance(lowered, candidate.lower())) <= limit
        and candidate != word
    ]
    if scored:
        return min(scored)[1]
    longer = [name for name in candidates if name != word and name.lower().startswith(lowered.rstrip("s"))]
    return longer[0] if len(longer) == 1 and letters >= _PREFIX_LETTERS else None


def edit_distance(one: str, other: str) -> int:
    """Count insertions, deletions, replacements and swaps of neighbours between two words."""
    rows = [list(range(len(other) + 1))]
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
