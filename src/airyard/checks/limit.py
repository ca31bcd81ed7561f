"""A limit that knows who set it, also when it was scaled: what a failed check went by is told with its layer.

Owns: that number, the words for its layers. Must not know: files, tables, any check.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airyard.core.health.facts import CheckResult

SITE = "site"
"""The source of what a machine's own file gives without one."""
OF_POOL = "pool"
"""How the source of a pool's limit begins; its name follows."""
OF_LIMIT = "limit"
"""The detail of a result that names the limit and its layer."""


class Limit(float):
    """A number with the names and sources of the limits that it was made of. Otherwise it is its number."""

    layers: tuple[tuple[str, str], ...]

    def __new__(cls, value: float, layers: tuple[tuple[str, str], ...] = ()) -> Limit:
        """Keep the layers beside the value."""
        made = super().__new__(cls, value)
        made.layers = layers
        return made

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        """Leave this process, and be copied, as a plain number."""
        return float, (float(self),)

    def _made(self, value: Any, *others: object) -> Any:
        if not isinstance(value, float):
            return value
        more = tuple(layer for one in others if isinstance(one, Limit) for layer in one.layers)
        return Limit(value, tuple(dict.fromkeys((*self.layers, *more))))

    def __mul__(self, other: float) -> Any:
        return self._made(super().__mul__(other), other)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Any:
        return self._made(super().__truediv__(other), other)

    def __rtruediv__(self, other: float) -> Any:
        return self._made(super().__rtruediv__(other), other)

    def __add__(self, other: float) -> Any:
        return self._made(super().__add__(other), other)

    __radd__ = __add__

    def __sub__(self, other: float) -> Any:
        return self._made(super().__sub__(other), other)

    def __rsub__(self, other: float) -> Any:
        return self._made(super().__rsub__(other), other)


def is_own(source: str) -> bool:
    """True for the source of a limit that a machine or a pool set."""
    return source == SITE or source.startswith(f"{OF_POOL} ")


def whose(value: float | None) -> str:
    """Return the limits that a machine or pool set and a number came of: who set them has to know. Empty: none."""
    layers = value.layers if isinstance(value, Limit) else ()
    told = [
        f"{name} of {'the machine' if source == SITE else source}"
        for name, source in layers
        if is_own(source)
    ]
    return ", ".join(told)


def with_layer(result: CheckResult) -> CheckResult:
    """Return a result that says in its details whose limit it went by, where that is not the packaged one."""
    said = whose(result.threshold)
    return replace(result, details={**result.details, OF_LIMIT: said}) if said else result
