"""The rules of tidiness that a machine can check; each failure lists every place that breaks one rule."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CODE_FOLDERS = ("src", "tests", "benchmarks", "examples")
TEXT_FOLDERS = (*CODE_FOLDERS, "docs", "requirements", ".ci")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
BANNED_NAMES = frozenset(
    {"util", "utils", "helper", "helpers", "common", "manager", "managers", "base", "misc"}
)

# Written in pieces, so that this file does not break its own rule.
MACHINE_PATHS = re.compile(
    r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "opt/wh" + "eels"]) + r")(?:/|\b(?=[\"'`\s]|$))"
)
REGISTRY_HOSTS = re.compile(
    "|".join(["py" + r"pi\.org", "python" + r"hosted\.org", "np" + r"mjs\.org", "deb" + r"ian\.org"])
)

SUPPRESSION = re.compile(r"#\s*(type:\s*ignore|noqa|ruff:\s*noqa|mypy:|pragma:\s*no cover)")
TYPE_IGNORE_WITH_REASON = re.compile(r"#\s*type:\s*ignore\[[\w, -]+\]\s+#\s*(?!noqa)\S.{7,}")
NOQA_WITH_REASON = re.compile(r"#\s*noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*\s+(?:#|--?|—)\s*\S.{7,}")
TASK_MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?P<text>.*)")


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files below the given folders of the checkout."""
    for folder in folders or CODE_FOLDERS:
        yield from sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def text_files() -> Iterator[tuple[Path, str]]:
    """Yield every text file of the project with its contents; binary files are passed over."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in TEXT_FOLDERS:
        paths += [
            path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
        ]
    for path in sorted(paths):
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def place(path: Path, line: int | None = None) -> str:
    """Return ``path:line`` relative to the checkout."""
    name = str(path.relative_to(ROOT))
    return f"{name}:{line}" if line is not None else name


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each comment; text inside strings is not a comment."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def report(rule: str, found: list[str]) -> None:
    """Fail with the rule and all places that break it."""
    assert not found, f"{rule}:\n" + "\n".join(found)


def test_files_are_short() -> None:
    lengths = [(path, len(path.read_text(encoding="utf-8").splitlines())) for path in python_files()]
    long = [f"{place(path)}: {lines} lines" for path, lines in lengths if lines > MAX_FILE_LINES]
    report(f"a file has at most {MAX_FILE_LINES} lines", long)


def test_functions_are_short() -> None:
    long = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{place(path, node.lineno)}: {node.name} has {lines} lines")
    report(f"a function has at most {MAX_FUNCTION_LINES} lines", long)


def test_names_say_what_a_module_owns() -> None:
    parts = {part for path in python_files("src") for part in path.relative_to(SOURCE).with_suffix("").parts}
    report("a module is named after what it owns", sorted(parts & BANNED_NAMES))


def test_every_module_opens_with_what_it_owns() -> None:
    silent = [
        place(path)
        for path in python_files("src")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    report("every module of src opens with a docstring", silent)


def suppression_problem(comment: str) -> str | None:
    """Return what is wrong with a comment that silences a checker, or None."""
    for kind in SUPPRESSION.findall(comment):
        kind = re.sub(r"\s+", " ", kind)
        if kind == "type: ignore" and not TYPE_IGNORE_WITH_REASON.search(comment):
            return "write `# type: ignore[rule]  # reason`"
        if kind == "noqa" and not NOQA_WITH_REASON.search(comment):
            return "write `# noqa: RULE  # reason`"
        if kind.startswith(("ruff", "mypy")):
            return "a whole file may not be silenced"
    return None


def test_suppressions_name_their_rule_and_reason() -> None:
    found = [
        f"{place(path, line)}: {problem}"
        for path in python_files()
        for line, comment in comments(path)
        if (problem := suppression_problem(comment))
    ]
    report("a suppression names its rule and its reason", found)


@pytest.mark.parametrize(
    ("comment", "good"),
    [
        ("# type: ignore", False),
        ("# type: ignore[misc]", False),
        ("# type: ignore[misc]  # the stub lacks this argument", True),
        ("# noqa", False),
        ("# noqa: E501", False),
        ("# noqa: S603, S607  # the command is the user's own", True),
        ("# ruff: noqa", False),
        ("# an ordinary remark", True),
    ],
)
def test_the_suppression_rule_itself(comment: str, good: bool) -> None:
    assert (suppression_problem(comment) is None) is good


def test_open_tasks_say_what_is_to_be_done() -> None:
    found = []
    for path in python_files():
        for line, comment in comments(path):
            mark = TASK_MARK.search(comment)
            if mark and len(mark["text"].strip(" :().-")) < 15:
                found.append(f"{place(path, line)}: {comment}")
    report("a mark for open work says what is to be done", found)


def test_no_path_of_one_machine_and_no_registry_host() -> None:
    found = []
    for path, text in text_files():
        for pattern in (MACHINE_PATHS, REGISTRY_HOSTS):
            found += [
                f"{place(path, text.count(chr(10), 0, hit.start()) + 1)}: {hit[0]}"
                for hit in pattern.finditer(text)
            ]
    report("no path of one machine and no registry host is named", found)


def test_the_documents_a_newcomer_looks_for_exist() -> None:
    missing = [
        name
        for name in DOCUMENTS
        if not (ROOT / name).is_file() or not (ROOT / name).read_text(encoding="utf-8").strip()
    ]
    report("these documents exist and say something", missing)


def test_no_two_test_files_share_a_name() -> None:
    seen: dict[str, Path] = {}
    twins = []
    for path in python_files("tests"):
        if path.name.startswith("test_") and (first := seen.setdefault(path.name, path)) != path:
            twins.append(f"{place(first)} and {place(path)}")
    report("a test file's name is unique, so that `pytest -k` and a failure name one place", twins)
