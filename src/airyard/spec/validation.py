"""The models applied to plain data, and their complaints in our own words.

Owns: turning every pydantic error into a problem with a path, a reason and a near miss.
Must not know: files, rules between fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from airyard.spec.catalogue import elsewhere, fields_of, keys_of, model_at
from airyard.spec.fields import Origin, quoted
from airyard.spec.models import Block, WorkloadFile
from airyard.spec.problems import FieldPath, ProblemCode, Report, near_miss

M = TypeVar("M", bound=Block)
_NOT_OF_THE_FILE = frozenset({"[key]", "[map]", "[flag]"})
"""What the models put into a path beside the keys of the file: that a key is meant, which form a value has."""
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
}
_LIMITS = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entry",
    "literal_error": "must be {expected}",
}


def validate(data: Mapping[str, Any], report: Report) -> WorkloadFile | None:
    """Return the file as a model, or None after reporting everything wrong with its fields."""
    return validate_as(WorkloadFile, data, report, report_unknown)


def validate_as(
    model: type[M], data: Mapping[str, Any], report: Report, unknown: Callable[[FieldPath, Report], None]
) -> M | None:
    """Return data as a model, or None after reporting everything wrong; ``unknown`` reports a key nobody knows."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            _report(item, report, unknown)
        return None


def _report(item: ErrorDetails, report: Report, unknown: Callable[[FieldPath, Report], None]) -> None:
    path: FieldPath = tuple(part for part in item["loc"] if part not in _NOT_OF_THE_FILE)
    kind, value = item["type"], item["input"]
    if kind == "extra_forbidden":
        unknown(path, report)
    elif kind == "missing":
        block = _block_name(path[:-1])
        report.add(ProblemCode.MISSING_FIELD, path, f"is required{block}")
    elif kind in _EXPECTED:
        message = (
            f"expected {_EXPECTED[kind]}, got {describe(value)}{_hint(kind, value, report.raw.get(path))}"
        )
        report.add(ProblemCode.WRONG_TYPE, path, message)
    elif kind in _LIMITS:
        limit = _LIMITS[kind].format_map(item.get("ctx", {}))
        report.add(ProblemCode.INVALID_VALUE, path, f"{limit}, got {describe(value)}")
    elif kind == "wrong_type":
        report.add(ProblemCode.WRONG_TYPE, path, item["msg"])
    else:
        report.add(ProblemCode.INVALID_VALUE, path, item["msg"])


def report_unknown(path: FieldPath, report: Report) -> None:
    """Report an unknown key with its near miss and the keys its block takes."""
    model, key = model_at(path[:-1]), str(path[-1])
    if model is None:
        report.add(ProblemCode.UNKNOWN_FIELD, path, "unknown field")
        return
    current = [entry.name for entry in fields_of(model) if entry.origin is not Origin.OLDER]
    near = near_miss(key, current) or near_miss(key, keys_of(model)) or elsewhere(key, path[:-1])
    report.add(
        ProblemCode.UNKNOWN_FIELD, path, "unknown field", near_miss=near, valid_keys=current or keys_of(model)
    )


def _block_name(path: FieldPath) -> str:
    names = [part for part in path if isinstance(part, str)]
    return f" in {names[-1]}" if names else ""


def describe(value: Any) -> str:
    """Say what a value is, as a person would."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    return "a list" if isinstance(value, list) else "a map" if isinstance(value, dict) else quoted(value)


def _hint(kind: str, value: Any, written: str | None) -> str:
    """Name the repair where one is certain."""
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'; put it in quotes: "{value if written is None else written}"'
    if kind in ("int_type", "float_type") and isinstance(value, str) and value.strip().isdecimal():
        return "; leave the quotes off"
    return ""
