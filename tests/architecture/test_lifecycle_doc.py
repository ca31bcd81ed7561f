"""``docs/lifecycle.md`` and ``docs/errors.md`` are made from the code and must be fresh.

``python tests/architecture/test_lifecycle_doc.py`` writes them.
"""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path

import pytest

from airyard.core import errors
from airyard.core.decide.judge import NEXT_STEP
from airyard.core.decide.retries import BACKOFF_S, BUDGETED, DOWNLOAD_RETRIES, FAULTS, FAULTS_A_DAY, YIELDED
from airyard.core.lifecycle import TABLES
from airyard.core.run import Cause, Outcome, StopReason
from airyard.core.scheduling.plan import Reason

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "airyard"
MADE = "<!-- Made by tests/architecture/test_lifecycle_doc.py from the code; do not edit. -->"
START_OF = {"Run": "QUEUED", "Attempt": "PLACED", "Member": "STARTING", "Node": "HEALTHY"}
ABOUT = {
    "Run": "What people submitted. An ended run goes back to QUEUED only when somebody resumes it.",
    "Attempt": "One try of a run on one placement. A wish to stop is a field (when, by whom, why); STOPPING says that"
    " it was made.",
    "Member": "The command on one node of an attempt. EXITED and LOST mean that nothing of it is left: its devices are"
    " free.",
    "Node": "The health of a node. What leads from RETESTING to work is a test that passed twice; MAINTENANCE and"
    " RETIRED are left by a person's word only.",
}


def lifecycle_page() -> str:
    """Return ``docs/lifecycle.md``."""
    parts = [
        "# Lifecycles",
        MADE,
        "The tables of `core/lifecycle.py`; whatever is not drawn here raises `IllegalTransition`.",
    ]
    for name, table in TABLES.items():
        parts += [f"## {name}", ABOUT[name], _diagram(START_OF[name], table)]
    parts += ["## Ends", _ends(), "## Causes", _causes()]
    return "\n\n".join(parts) + "\n"


def _diagram(start: str, table: object) -> str:
    assert isinstance(table, dict)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start}"]
    for before, allowed in table.items():
        # A set has no order of its own: that of the enumeration is the order of a life.
        for after in type(before):
            if after in allowed:
                lines.append(f"    {before.value} --> {after.value}")
    lines += [f"    {state.value} --> [*]" for state, allowed in table.items() if _last(state, allowed)]
    return "\n".join([*lines, "```"])


def _last(state: Enum, allowed: frozenset[Enum]) -> bool:
    return not allowed or state.value == "ENDED"


def _ends() -> str:
    outcomes = ", ".join(f"`{outcome.value}`" for outcome in Outcome)
    reasons = ", ".join(f"`{reason.value}`" for reason in StopReason)
    waiting = ", ".join(f"`{reason.value}`" for reason in Reason)
    return (
        f"Outcomes: {outcomes}; PREEMPTED and LOST are of attempts only.\n\n"
        f"Why an attempt is stopped: {reasons}.\n\nWhy a run waits: {waiting}."
    )


def _causes() -> str:
    lines = ["| cause | next attempt | next step that people are told |", "| --- | --- | --- |"]
    lines += [f"| {cause.value} | {_again(cause)} | {NEXT_STEP[cause]} |" for cause in Cause]
    waits = ", ".join(map(str, BACKOFF_S[:-1]))
    return (
        "\n".join(lines) + f"\n\nAttempts wait {waits}, then {BACKOFF_S[-1]} s, counted by failures in a row."
    )


def _again(cause: Cause) -> str:
    if cause in BUDGETED:
        return "yes, spends `max_retries`; no for what can never do better, and for a crash loop"
    if cause in YIELDED:
        return "always, at once, place in the queue kept"
    if cause in FAULTS:
        return f"up to {FAULTS_A_DAY} a day, avoiding the node"
    if cause is Cause.ENVIRONMENT:
        return f"{DOWNLOAD_RETRIES} for a failed download, none when the dependencies cannot be resolved"
    return "none"


def errors_page() -> str:
    """Return ``docs/errors.md``."""
    lines = [
        "# Errors",
        "",
        MADE,
        "",
        "Every error has a kind (what can be done about it), a stable code, a message, a next step and details.",
        "",
        "| class | kind | default code | HTTP | exit code | worth repeating |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for cls in errors.KINDS:
        repeat = "yes" if cls.retryable else "no"
        lines.append(
            f"| {cls.__name__} | {cls.kind} | `{cls.default_code}` | {cls.http_status} | {cls.exit_code} | {repeat} |"
        )
    lines += ["", "## Codes", "", "| code | raised as |", "| --- | --- |"]
    lines += [f"| `{code}` | {', '.join(sorted(classes))} |" for code, classes in sorted(_codes().items())]
    return "\n".join(lines) + "\n"


def _codes() -> dict[str, set[str]]:
    """Find the codes that the source gives to errors by name."""
    names = {cls.__name__ for cls in errors.KINDS}
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                for keyword in node.keywords:
                    if keyword.arg == "code" and (code := _code_in(keyword.value)) is not None:
                        found.setdefault(code, set()).add(node.func.id)
    return found


def _code_in(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


PAGES = {"lifecycle.md": lifecycle_page, "errors.md": errors_page}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_fresh(name: str) -> None:
    path = ROOT / "docs" / name
    assert path.is_file()
    assert path.read_text(encoding="utf-8") == PAGES[name](), (
        "write it again: python tests/architecture/test_lifecycle_doc.py"
    )


if __name__ == "__main__":
    for page, make in PAGES.items():
        (ROOT / "docs" / page).write_text(make(), encoding="utf-8")
