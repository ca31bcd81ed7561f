"""The table in docs/operate/people.md is the one that authorises: run this file to write it again."""

from __future__ import annotations

from pathlib import Path

from airyard.core.access.roles import Kind, Role
from airyard.core.access.table import KIND_BARS, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "people.md"
BEGIN = "<!-- made from core/access/table.py: python tests/architecture/test_people_doc.py -->\n"
END = "<!-- end -->\n"


def made() -> str:
    """Return the table, and what kinds of principal may not do."""
    lines = [
        f"| object | verb | {' | '.join(role.value for role in Role)} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {thing.value} | {verb.value} | {' | '.join(rule.value for rule in row)} |"
        for (thing, verb), row in TABLE.items()
    ]
    lines.append("")
    for kind in Kind:
        # A set has no order of its own: that of the table is the page's.
        bars = [f"{verb.value} {thing.value}" for thing, verb in TABLE if (thing, verb) in KIND_BARS[kind]]
        if bars:
            lines += [f"Whatever its role, a token of kind `{kind.value}` may not: {', '.join(bars)}.", ""]
    return "\n".join(lines)


def page() -> str:
    """Return the page with a fresh table."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return head + BEGIN + "\n" + made() + "\n" + END + rest.partition(END)[2]


def test_the_page_has_the_table_that_authorises() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it again: python tests/architecture/test_people_doc.py"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
