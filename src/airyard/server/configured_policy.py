"""The policy that the configuration names: read before the server starts, declared once its nodes are known.

Owns: when a file counts, and how its refusal is told. Must not know: the rules, other parts of the server.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from airyard.app.loop import ControlLoop
from airyard.core.commands import BeginToLead, DeclarePolicy
from airyard.core.decide import Declared
from airyard.core.errors import AiryardError, UserError
from airyard.spec.yard import LoadedYard, load_yard, placed

_log = structlog.get_logger("airyard.policy")
DECIDE_S = 60


def read_configured(file: str | None) -> LoadedYard | None:
    """Read the file if one is named. Raises: UserError with all its problems, or why it cannot be read."""
    if file is None:
        return None
    try:
        return load_yard(Path(file))
    except UserError as error:
        if error.code != "FILE_NOT_FOUND":
            raise
        raise UserError(
            f"[policy] file of the configuration: {error.message}",
            code="BAD_CONFIG",
            fix="name a yard.yaml there, relative to the configuration file, or take the key out",
        ) from error


def begin_to_lead(loop: ControlLoop, loaded: LoadedYard | None, owner: str) -> None:
    """Declare the file's policy, and then have it known that this server leads. Blocks. Raises: UserError."""
    declare_configured(loop, loaded, owner)
    loop.submit(BeginToLead()).result(timeout=DECIDE_S)


def declare_configured(loop: ControlLoop, loaded: LoadedYard | None, owner: str) -> None:
    """Declare the file's policy if it was edited since it was declared last. Blocks.

    Raises: UserError when it does not fit the yard, with every problem and its line.
    """
    if loaded is None:
        return
    command = DeclarePolicy(policy=loaded.policy, by=owner, source="config", digest=loaded.digest)
    try:
        reply = loop.submit(command).result(timeout=DECIDE_S)
    except AiryardError as error:
        raise placed(error, loaded) from error
    assert isinstance(reply, Declared)
    for warning in reply.warnings:
        where = str(loaded.place(".".join(warning.path)))
        _log.warning("policy_doubtful", place=where, message=warning.message, fix=warning.fix)
    if reply.changed:
        _log.info("policy_declared", file=loaded.file, changes=len(reply.changes))
