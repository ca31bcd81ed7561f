"""Whose matter a bad end is.

Owns: the closed set of causes. Must not know: how one is found (``decide.judge``, ``triage``) or what follows from it
(``decide.retries``).
"""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """Whose matter a bad end is; decides what happens next (``decide.retries``)."""

    USER_CODE = "USER_CODE"
    DATA = "DATA"
    USER_LIMIT = "USER_LIMIT"
    ENVIRONMENT = "ENVIRONMENT"
    PREEMPTED = "PREEMPTED"
    OPERATOR = "OPERATOR"
    NODE = "NODE"
    DEVICE = "DEVICE"
    NETWORK = "NETWORK"
    STORAGE = "STORAGE"
    PLATFORM = "PLATFORM"
    CANCELLED = "CANCELLED"
