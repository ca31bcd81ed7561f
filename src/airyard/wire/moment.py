"""A time on the wire: RFC 3339 with its zone, in the core's milliseconds once it is read.

Owns: the type of such fields. Must not know: which requests have them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema


def _moment_ms(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError("is not a time such as 2026-12-02T08:00:00Z")
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError
        return int(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("is not a time with a zone, such as 2026-12-02T08:00:00Z") from None


Moment = Annotated[
    int, BeforeValidator(_moment_ms), WithJsonSchema({"type": "string", "format": "date-time"})
]
