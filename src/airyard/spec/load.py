"""A workload file, with its bases and overrides, to a `Workload`, or to every reason why not.

Owns: the order of the steps, what a caller gets.
Must not know: the steps' insides, the server, how the code is packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from airyard.core.errors import Fix, UserError
from airyard.core.workload import CodeReference, Workload
from airyard.spec.bases import BASES_KEY, resolve_bases
from airyard.spec.code_source import CodeSource
from airyard.spec.document import MAX_BYTES, Document, parse_document
from airyard.spec.inputs import Requirements, find_code, read_requirements
from airyard.spec.normalise import normalise
from airyard.spec.overrides import apply_overrides
from airyard.spec.problems import FieldPath, Problem, ProblemCode, Report, WorkloadInvalid, in_order
from airyard.spec.rules import check_rules
from airyard.spec.validation import validate

DEFAULT_FILE = "workload.yaml"
_TEXT_FROM_RAW: tuple[FieldPath, ...] = (
    ("code_source", "git", "commit"),
    ("code_source", "git", "branch"),
    ("code_source", "snapshot", "git", "commit"),
    ("code_source", "snapshot", "git", "branch"),
)
"""Values that are text by nature but may look like numbers: ``commit: 1234567``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What one workload file came to."""

    workload: Workload
    source_yaml: str
    """The file's text; where bases, overrides or requirement files took part, the text they came to."""
    warnings: tuple[Problem, ...]
    root: Path
    """Folder that relative paths of the file are relative to."""
    code_source: CodeSource | None
    """What to pack; None sends no code."""
    idempotency_token: str | None


def load_workload(path: Path | str, *, overrides: Sequence[str] = (), check_code: bool = True) -> Loaded:
    """Read a workload file.

    Raises: WorkloadInvalid with all problems at once; UserError when the file cannot be read.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        text = path.read_bytes().decode("utf-8") if size <= MAX_BYTES else " " * size
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path} is not UTF-8 text: byte 0x{error.object[error.start]:02x} on line {line}",
            code=ProblemCode.YAML_SYNTAX.value,
            fix="save the file as UTF-8",
        ) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return _load(text, path.absolute().parent, str(path), path, overrides, check_code)


def load_text(
    text: str,
    *,
    folder: Path,
    file: str = DEFAULT_FILE,
    overrides: Sequence[str] = (),
    check_code: bool = True,
) -> Loaded:
    """Read a workload from text; relative paths are relative to ``folder``.

    ``check_code=False`` does not ask for the code folder, for text that came back from a server.
    Raises: WorkloadInvalid with all problems at once.
    """
    return _load(text, folder, file, None, overrides, check_code)


def load_stored(
    source_yaml: str, stored: Mapping[str, Any], *, folder: Path, overrides: Sequence[str] = ()
) -> Loaded:
    """Read again what a server stored of a run, with overrides; the code stays that of ``stored``, its workload's JSON.

    Raises: UserError for an override of the code; WorkloadInvalid.
    """
    for override in overrides:
        if override.removeprefix("config.").startswith("code_source"):
            raise UserError(
                f"--override {override}: a rerun uses the code of the first run",
                code=ProblemCode.INVALID_OVERRIDE.value,
                fix="submit the workload file again to send other code",
            )
    loaded = load_text(
        source_yaml, folder=folder, file="the stored workload", overrides=overrides, check_code=False
    )
    # The token made the first submit unique; with it the rerun would be answered with the first run.
    code = stored.get("code")
    workload = loaded.workload.with_code(CodeReference.from_json(code) if code else None)
    return replace(loaded, workload=workload, code_source=None, idempotency_token=None)


def _load(
    text: str, folder: Path, file: str, own: Path | None, overrides: Sequence[str], check_code: bool
) -> Loaded:
    """Parse, merge, override, check everything, then normalise; nothing stops at the first problem."""
    document, problems = parse_document(text, file=file)
    if problems and not document.data:
        raise WorkloadInvalid(problems, file=file)
    has_bases = BASES_KEY in document.data
    document, found = resolve_bases(document, folder=folder, file=file, own=own)
    problems += found
    document, found = apply_overrides(document, overrides)
    problems += found
    _text_from_raw(document)
    report = Report(positions=document.positions, raw=document.raw, file=file, problems=problems)
    data = document.data
    model = validate(data, report)
    check_rules(data, report)
    source = find_code(data, folder, report, check=check_code)
    requirements = read_requirements(data, folder, source, report)
    if report.problems or model is None:
        raise WorkloadInvalid(in_order(report.problems, file), file=file)
    derived = has_bases or bool(overrides) or requirements.from_files
    return Loaded(
        workload=normalise(model, requirements),
        source_yaml=_derived_yaml(data, requirements, file) if derived else text,
        warnings=tuple(in_order(report.warnings, file)),
        root=folder,
        code_source=source,
        idempotency_token=model.idempotency_token,
    )


def _unreadable(path: Path, error: OSError) -> UserError:
    fix = None
    if isinstance(error, FileNotFoundError):
        fix = Fix(
            text="name the file, or write a first one; `airyard run --gpus 1 -- COMMAND` needs none",
            command="airyard init",
        )
    return UserError(
        f"cannot read the workload file {path}: {error.strerror}",
        code=ProblemCode.FILE_NOT_FOUND.value,
        fix=fix,
    )


def _text_from_raw(document: Document) -> None:
    """Tags and commits are text: take them as written, not as the number YAML saw."""
    tags = document.data.get("tags")
    paths: list[FieldPath] = [("tags", name) for name in tags] if isinstance(tags, dict) else []
    for path in (*paths, *_TEXT_FROM_RAW):
        parent: Any = document.data
        for part in path[:-1]:
            parent = parent.get(part) if isinstance(parent, dict) else None
        if isinstance(parent, dict) and isinstance(parent.get(path[-1]), bool | int | float):
            parent[path[-1]] = document.raw.get(path, str(parent[path[-1]]))


class _BlockDumper(yaml.SafeDumper):
    """Writes text of several lines as a block, as a person would."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_BlockDumper.add_representer(str, _represent_text)


def _derived_yaml(data: dict[str, Any], requirements: Requirements, file: str) -> str:
    """Write a file that stands alone: bases merged, overrides set, requirement files taken in."""
    out = dict(data)
    if requirements.from_files:
        environment = {**(out.get("environment") or {}), "dependencies": list(requirements.entries)}
        if requirements.version is not None:
            environment["version"] = requirements.version
        out["environment"] = environment
    text = yaml.dump(out, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=100)
    return f"# From {file}, with its bases, overrides and requirement files taken in.\n{text}"
