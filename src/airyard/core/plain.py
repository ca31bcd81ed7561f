"""Text that a machine, a check or a person's monitor sent, made fit to be kept and shown.

Owns: what is escaped, where it is cut, the mark of a cut. Must not know: who said it, where it is shown.

Terminals obey control characters, and a journal, a message and a metric keep what they are given: so a text is made
plain where it becomes a fact, once. What is plain already stays as it is.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable

MESSAGE = 1_000
"""Characters of a message, a reason or a next step."""
LINE = 500
"""Characters of a line of evidence."""
LINES = 5
"""Lines of evidence that are kept."""
NAME = 200
"""Characters of a name or an id."""
_SPACES = str.maketrans(dict.fromkeys("\t\xa0\u2002\u2003\u2007\u2009\u202f\u3000", " "))
_MARK_LETTERS = 16
_LARGEST = sys.float_info.max


def plain(text: str, most: int = MESSAGE) -> str:
    """Return a text of one line without control characters, cut to ``most`` characters with a mark that says so."""
    return _fitted(_escaped(text[: most + 1]), most, len(text))


def plain_lines(text: str, most: int) -> str:
    """Return a text with its line breaks, else as ``plain``."""
    kept = "\n".join(_escaped(line) for line in text[: most + 1].split("\n"))
    return _fitted(kept, most, len(text))


def plain_name(text: str) -> str:
    """Return a name as ``plain``; of one that is too long the end is a mark that other names do not have."""
    name = _escaped(text[: NAME + 1])
    if len(name) <= NAME:
        return name
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK_LETTERS]
    return f"{name[: NAME - _MARK_LETTERS - 2]}…#{mark}"


def plain_evidence(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first lines of evidence, and how many more there were."""
    found = tuple(plain(line, LINE) for line in lines)
    return found if len(found) <= LINES else (*found[: LINES - 1], f"… ({len(found) - LINES + 1} more lines)")


def is_number(value: object) -> bool:
    """True for a number that JSON has a word for, and that a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _fitted(text: str, most: int, whole: int) -> str:
    if len(text) <= most:
        return text
    mark = f"… (cut: {whole} characters)"
    return (text[: max(most - len(mark), 0)] + mark)[:most]


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    spaced = text.translate(_SPACES)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in spaced)
