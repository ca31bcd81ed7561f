"""Whose a failure is of what machines share: of the node that shows it, or of the server that all of them use.

Owns: which checks look at such a thing and at which, when a failure is the node's own.
Must not know: who ran a check, what follows for the node, incidents of several machines (``facility.py``). Pure.

A node alone cannot tell a mount of its own that is broken from a file server that is. Others can: the start that it
refused passes the same check, in the same folders, on another machine. Once may be chance (the server was back); a
node that refuses again after that is what is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.states import Hit

_STORAGE = ("host.mounts", "storage.writes")
CHECKS = frozenset({*_STORAGE, "host.names", "net.peers"})
"""Checks whose failure is as likely that of a server or a switch: alone it makes a suspect, and takes nothing out."""
OF_STORAGE = frozenset({*_STORAGE, *(f"check.{name}" for name in _STORAGE)})
"""What monitors and checks say of storage: one thing, however many of them say it."""
ALONE = "shared.alone"
AGAIN = "shared.alone_again"
WITHIN_MS = 600_000
"""What passes so long after a refusal is of the same time."""
PASSED = "passed."
"""How a start's report names the checks that it has just passed: ``passed.storage.writes``."""
REFUSED = re.compile(r"^preflight: node \S+ failed ([\w.]+): ")
_ON_MOUNT = re.compile(r"^/.*? \(on (/.*?), \w[\w.]*\): ")
_PATH = re.compile(r"^(/.*?)(?: \(\w[\w.]*\) |: | does not answer)")
_CHARACTERS = 200


def refused_by(message: str) -> str:
    """Return the shared check by which a start was refused, from its runner's words; empty where it was another."""
    found = REFUSED.match(message)
    return found[1] if found is not None and found[1] in CHECKS else ""


def storage_of(event: HealthEvent) -> str:
    """Return which storage an event speaks against; empty for what is about something else, or only printed.

    A folder counts as the mount that it is on: runs have folders of their own, and one file server.
    """
    if event.rule not in OF_STORAGE or not event.confirmed or event.source is Source.JOB_LOG:
        return ""
    said = REFUSED.sub("", event.message)
    found = _ON_MOUNT.match(said) or _PATH.match(said)
    return found[1][:_CHARACTERS] if found else "some folder"


def alone(
    check: str,
    *,
    node: str,
    machine: str,
    refused_ms: int,
    start: str,
    passed_on: str,
    now_ms: int,
    hits: Iterable[Hit],
) -> HealthEvent:
    """Return the event of a start that ``node`` refused by a check and another machine's node has passed since.

    ``hits``: what speaks against the node. Only where it refused after it was known that others pass, it is ``AGAIN``.
    """
    again = any(hit.rule == ALONE and hit.at_ms < refused_ms for hit in hits)
    said = f"{check} failed here alone: the same start passed it on {passed_on}"
    return HealthEvent(
        event_id=f"shared/{start}/{check}",
        rule=AGAIN if again else ALONE,
        machine=machine,
        node=node,
        at_ms=now_ms,
        component=Component.HOST,
        severity=Severity.WARNING,
        source=Source.CHECK,
        message=said + (", and not for the first time" if again else ""),
        evidence=(said,),
    )
