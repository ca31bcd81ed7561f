"""The stored form of every event: a golden file guards it, because journals outlive versions."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from airyard.core import codec
from airyard.core.errors import InvariantBroken
from airyard.core.run import Run
from airyard.core.state import ClusterState
from airyard.core.workload import Workload
from core_samples import RUN, SAMPLES

GOLDEN: dict[str, list[Any]] = json.loads(
    (Path(__file__).parent / "golden" / "events.json").read_text(encoding="utf-8")
)
BY_KIND = {type(sample).__name__: sample for sample in SAMPLES}


def test_every_event_kind_has_a_sample_and_a_golden_form() -> None:
    assert set(BY_KIND) == set(codec.EVENT_TYPES), "add a sample to tests/core_samples.py"
    assert set(GOLDEN) == set(codec.EVENT_TYPES), "add its form to golden/events.json; never take one away"


@pytest.mark.parametrize("kind", sorted(codec.EVENT_TYPES))
def test_the_newest_stored_form_is_what_this_version_writes_and_reads(kind: str) -> None:
    written = json.loads(json.dumps(codec.encode_event(BY_KIND[kind])[1]))
    assert written == GOLDEN[kind][-1], "the stored form changed: append the new one, keep the old"
    assert codec.decode_event(kind, GOLDEN[kind][-1]) == BY_KIND[kind]


@pytest.mark.parametrize("kind", sorted(codec.EVENT_TYPES))
def test_every_older_form_still_reads(kind: str) -> None:
    for form in GOLDEN[kind]:
        event = codec.decode_event(kind, form)
        assert codec.decode_event(*codec.encode_event(event)) == event


def test_samples_leave_no_field_at_its_default() -> None:
    """A field at its default is not stored, and would not be guarded."""
    idle = {place for sample in SAMPLES for place in _defaults_in(sample)}
    assert not idle, "set these in tests/core_samples.py"


def _defaults_in(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [place for item in value[-1:] for place in _defaults_in(item)]
    if not is_dataclass(value) or isinstance(value, Workload):
        return []
    out = []
    for field in fields(value):
        item = getattr(value, field.name)
        if field.default is not MISSING and item == field.default:
            out.append(f"{type(value).__name__}.{field.name}")
        out += _defaults_in(item)
    return out


def test_an_unknown_kind_says_what_to_do() -> None:
    with pytest.raises(InvariantBroken, match="'Gone'") as caught:
        codec.decode_event("Gone", {})
    assert caught.value.code == "UNKNOWN_EVENT"
    assert caught.value.fix is not None


@pytest.mark.parametrize(
    "tree", [{}, {"run_id": 1}, {"run_id": 1, "attempt": 0, "member": 0, "exit": 3}, None]
)
def test_a_broken_tree_is_refused_by_name(tree: Any) -> None:
    with pytest.raises(InvariantBroken, match="MemberLost"):
        codec.decode_event("MemberLost", tree)


def test_unknown_fields_of_a_newer_version_are_passed_over() -> None:
    tree = {"run_id": 5, "colour": "green"}
    assert codec.decode_event("RunArchived", tree) == BY_KIND["RunArchived"]


def test_fields_at_their_default_are_not_stored() -> None:
    assert "owner" not in codec.encode(codec.decode(Run, codec.encode(RUN)).attempts[0].members[0])
    assert set(codec.encode_event(BY_KIND["RunArchived"])[1]) == {"run_id"}


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="format 99"):
        ClusterState.from_json({"format": 99})
