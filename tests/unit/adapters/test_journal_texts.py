"""A snapshot written piece by piece is the text that one call would have written."""

from __future__ import annotations

import json

import pytest

from airyard.adapters.journal_rows import texts, to_text

TREES = [
    {},
    {"seq": 3},
    {"runs": []},
    {"seq": 3, "runs": [{"name": "ä"}, {"tags": ["a", "b"]}], "policy": {"pools": []}, "keys": []},
]


@pytest.mark.parametrize("tree", TREES)
def test_pieces_make_the_whole(tree: dict[str, object]) -> None:
    assert "".join(texts(tree)) == to_text(tree)


@pytest.mark.parametrize("tree", TREES)
def test_iterators_stand_for_lists(tree: dict[str, object]) -> None:
    lazy = {name: iter(value) if isinstance(value, list) else value for name, value in tree.items()}
    assert json.loads("".join(texts(lazy))) == tree
