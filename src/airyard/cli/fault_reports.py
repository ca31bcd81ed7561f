"""Reports a fault to a server of this release, or of the one before, which needs every field of an event.

Owns: filling in what such a server does not know by the rule's name. Must not know: options, printing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airyard.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airyard.sdk.health import Document, Health


def report(health: Health, node: Callable[[str], Document], event: Mapping[str, Any]) -> Document:
    """Report one event of a node; returns what the server answers. ``node`` reads one by its name.

    Raises: UserError, which names the field; NotFound.
    """
    try:
        return health.report([event])
    except UserError as error:
        # A server that knows the rules says of which event it speaks.
        if error.code != "BAD_HEALTH_EVENT" or "event" in error.details:
            raise
    from airyard.core.health.reports import read  # slow to import, and hardly ever needed

    whole = read(event, time.time_ns() // 1_000_000).as_json()
    whole["machine"] = whole["machine"] or node(whole["node"])["machine"]["name"]
    return health.report([whole])
