"""``core`` decides and does nothing else: no I/O, clock, randomness, concurrency or third-party code.

import-linter sees which packages are imported; this test reads the source, so that banned standard
modules and banned calls are seen too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import airyard

SOURCE = Path(airyard.__file__).parent
CORE = SOURCE / "core"

# Standard modules that reach the world outside the function: what is needed of it comes as an argument.
BANNED_MODULES = frozenset(
    {
        "_thread", "asyncio", "concurrent", "ctypes", "fcntl", "glob", "http", "io", "logging", "mmap",
        "multiprocessing", "os", "pickle", "platform", "queue", "random", "resource", "sched", "secrets",
        "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile",
        "threading", "time", "urllib.request", "uuid",
    }
)  # fmt: skip
BANNED_CALLS = frozenset({"open", "print", "input", "exec", "eval", "breakpoint"})
# ``datetime`` may turn a given number into text, and ``pathlib`` may join names; neither may look around.
BANNED_METHODS = frozenset({"now", "utcnow", "today", "read_text", "write_text", "read_bytes", "write_bytes"})
CLOCK_OWNERS = frozenset({"datetime", "date", "dt"})


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) for one parsed module of core."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield from ((node.lineno, problem) for problem in _import_problems(alias.name))
            case ast.ImportFrom(module=module, level=0, names=names):
                for alias in names:
                    problems = _import_problems(f"{module}.{alias.name}") or _import_problems(module or "")
                    yield from ((node.lineno, problem) for problem in problems)
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield node.lineno, f"calls {name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method)):
                if owner in CLOCK_OWNERS and method in BANNED_METHODS:
                    yield node.lineno, f"calls {owner}.{method}(): time is an argument"
            case _:
                pass


def _import_problems(name: str) -> list[str]:
    top = name.split(".")[0]
    if any(name == banned or name.startswith(banned + ".") for banned in BANNED_MODULES):
        return [f"imports {name}, which core may not"]
    if top == "airyard":
        return (
            []
            if name == "airyard.core" or name.startswith("airyard.core.")
            else [f"imports {name}, outside core"]
        )
    return [] if top in sys.stdlib_module_names else [f"imports {name}, which is not in the standard library"]


def test_core_imports_and_calls_nothing_of_the_world() -> None:
    found = [
        f"{path.relative_to(SOURCE.parent)}:{line}: {problem}"
        for path in sorted(CORE.rglob("*.py"))
        for line, problem in findings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "core must stay pure:\n" + "\n".join(found)


def test_the_check_sees_what_it_bans() -> None:
    bad = "\n".join(
        [
            "import os.path",
            "from time import monotonic",
            "from urllib import request",
            "import pydantic",
            "from airyard.app import loop",
            "open('x')",
            "datetime.now()",
        ]
    )
    assert [line for line, _ in findings(ast.parse(bad))] == [1, 2, 3, 4, 5, 6, 7]
    good = "import json\nfrom urllib.parse import quote\nfrom airyard.core import errors\nself.open()"
    assert not list(findings(ast.parse(good)))
