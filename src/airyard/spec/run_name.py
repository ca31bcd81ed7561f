"""The rule for a run's name where it does not come from a workload file.

Owns: the check of one name and its error. Must not know: who gives names.
"""

from __future__ import annotations

import re

from airyard.core.errors import UserError
from airyard.core.workload import RUN_NAME_PATTERN, RUN_NAME_RULE


def checked_run_name(name: str) -> str:
    """Return the name if it may name a run. Raises: UserError (``BAD_NAME``)."""
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise UserError(f"{name!r} is not {RUN_NAME_RULE}.", code="BAD_NAME")
    return name
