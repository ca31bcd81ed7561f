"""docs/health.md has the rules of monitoring as they are. Run this file to write it."""

from __future__ import annotations

import re
from pathlib import Path

from airyard.checks import gpu_watch, host_watch, port_watch
from airyard.checks.watch_catalogue import RULES, table

DOC = Path(__file__).resolve().parents[2] / "docs" / "health.md"
BEGIN, END = "<!-- watch -->\n", "\n<!-- /watch -->"


def written() -> str:
    """Return the document with the present rules in it."""
    text = DOC.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def test_the_rules_of_monitoring_are_fresh() -> None:
    assert DOC.read_text("utf-8") == written(), "run `python tests/architecture/test_watch_doc.py`"


def test_every_rule_in_the_code_is_in_the_table() -> None:
    for module in (gpu_watch, host_watch, port_watch):
        assert module.__file__ is not None
        named = set(
            re.findall(r'"((?:gpu|nvml|driver|rdma|host)\.[a-z_]+)"', Path(module.__file__).read_text())
        )
        assert named == set(module.RULES)
    names = [name for rules in RULES.values() for name in rules]
    assert len(names) == len(set(names))


if __name__ == "__main__":
    DOC.write_text(written(), "utf-8")
