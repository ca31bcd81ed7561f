"""The hash of a code tree: a fixed form that client, server and node compute alike."""

from __future__ import annotations

from dataclasses import replace

from airyard.core.code_tree import EXECUTABLE_MODE, FILE_MODE, SYMLINK_MODE, TreeEntry, tree_hash

ENTRIES = [
    TreeEntry(path="code/b", mode=FILE_MODE, digest="11"),
    TreeEntry(path="code/a", mode=EXECUTABLE_MODE, digest="22"),
    TreeEntry(path="code/bad-\udcff", mode=SYMLINK_MODE, digest="33"),
]


def test_the_form_is_golden_and_ignores_order() -> None:
    golden = "bac718b61a21cf1cae63e4412f05f782b9c95295429ad8b11e9ce541341e711b"
    assert tree_hash(ENTRIES) == golden
    assert tree_hash(reversed(ENTRIES)) == golden


def test_every_part_of_an_entry_counts() -> None:
    base = tree_hash(ENTRIES)
    for changed in (
        replace(ENTRIES[0], path="code/c"),
        replace(ENTRIES[0], mode=EXECUTABLE_MODE),
        replace(ENTRIES[0], digest="12"),
    ):
        assert tree_hash([changed, *ENTRIES[1:]]) != base
    assert tree_hash(ENTRIES[1:]) != base
