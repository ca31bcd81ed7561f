"""Kinds of values that the fields of a workload file take.

Owns: one validator per kind (names, durations, sizes, priorities, ...) with its words and its JSON Schema.
Must not know: which field uses which kind, other fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from airyard.core.notify import RunNotice, check_target
from airyard.core.workload import RUN_NAME_PATTERN, RUN_NAME_RULE, Priority

MAX_COMMAND_LINES = 1000
MAX_DURATION_S = 10 * 366 * 86_400
LEGACY_ACCELERATORS = {
    "a10": "GPU_1xA10",
    "a10g": "GPU_1xA10",
    "h100": "GPU_8xH100",
    "h100_80gb": "GPU_8xH100",
}
SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")

HANG_ACTIONS = ("report", "restart", "off")

_DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS = {
    "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


class Origin(Enum):
    """Where a field comes from."""

    AIR = "AI Runtime"
    OLDER = "older spelling"
    AIRYARD = "Airyard extension"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How help and the reference name the type of a field, when its Python type would not say it."""

    text: str


def setting(
    description: str,
    *,
    default: Any = None,
    required: bool = False,
    shown_default: str | None = None,
    origin: Origin = Origin.AIR,
    alias: str | None = None,
    examples: list[Any] | None = None,
) -> Any:
    """Declare one field: every field has a description and says where it comes from."""
    extra: dict[str, Any] = {"x-airyard-origin": origin.value}
    if shown_default is not None:
        extra["x-airyard-default"] = shown_default
    return Field(
        default=... if required else default,
        description=description,
        alias=alias,
        examples=examples,
        json_schema_extra=extra,
    )


def refuse(message: str, kind: str = "invalid_value") -> NoReturn:
    """Fail a validator with a message of our own."""
    raise PydanticCustomError(kind, "{message}", {"message": message})


