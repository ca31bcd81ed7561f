"""However a stream is cut, masking shows the same bytes, and they are what the rule says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.node.masking import MASK, Masker, secret_forms

# A two-letter alphabet makes secrets overlap each other, themselves and the borders all the time.
secret_lists = st.lists(st.text("ab\n", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=4)
streams = st.text("abc\n", max_size=60).map(str.encode)


def rule(secrets: list[bytes], data: bytes) -> bytes:
    """The rule word by word: mark every covered byte, then one mask for each cluster of overlaps."""
    spans = sorted(
        (at, at + len(form))
        for form in secret_forms(secrets)
        for at in range(len(data))
        if data.startswith(form, at)
    )
    shown, end = b"", 0
    for start, stop in spans:
        if start >= end:
            shown += data[end:start] + MASK
        end = max(end, stop)
    return shown + data[end:]


@given(secret_lists, streams)
@settings(max_examples=200)
def test_two_pieces_at_every_offset(secrets: list[bytes], data: bytes) -> None:
    expected = rule(secrets, data)
    for cut in range(len(data) + 1):
        masker = Masker(secrets)
        assert masker.feed(data[:cut]) + masker.feed(data[cut:]) + masker.flush() == expected


@given(secret_lists, streams)
@settings(max_examples=200)
def test_byte_by_byte(secrets: list[bytes], data: bytes) -> None:
    masker = Masker(secrets)
    shown = b"".join(masker.feed(data[at : at + 1]) for at in range(len(data)))
    assert shown + masker.flush() == rule(secrets, data)
