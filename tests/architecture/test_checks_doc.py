"""docs/health.md has the catalogue of checks as it is. Run this file to write it."""

from __future__ import annotations

from pathlib import Path

from airyard.checks.catalogue import table

DOC = Path(__file__).resolve().parents[2] / "docs" / "health.md"
BEGIN, END = "<!-- checks -->\n", "\n<!-- /checks -->"


def written() -> str:
    """Return the document with the present catalogue in it."""
    text = DOC.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def test_the_catalogue_of_checks_is_fresh() -> None:
    assert DOC.read_text("utf-8") == written(), "run `python tests/architecture/test_checks_doc.py`"


if __name__ == "__main__":
    DOC.write_text(written(), "utf-8")