def _matching(pattern: str, words: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        return value if compiled.fullmatch(value) else refuse(f"{quoted(value)} is not {words}")

    return check


def quoted(value: Any) -> str:
    """Show a value of the file in an error, cut when long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _any_case(*words: str) -> WithJsonSchema:
    """Offer words to an editor and allow them in any case; JSON Schema knows no flag for that."""
    letters = "|".join(
        "".join(f"[{c.upper()}{c.lower()}]" if c.isalpha() else c for c in word) for word in words
    )
    return WithJsonSchema(
        {"type": "string", "anyOf": [{"enum": list(words)}, {"pattern": f"^(?:{letters})$"}]}
    )


def _text(pattern: str, words: str, shown: str) -> Any:
    return Annotated[
        str,
        AfterValidator(_matching(pattern, words)),
        WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"}),
        Shown(text=shown),
    ]


def not_blank(value: str) -> str:
    """Refuse text without a visible character."""
    return value if value.strip() else refuse("must not be blank")


ExperimentName = _text(
    r"[A-Za-z0-9_-]{1,100}",
    "1 to 100 ASCII letters, digits, '-' and '_'",
    "text: 1–100 ASCII letters, digits, - and _",
)
RunName = _text(
    RUN_NAME_PATTERN,
    RUN_NAME_RULE,
    "text: 1–100 ASCII letters, digits, -, _ and ., not only digits",
)
ProjectName = _text(
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}",
    "a project name: 1 to 100 ASCII letters, digits, '-', '_' and '.'",
    "text: 1–100 ASCII letters, digits, -, _ and .",
)
TagName = _text(
    r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}",
    "a tag name: 1 to 100 ASCII letters, digits, '-', '_', '.' and '/'",
    "text",
)
VariableName = _text(
    r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable: letters, digits and '_', no digit first", "text"
)
SecretReference = _text(r"[^/\s]+/[^/\s]+", "scope/key with exactly one slash", "text: scope/key")
Branch = _text(
    r"[A-Za-z0-9_.][A-Za-z0-9._/-]*", "a branch name: letters, digits, '.', '/', '-' and '_'", "text"
)
Commit = _text(r"[A-Za-z0-9][A-Za-z0-9._/~^-]*", "a commit", "text: a commit that exists locally")
PermissionLevel = _text(
    r"[A-Z][A-Z_]*",
    "a level such as CAN_VIEW or CAN_MANAGE",
    "text: CAN_VIEW, CAN_MANAGE_RUN, CAN_MANAGE or IS_OWNER",
)
PolicyId = _text(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "a UUID", "text: a UUID")
VolumePath = _text(r"/Volumes/.+", "a path that begins with /Volumes/", "text: a path below /Volumes/")
NotBlank = Annotated[str, AfterValidator(not_blank), WithJsonSchema({"type": "string", "minLength": 1})]


def _pool(value: str) -> str:
    trimmed = value.strip()
    return trimmed if 1 <= len(trimmed) <= 255 else refuse("must have 1 to 255 characters")


PoolName = Annotated[
    str,
    AfterValidator(_pool),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255}),
    Shown(text="text: 1–255 characters"),
]


def _command(value: str) -> str:
    lines = not_blank(value).count("\n") + (not value.endswith("\n"))
    if lines > MAX_COMMAND_LINES:
        refuse(
            f"has {lines} lines; at most {MAX_COMMAND_LINES} are allowed: put it into a script of the code"
        )
    return value if "\0" not in value else refuse("contains a NUL character")


Command = Annotated[
    str,
    AfterValidator(_command),
    WithJsonSchema({"type": "string", "minLength": 1}),
    Shown(text=f"text: a shell script of at most {MAX_COMMAND_LINES} lines"),
]


def _accelerator(value: str) -> str:
    named = LEGACY_ACCELERATORS.get(value, value)
    if re.fullmatch(r"GPU_[1-9][0-9]{0,2}x[A-Za-z0-9][A-Za-z0-9_.-]{0,62}|CPU", named):
        return named
    hint = re.fullmatch(r"(?i)(?:gpu[_-])?([1-9][0-9]{0,2})\s*x\s*([a-z0-9][a-z0-9_.-]*)", value)
    if value.upper() == "CPU":
        refuse(f'{quoted(value)} is spelled "CPU"')
    if hint:
        refuse(f'{quoted(value)} is spelled "GPU_{hint.group(1)}x{hint.group(2).upper()}"')
    refuse(f"{quoted(value)} is neither GPU_<count per node>x<MODEL>, such as GPU_8xH100, nor CPU")


AcceleratorType = Annotated[
    str,
    AfterValidator(_accelerator),
    WithJsonSchema(
        {
            "type": "string",
            "anyOf": [
                {"enum": ["GPU_1xA10", "GPU_1xH100", "GPU_8xH100", "GPU_8xB300", "CPU"]},
                {"enum": sorted(LEGACY_ACCELERATORS)},
                {"pattern": "^GPU_[1-9][0-9]{0,2}x[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"},
            ],
        }
    ),
    Shown(text="text: GPU_<count per node>x<MODEL> or CPU"),
]


def _priority(value: Any) -> Priority:
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    refuse(f"{quoted(value)} is none of CRITICAL, NORMAL and BEST_EFFORT")


PriorityClass = Annotated[
    Priority,
    BeforeValidator(_priority),
    _any_case(*(item.value for item in Priority)),
    Shown(text="one of CRITICAL, NORMAL, BEST_EFFORT (any case)"),
]


def _legacy_priority(value: Any) -> Priority | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= 999 else refuse(f"{value} is not in 0 to 999")
    return _priority(value)


LegacyPriority = Annotated[
    Any,
    BeforeValidator(_legacy_priority),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 999}]}),
    Shown(text="a priority class, or a number 0–999 (not supported yet)"),
]


def duration_s(value: Any) -> int:
    """Read ``90s``, ``30m``, ``2h``, ``1d`` or ``1h30m`` as seconds."""
    if isinstance(value, str) and re.fullmatch(r"(?:\d+\s*[smhd]\s*)+", value):
        seconds = sum(
            int(count) * _DURATION_UNITS[unit] for count, unit in re.findall(r"(\d+)\s*([smhd])", value)
        )
        if seconds > MAX_DURATION_S:
            refuse(f"{quoted(value)} is more than ten years")
        return seconds if seconds > 0 else refuse("must be longer than nothing")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value <= 0:
            refuse("must be longer than nothing")
        refuse(f"{value} has no unit; write {value}s, {value}m or {value}h")
    if isinstance(value, str) and re.fullmatch(r"-\s*(?:\d+\s*[smhd]\s*)+", value):
        refuse("must be longer than nothing")
    refuse(f"{quoted(value)} is not a duration such as 90s, 30m, 2h or 1d")


Duration = Annotated[
    int,
    BeforeValidator(duration_s),
    WithJsonSchema({"type": "string", "pattern": r"^(\d+\s*[smhd]\s*)+$"}),
    Shown(text="duration: 90s, 30m, 2h, 1d, 1h30m"),
]


def size_bytes(value: Any) -> int:
    """Read ``64GiB`` (1024-based; also ``Gi``) or ``64GB`` (1000-based; also ``G``) as bytes."""
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", value.strip())
        if match and match.group(2).upper() in _SIZE_UNITS:
            size = int(float(match.group(1)) * _SIZE_UNITS[match.group(2).upper()])
            return size if size > 0 else refuse("must be more than nothing")
    if isinstance(value, int | float) and not isinstance(value, bool):
        refuse(f"{value} has no unit; write {value}GiB or {value}GB")
    refuse(f"{quoted(value)} is not a size such as 64GiB or 500MB")


Size = Annotated[
    int,
    BeforeValidator(size_bytes),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?\s*([kKmMgGtT]([iI]?[bB]?)|[bB])$"}),
    Shown(text="size: 64GiB or 64Gi (1024-based), 64GB or 64G (1000-based)"),
]


def _signal(value: Any) -> str:
    name = value.upper() if isinstance(value, str) else ""
    name = name if name.startswith("SIG") else f"SIG{name}"
    return name if name in SIGNALS else refuse(f"{quoted(value)} is none of {', '.join(SIGNALS)}")


Signal = Annotated[
    str,
    BeforeValidator(_signal),
    _any_case(*SIGNALS, *(name[3:] for name in SIGNALS)),
    Shown(text="one of " + ", ".join(SIGNALS)),
]


def _on_off(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("on", "off"):
        return value.lower() == "on"
    refuse(f"{quoted(value)} is neither on nor off")


OnOff = Annotated[
    bool,
    BeforeValidator(_on_off),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}),
    Shown(text="on or off"),
]


def _hang_action(value: Any) -> str:
    if value is False:  # what YAML makes of a bare off
        return "off"
    if isinstance(value, str) and value.lower() in HANG_ACTIONS:
        return value.lower()
    refuse(f"{quoted(value)} is none of {', '.join(HANG_ACTIONS)}")


HangActionName = Annotated[
    str,
    BeforeValidator(_hang_action),
    WithJsonSchema({"anyOf": [{"enum": list(HANG_ACTIONS)}, {"const": False}]}),
    Shown(text="report, restart or off"),
]


def environment_version(value: Any) -> str:
    """Normalise ``6``, ``'5'`` and ``Databricks_AI_v6`` to ``6``, ``5`` and ``databricks_ai_v6``."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return str(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if re.fullmatch(r"[1-9]\d{0,3}", text):
            return text
        match = re.fullmatch(r"databricks_ai_v([1-9]\d{0,3})", text)
        if match and int(match.group(1)) >= 5:
            return text
        if match:
            refuse(f"{quoted(value)}: the AI environments begin with databricks_ai_v5")
    refuse(f"{quoted(value)} is neither a version number such as 6 nor databricks_ai_v6")


EnvironmentVersion = Annotated[
    str,
    BeforeValidator(environment_version),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "string",
                    "pattern": r"^([1-9]\d*|[dD][aA][tT][aA][bB][rR][iI][cC][kK][sS]_[aA][iI]_[vV]\d+)$",
                },
            ]
        }
    ),
    Shown(text="whole number, the same as text, or databricks_ai_vN (N ≥ 5)"),
]


