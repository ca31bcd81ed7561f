"""The search of log lines: what it finds, and that it ends whatever the expression costs."""

from __future__ import annotations

import pytest

from airyard.adapters.line_search import ProcessLineSearch
from airyard.core.errors import UserError


def test_it_finds_what_re_finds() -> None:
    search = ProcessLineSearch(r"line 1.$|\u00fc")
    try:
        assert search.found(["line 12", "line 2", "gr\u00fcn", "a\nb", "\ud800"]) == [
            True,
            False,
            True,
            False,
            False,
        ]
        assert list(search.found([])) == []
        assert search.found(["line 13" if number % 2 else "x" * 50 for number in range(20_000)])[:2] == [
            False,
            True,
        ]
    finally:
        search.close()
        search.close()


def test_what_is_no_expression_is_refused_with_its_place() -> None:
    with pytest.raises(UserError, match="at character 3") as refused:
        ProcessLineSearch("ab(c")
    assert refused.value.code == "BAD_PATTERN"


def test_an_expression_that_never_ends_is_given_up() -> None:
    search = ProcessLineSearch("(a+)+$", patience_s=0.2)
    with pytest.raises(UserError) as refused:
        search.found(["a" * 60 + "!"])
    assert refused.value.code == "PATTERN_TOO_SLOW"
    with pytest.raises(UserError):
        search.found(["a"])
