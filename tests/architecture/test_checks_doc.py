"""docs/health.md has the catalogue of checks and the limits as they are. Run this file to write them."""

from __future__ import annotations

from pathlib import Path

from airyard.checks.catalogue import table
from airyard.checks.thresholds import packaged
from airyard.core.health.limit_names import NAMES, TABLES

DOC = Path(__file__).resolve().parents[2] / "docs" / "health.md"


def limits() -> str:
    """Return the packaged limits, a row a name."""
    known = packaged()
    rows = ["| name | packaged |", "| --- | --- |"]
    for name in sorted(NAMES):
        values = [f"{each} {known[each][name][0]:.10g}" for each in TABLES if name in known.get(each, {})]
        rows.append(f"| `{name}` | {', '.join(values)} |")
    return "\n".join(rows)


def written() -> str:
    """Return the document with what is present in it."""
    text = DOC.read_text("utf-8")
    for mark, body in (("checks", table()), ("limits", limits())):
        begin, end = f"<!-- {mark} -->\n", f"\n<!-- /{mark} -->"
        head, found, rest = text.partition(begin)
        assert found, f"docs/health.md has no place for {mark}"
        text = f"{head}{begin}{body}{end}{rest.partition(end)[2]}"
    return text


def test_the_catalogue_of_checks_and_the_limits_are_fresh() -> None:
    assert DOC.read_text("utf-8") == written(), "run `python tests/architecture/test_checks_doc.py`"


if __name__ == "__main__":
    DOC.write_text(written(), "utf-8")