def _dependencies(value: Any) -> list[str] | str:
    if isinstance(value, str):
        return not_blank(value)
    if not isinstance(value, list):
        refuse(f"expected a list of requirements, got {quoted(value)}", "wrong_type")
    wrong = [str(index) for index, item in enumerate(value) if not isinstance(item, str)]
    if wrong:
        refuse(f"every entry must be text; entry {', '.join(wrong)} (from 0) is not", "wrong_type")
    return value


Dependencies = Annotated[
    Any,
    BeforeValidator(_dependencies),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
    Shown(text="list of text, or the path of a requirements YAML"),
]


def _git_remote(value: Any) -> bool | str:
    return value if isinstance(value, bool | str) else refuse(f"{quoted(value)} is not false", "wrong_type")


GitRemote = Annotated[
    Any,
    BeforeValidator(_git_remote),
    WithJsonSchema({"type": ["boolean", "string"]}),
    Shown(text="false"),
]


def _include_path(value: str) -> str:
    if value.startswith("/") or ".." in value.split("/"):
        refuse(f"{quoted(value)} must be relative to root_path, without '..'")
    return not_blank(value)


IncludePath = Annotated[str, AfterValidator(_include_path), Shown(text="text: a path below root_path")]


def _artifact_location(value: str) -> str:
    if value.startswith("/Volumes/"):
        return f"dbfs:{value}"
    if value.startswith("file:"):
        refuse("file: locations are not allowed; other machines could not read them")
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", value):
        refuse(f"{quoted(value)} has no scheme; write s3://..., dbfs:/... or /Volumes/...")
    return value


ArtifactLocation = Annotated[
    str, AfterValidator(_artifact_location), WithJsonSchema({"type": "string"}), Shown(text="text: a URI")
]


def _directory(value: str) -> str:
    return value if value.startswith("/") else refuse(f"{quoted(value)} must begin with '/'")


ExperimentDirectory = Annotated[
    str,
    AfterValidator(_directory),
    WithJsonSchema({"type": "string", "pattern": "^/"}),
    Shown(text="text: an absolute folder such as /Workspace/Users/me"),
]


def _notify_on(value: Any) -> RunNotice:
    if isinstance(value, str) and value.upper() in RunNotice.__members__:
        return RunNotice[value.upper()]
    refuse(f"{quoted(value)} is none of {', '.join(one.value for one in RunNotice)}")


NotifyOn = Annotated[
    RunNotice,
    BeforeValidator(_notify_on),
    _any_case(*(one.value for one in RunNotice)),
    Shown(text="one of " + ", ".join(one.value for one in RunNotice)),
]


def _notify_target(value: str) -> str:
    try:
        return check_target(value)
    except ValueError as error:
        refuse(str(error))


NotifyTarget = Annotated[
    str,
    AfterValidator(_notify_target),
    WithJsonSchema({"type": "string", "pattern": r"^(https?://|\{\{)"}),
    Shown(text="text: an http(s) address, or the name of a secret"),
]
