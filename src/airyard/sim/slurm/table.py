"""The tables that sacct and sacctmgr print with ``--parsable2`` (or ``--parsable``): a header, then one row a line.

Owns: finding the header and its separator, columns in any order, the number of fields.
Must not know: what a column means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from airyard.sim.trace.refusal import Place, refused, shown

FREE_TEXT = frozenset(
    {"jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "extra"}
)
"""Columns whose values may hold the separator; where only the last column is one, its value is read whole."""

_HEADER = re.compile(r"\s*[A-Za-z][\w ]*?\s*(?P<separator>[^\w\s,%\"']+|\t)")


@dataclass(frozen=True, slots=True)
class Row:
    """One line; values are found by the name of their column, in any case."""

    table: Table
    line: int
    values: Sequence[str]

    def get(self, column: str) -> str:
        """Return the value, without blanks around it; empty where the table lacks the column."""
        index = self.table.columns.get(column.lower())
        return self.values[index].strip() if index is not None else ""

    def first(self, *columns: str) -> tuple[str, str]:
        """Return the first of the columns that has a value, and the value; the first column when none has."""
        for column in columns:
            if value := self.get(column):
                return column, value
        return columns[0], ""

    def place(self, column: str | None = None) -> Place:
        """Say where the row, or one value of it, stands."""
        return Place(source=self.table.source, line=self.line, column=column)


@dataclass(slots=True)
class Table:
    """A table that is being read. ``columns`` are positions by lower-case name; ``names`` as they are written.

    ``repeated_header`` is called for every further line that equals the header (files put together).
    """

    source: str
    names: Sequence[str]
    separator: str
    closed: bool
    lines: Iterator[tuple[int, str]]
    command: str
    repeated_header: Callable[[], None]
    columns: dict[str, int] = field(default_factory=dict)

    def rows(self) -> Iterator[Row]:
        """Yield the rows in order; blank lines are passed over.

        Raises: UserError for a line with too few or too many fields.
        """
        header = list(self.names)
        for number, line in self.lines:
            if not line.strip():
                continue
            fields = self._fields(number, line)
            if fields == header:
                self.repeated_header()
                continue
            yield Row(self, number, fields)

    def _fields(self, number: int, line: str) -> list[str]:
        fields = line.split(self.separator)
        if self.closed and fields[-1] == "":
            fields.pop()
        count = len(self.names)
        if len(fields) == count:
            return fields
        free = [name.lower() in FREE_TEXT for name in self.names]
        if len(fields) > count and free[-1] and sum(free) == 1:
            return [*fields[: count - 1], self.separator.join(fields[count - 1 :])]
        problem = f"has {len(fields)} fields where the header names {count}: {shown(line)}"
        raise refused(
            Place(source=self.source, line=number),
            problem,
            fix="A value that holds the separator, or a line break, does this: leave out columns of free text, or put"
            f" JobName alone and last: `{self.command}`.",
        )

    def require(self, *needs: str) -> None:
        """Refuse a table that lacks columns; ``A|B`` is satisfied by any of them. All that lack are named at once."""
        lacking = [
            need for need in needs if not any(name.lower() in self.columns for name in need.split("|"))
        ]
        if not lacking:
            return
        wanted = ", ".join(need.replace("|", " or ") for need in lacking)
        raise refused(
            Place(source=self.source, line=1),
            f"lacks the column{'s' if len(lacking) > 1 else ''} {wanted}",
            fix=f"This prints what is needed: `{self.command}`.",
        )


def open_table(
    lines: Iterable[str],
    source: str,
    *,
    marks: Sequence[str],
    command: str,
    repeated_header: Callable[[], None],
) -> Table:
    """Read the header; ``marks`` are columns that every such table has, by which a header is known.

    ``command`` prints a table of this kind. The separator is whatever stands between the first two names.
    Raises: UserError for an empty file, one without header, one made for people, or a column named twice.
    """
    numbered = enumerate(lines, start=1)
    fix = f"This prints what is needed: `{command}`."
    number, header = next(((n, line) for n, line in numbered if line.strip()), (0, ""))
    if not header:
        raise refused(Place(source=source), "is empty", fix=fix)
    place = Place(source=source, line=number)
    match = _HEADER.match(header)
    words = header.lower().split()
    if match is None and len(words) > 1 and all(mark.lower() in words for mark in marks):
        raise refused(place, "is a table for people, whose columns are cut (no --parsable2)", fix=fix)
    separator = match.group("separator") if match is not None else "|"
    names = [name.strip() for name in header.split(separator)]
    closed = names[-1] == ""
    if closed:
        names.pop()
    lower = [name.lower() for name in names]
    if not all(mark.lower() in lower for mark in marks):
        problem = f"has no header with {' and '.join(marks)}: it begins with {shown(header)}"
        raise refused(place, problem, fix=fix)
    if twice := sorted({name for name in names if lower.count(name.lower()) > 1}):
        raise refused(place, f"names a column twice: {', '.join(twice)}", fix=fix)
    table = Table(source, names, separator, closed, numbered, command, repeated_header)
    table.columns.update({name: index for index, name in enumerate(lower)})
    return table
