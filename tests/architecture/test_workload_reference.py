"""docs/workload.md says what the models say, and every field says what it means."""

from __future__ import annotations

from pathlib import Path

from airyard.spec.catalogue import every_field
from airyard.spec.reference import reference_text

REFERENCE = Path(__file__).parents[2] / "docs" / "workload.md"


def test_the_reference_is_fresh() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference_text(), (
        "docs/workload.md is stale: python -m airyard.spec.reference > docs/workload.md"
    )


def test_every_field_has_a_description_and_a_type() -> None:
    fields = list(every_field())
    assert len(fields) > 70
    assert [field.dotted for field in fields if not field.description.endswith(".")] == []
    assert [field.dotted for field in fields if field.type_text == "value"] == []
