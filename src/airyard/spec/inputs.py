"""The files that a workload file points at: the code folder and files of requirements.

Owns: looking them up at submit, and saying which one is missing.
Must not know: what is in the code, how fields are spelled beyond these two blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airyard.spec.code_source import CodeSource, resolve_root
from airyard.spec.dependencies import Expansion, expand_entry, finish, read_requirements_yaml
from airyard.spec.problems import FieldPath, ProblemCode, Report
from airyard.spec.rules import at, code_block, mapping_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What the environment block comes to once its files are read."""

    version: str | None
    """From a requirements YAML only."""
    entries: tuple[str, ...]
    from_files: bool


def find_code(data: dict[str, Any], folder: Path, report: Report, *, check: bool) -> CodeSource | None:
    """Return the code that goes along, or None; with ``check`` its folder and paths must exist."""
    path, block = code_block(data)
    root_path = block.get("root_path")
    if not isinstance(root_path, str) or not root_path.strip():
        return None
    root = resolve_root(root_path, folder)
    git = mapping_at(block, "git")
    include = block.get("include_paths")
    source = CodeSource(
        root=root,
        include_paths=tuple(item for item in include if isinstance(item, str))
        if isinstance(include, list)
        else (),
        branch=git.get("branch") if isinstance(git.get("branch"), str) else None,
        commit=git.get("commit") if isinstance(git.get("commit"), str) else None,
    )
    if check:
        _check_code(source, path, root_path, report)
    return source


def _check_code(source: CodeSource, path: FieldPath, root_path: str, report: Report) -> None:
    if not source.root.exists():
        message = f"the code folder {source.root} does not exist"
        if "$" in str(source.root):
            message += "; the variable in it is not set"
        report.add(ProblemCode.FILE_NOT_FOUND, (*path, "root_path"), message)
    elif not source.root.is_dir():
        message = f"{source.root} is a file; the code is a folder"
        report.add(ProblemCode.INVALID_VALUE, (*path, "root_path"), message)
    elif not source.pinned:
        for index, item in enumerate(source.include_paths):
            if not (source.root / item).exists() and not item.startswith("/"):
                message = f"{item} does not exist below {source.root}"
                report.add(ProblemCode.FILE_NOT_FOUND, (*path, "include_paths", index), message)


def read_requirements(
    data: dict[str, Any], folder: Path, source: CodeSource | None, report: Report
) -> Requirements:
    """Check the dependencies and take in the files they name."""
    given = at(data, "environment", "dependencies")
    path: FieldPath = ("environment", "dependencies")
    into = Expansion(folder=folder, code_root=source.root if source and not source.pinned else None)
    version = None
    if isinstance(given, str) and given.strip():
        version, entries = _requirements_yaml(data, given, folder, report)
        into.from_files = True
        places: list[FieldPath] = [path] * len(entries)
    elif isinstance(given, list):
        entries = [item for item in given if isinstance(item, str)]
        places = [(*path, index) for index, item in enumerate(given) if isinstance(item, str)]
    else:
        return Requirements(version=None, entries=(), from_files=False)
    for place, entry in zip(places, entries, strict=True):
        expand_entry(entry, into, _adder(report, place))
    finish(into, _adder(report, places[-1] if places else path))
    for entry in into.credentials:
        message = f"{entry} carries a password, which is stored with the run; keep it in a secret instead"
        report.warn(ProblemCode.LOOKS_WRONG, path, message)
    return Requirements(version=version, entries=tuple(into.entries), from_files=into.from_files)


def _requirements_yaml(
    data: dict[str, Any], name: str, folder: Path, report: Report
) -> tuple[str | None, list[str]]:
    path: FieldPath = ("environment", "dependencies")
    version, entries = read_requirements_yaml(name, folder, _adder(report, path))
    if version is not None and at(data, "environment", "version") is not None:
        message = f"the version also stands in {name}; keep one of them"
        report.add(ProblemCode.CONFLICTING_FIELDS, ("environment", "version"), message)
    return version, entries


def _adder(report: Report, path: FieldPath) -> Any:
    def add(code: ProblemCode, message: str, near: str | None) -> None:
        report.add(code, path, message, near_miss=near)

    return add
