"""How a runner's words on the end of a member become the fact: in its EXITED report and in its exit record alike.

Owns: the reading. Must not know: how the words came here, what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airyard.core.plain import plain_lines, plain_name
from airyard.core.run import Cause, Exit

_MESSAGE = 8_000
"""Characters of what a runner says of an end: the last lines of a tool that failed have room."""


def exit_of(item: Mapping[str, Any], at_ms: int) -> Exit:
    """Read an EXITED report or the ``exited`` part of an exit record."""
    cause = item.get("cause")
    return Exit(
        code=item.get("code"),
        signal=item.get("signal"),
        started=bool(item.get("started")),
        cause=Cause(cause) if cause else None,
        message=plain_lines(str(item.get("message", "")), _MESSAGE),
        at_ms=at_ms,
        duration_ms=int(item.get("duration_ms", 0)),
        out_of_memory=bool(item.get("out_of_memory")),
        address_in_use=bool(item.get("address_in_use")),
        stop_reason=str(item.get("stop_reason") or ""),
        permanent=bool(item.get("permanent")),
        fingerprint=plain_name(str(item.get("fingerprint", ""))),
        fault=plain_name(str(item.get("fault") or "")),
        fault_message=plain_lines(str(item.get("fault_message") or ""), _MESSAGE),
    )
