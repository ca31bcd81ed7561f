"""Finds the node behind a failure that shows only with many: halves of the suspects, filled up with certified nodes.

Owns: which group is tested next, when it ends. Must not know: how a group is tested, pairs.
A missed detection would be final here, so that each group is decided by two of three tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

NEEDED = 2
"""Equal answers that decide a group: two of three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving:
    """How far a search is. ``size`` is kept, so that what needs many nodes to fail may still fail.

    ``second``: the second half of ``suspects`` is being tested. ``failed``/``passed``: answers for this group so far.
    ``ended``: ``found`` has the node; or nothing, and both halves were well (``interaction``: together they are not).
    """

    suspects: tuple[str, ...]
    certified: tuple[str, ...]
    size: int
    second: bool = False
    failed: int = 0
    passed: int = 0
    found: str = ""
    interaction: bool = False
    tests: int = 0

    @property
    def ended(self) -> bool:
        """True when nothing more is to be tested."""
        return bool(self.found) or self.interaction

    @property
    def half(self) -> tuple[str, ...]:
        """The suspects that are tested now."""
        middle = (len(self.suspects) + 1) // 2
        return self.suspects[middle:] if self.second else self.suspects[:middle]

    @property
    def group(self) -> tuple[str, ...]:
        """The nodes to test together: half of the suspects, and as many certified ones as keep the size."""
        mine = self.half
        return (*mine, *self.certified[: max(self.size - len(mine), 0)])


def begin(suspects: Sequence[str], certified: Sequence[str], *, size: int = 0) -> Halving:
    """Start a search among nodes that fail together. ``size``: of the group that failed; 0: all suspects."""
    names = tuple(sorted(set(suspects)))
    good = tuple(sorted(set(certified) - set(names)))
    found = names[0] if len(names) == 1 else ""
    return Halving(
        suspects=names, certified=good, size=size or len(names), found=found, interaction=not names
    )


def told(search: Halving, failed: bool | None) -> Halving:
    """Take in what a test of ``group`` came to; None: it was stopped, and is asked for again."""
    if search.ended or failed is None:
        return search
    search = replace(
        search,
        failed=search.failed + failed,
        passed=search.passed + (not failed),
        tests=search.tests + 1,
    )
    if search.failed >= NEEDED:
        return _narrowed(search)
    if search.passed < NEEDED:
        return search
    if search.second:
        return replace(search, interaction=True)
    return replace(search, second=True, failed=0, passed=0)


def _narrowed(search: Halving) -> Halving:
    left = search.half
    after = replace(search, suspects=left, second=False, failed=0, passed=0)
    return replace(after, found=left[0]) if len(left) == 1 else after
