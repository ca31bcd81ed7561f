"""Masking: values, lines of values, and what is held back."""

from __future__ import annotations

from airyard.node.masking import Masker, secret_forms


def mask(secrets: list[bytes], *chunks: bytes) -> bytes:
    masker = Masker(secrets)
    return b"".join(map(masker.feed, chunks)) + masker.flush()


def test_without_secrets_the_very_same_object_passes() -> None:
    data = b"anything"
    assert Masker([]).feed(data) is data


def test_ordinary_output_is_not_copied_nor_delayed() -> None:
    data = b"epoch 1 loss 0.5\n"
    assert Masker([b"hunter2!"]).feed(data) is data


def test_value_is_masked_wherever_it_is_cut() -> None:
    assert mask([b"hunter2!"], b"a hunt", b"er2! b hunter2!hunter2!") == b"a *** b ******"


def test_only_the_possible_prefix_is_held_back() -> None:
    masker = Masker([b"hunter2!"])
    assert masker.feed(b"password: hunt") == b"password: "
    assert masker.feed(b"ing\n") == b"hunting\n"
    assert masker.flush() == b""


def test_each_long_enough_line_counts() -> None:
    key = b"-----BEGIN-----\n  abcdefgh\nabc\nend\n"
    assert secret_forms([key]) == (key, b"-----BEGIN-----", b"abcdefgh")
    assert mask([key], b"x abcdefgh y abc\n") == b"x *** y abc\n"
    assert mask([key], key) == b"***"


def test_trailing_newline_of_a_value_does_not_hide_it() -> None:
    assert mask([b"token-123\n"], b"using token-123 now") == b"using *** now"


def test_longest_of_overlapping_values_wins() -> None:
    assert mask([b"abcdef", b"abcdefghij"], b"-abcdef", b"ghij-abcdef-") == b"-***-***-"


def test_overlapping_occurrences_leave_nothing_visible() -> None:
    assert mask([b"xabcde", b"abcdefgh"], b"xabcde", b"fgh.") == b"***."


def test_value_that_overlaps_itself() -> None:
    assert mask([b"abababab"], b"ababababab-") == b"***-"


def test_unfinished_value_is_shown_at_the_end() -> None:
    assert mask([b"hunter2!"], b"hunter2") == b"hunter2"


def test_empty_value_masks_nothing() -> None:
    assert mask([b""], b"abc") == b"abc"
