"""`environment.dependencies`: what each entry may be, and files of requirements taken in.

Owns: the grammar of entries, `-r` files, requirements YAML files, options that are refused.
Must not know: how packages are resolved or installed, the rest of the workload file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airyard.spec.document import parse_document
from airyard.spec.fields import environment_version, quoted
from airyard.spec.problems import ProblemCode, near_miss

NEXT_ENTRY_OPTIONS = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--force-reinstall")
INDEX_OPTIONS = {
    "--index-url": "--index-url", "-i": "--index-url", "--extra-index-url": "--extra-index-url",
    "--find-links": "--find-links", "-f": "--find-links",
}  # fmt: skip
FILE_OPTIONS = ("-r", "--requirement")
MAX_FILE_BYTES = 1024 * 1024
_CODE_VARIABLES = re.compile(
    r"^\$(?:\{(?:CODE_SOURCE_PATH|CODE_SOURCE)\}|(?:CODE_SOURCE_PATH|CODE_SOURCE)(?![A-Z_]))"
)

_VERSION = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
    r"\s*(?:\[[A-Za-z0-9._,\s-]*\])?"
    rf"\s*(?:@\s*\S+|\(?\s*(?:{_VERSION}\s*(?:,\s*{_VERSION}\s*)*,?)?\)?)"
    r"\s*(?:;.*)?(?:\s--hash=\S+)*"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+|git\+\S+")
_CREDENTIAL = re.compile(r"://[^/@\s:]+:(?!\$)[^/@\s]+@")

Add = Callable[[ProblemCode, str, str | None], None]
"""Reports a problem with the entry at hand: code, message, near miss."""


@dataclass(slots=True, kw_only=True)
class Expansion:
    """Entries in normal form, as they grow; ``from_files`` says that files were read."""

    folder: Path
    code_root: Path | None
    """What ``$CODE_SOURCE_PATH`` will hold on the node; None when no code is sent or a commit is pinned."""
    entries: list[str] = field(default_factory=list)
    from_files: bool = False
    credentials: list[str] = field(default_factory=list)
    """Entries that carry a password in a URL."""


def expand_entry(entry: str, into: Expansion, add: Add, *, files: tuple[Path, ...] = ()) -> None:
    """Check one entry and append its normal form; ``files`` is the chain of files it was read from."""
    text = entry.strip()
    if not text or "\n" in text:
        add(ProblemCode.INVALID_VALUE, "an entry is one line of text", None)
    elif text.startswith("-"):
        _expand_option(text, into, add, files)
    else:
        _expand_requirement(text, into, add)


def finish(into: Expansion, add: Add) -> None:
    """Check what only the whole list shows: an option for the next entry needs one."""
    if into.entries and into.entries[-1] in NEXT_ENTRY_OPTIONS:
        add(ProblemCode.INVALID_VALUE, f"{into.entries[-1]} is for the next entry, and there is none", None)


def read_requirements_yaml(name: str, folder: Path, add: Add) -> tuple[str | None, list[str]]:
    """Read the file form of dependencies: a YAML with ``version`` and ``dependencies``."""
    path = _path_of(name, folder, None)
    if path.suffix not in (".yaml", ".yml"):
        fix = f'; write ["-r {name}"] for a pip file' if path.suffix == ".txt" else ""
        add(ProblemCode.INVALID_VALUE, f"{quoted(name)} is not the path of a .yaml file{fix}", None)
        return None, []
    text = _read(path, name, add)
    if text is None:
        return None, []
    document, problems = parse_document(text, file=name)
    for problem in problems:
        add(problem.code, f"{problem.position}: {problem.message}", None)
    for key in document.data:
        if key not in ("version", "dependencies"):
            near = near_miss(key, ("version", "dependencies"))
            add(
                ProblemCode.UNKNOWN_FIELD,
                f"{name}: unknown field {quoted(key)} (valid: version, dependencies)",
                near,
            )
    entries = document.data.get("dependencies") or []
    if not isinstance(entries, list) or not all(isinstance(item, str) for item in entries):
        add(ProblemCode.WRONG_TYPE, f"{name}: dependencies must be a list of text", None)
        entries = []
    return _version(document.data.get("version"), name, add), entries


def _version(value: object, name: str, add: Add) -> str | None:
    if value is None:
        return None
    try:
        return environment_version(value)
    except ValueError as error:
        add(ProblemCode.INVALID_VALUE, f"{name}: version: {error}", None)
        return None


def _expand_requirement(text: str, into: Expansion, add: Add) -> None:
    if text.startswith(("/", "$")) or (text.endswith(".whl") and " @ " not in text):
        if text.startswith(("/", "$", "https:", "http:", "file:")) and text.endswith(".whl"):
            into.entries.append(text)
        elif text.startswith(("/", "$")):
            add(ProblemCode.INVALID_VALUE, f"{quoted(text)}: a path must be that of a wheel (.whl)", None)
        else:
            add(
                ProblemCode.INVALID_VALUE,
                f"{quoted(text)}: a wheel is named by its absolute path or URL",
                None,
            )
        return
    if _CREDENTIAL.search(text):
        into.credentials.append(_CREDENTIAL.sub("://***@", text))
    if _URL.match(text) or _REQUIREMENT.fullmatch(text):
        into.entries.append(text)
        return
    single = re.fullmatch(r"([A-Za-z0-9._-]+)\s*=\s*([0-9][\w.*]*)", text)
    add(
        ProblemCode.INVALID_VALUE,
        f"{quoted(text)} is not a requirement",
        f"{single[1]}=={single[2]}" if single else None,
    )


def _expand_option(text: str, into: Expansion, add: Add, files: tuple[Path, ...]) -> None:
    """Take an option in; what follows an option for the next entry on the same line is that entry."""
    name, value = _split_option(text)
    if name in NEXT_ENTRY_OPTIONS:
        into.entries.append(name)
        if value:
            expand_entry(value, into, add, files=files)
    elif name == "--no-index" and not value:
        into.entries.append(name)
    elif name in INDEX_OPTIONS and value:
        if _CREDENTIAL.search(value):
            into.credentials.append(_CREDENTIAL.sub("://***@", value))
        into.entries.append(f"{INDEX_OPTIONS[name]} {value}")
    elif name in FILE_OPTIONS and value:
        _expand_file(value, into, add, files)
    elif name in INDEX_OPTIONS or name in FILE_OPTIONS:
        add(ProblemCode.INVALID_VALUE, f"{name} needs a value", None)
    elif name == "--trusted-host":
        message = "--trusted-host is refused: it would install without checking whom it talks to"
        add(ProblemCode.INVALID_VALUE, message, None)
    else:
        known = (*NEXT_ENTRY_OPTIONS, *INDEX_OPTIONS, *FILE_OPTIONS, "--no-index")
        add(ProblemCode.INVALID_VALUE, f"the option {name} is not allowed", near_miss(name, known))


def _split_option(text: str) -> tuple[str, str]:
    """Split ``--index-url=URL``, ``--index-url URL`` and ``-rFILE`` into name and value."""
    name, _, value = text.partition(" ")
    if "=" in name and name.startswith("--"):
        name, _, value = text.partition("=")
    elif not name.startswith("--") and len(name) > 2:
        name, value = text[:2], text[2:]
    value = value.strip()
    if value[:1] in ("'", '"'):
        try:
            value = " ".join(shlex.split(value))
        except ValueError:
            pass  # an odd quote stays; the checks of the value see it
    return name, value


def _expand_file(name: str, into: Expansion, add: Add, files: tuple[Path, ...]) -> None:
    folder = files[-1].parent if files else into.folder
    if _CODE_VARIABLES.match(name) and into.code_root is None:
        message = f"-r {name} needs a code_source without a git pin: its lines are read at submit"
        add(ProblemCode.INVALID_VALUE, message, None)
        return
    path = _path_of(name, folder, into.code_root)
    if path in files:
        loop = " → ".join(item.name for item in (*files[files.index(path) :], path))
        add(ProblemCode.INVALID_VALUE, f"requirement files include each other: {loop}", None)
        return
    text = _read(path, name, add)
    if text is None:
        return
    into.from_files = True
    for line in _lines(text):
        expand_entry(line, into, add, files=(*files, path))


def _lines(text: str) -> list[str]:
    """Return the lines of a pip requirements file: joined after a backslash, without comments and blanks."""
    joined = re.sub(r"\\\r?\n", " ", text.lstrip("\ufeff"))
    stripped = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [re.sub(r"\s+(?=--hash=)", " ", line) for line in stripped if line]


def _path_of(name: str, folder: Path, code_root: Path | None) -> Path:
    if code_root is not None:
        name = _CODE_VARIABLES.sub(lambda _: str(code_root), name)
    return Path(os.path.normpath(folder / os.path.expanduser(os.path.expandvars(name))))


def _read(path: Path, name: str, add: Add) -> str | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            add(ProblemCode.FILE_TOO_LARGE, f"{name} is larger than {MAX_FILE_BYTES:,} bytes", None)
            return None
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        add(ProblemCode.INVALID_VALUE, f"{name} is not UTF-8 text", None)
    except OSError as error:
        add(ProblemCode.FILE_NOT_FOUND, f"cannot read {name} ({path}): {error.strerror}", None)
    return None
