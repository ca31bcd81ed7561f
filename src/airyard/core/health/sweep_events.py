"""What a sweep of pair tests says of nodes' health, as events for their state machine.

Owns: how grave a bad node and a suspect are. Must not know: how pairs are measured, what follows.
An edge, a leaf switch or a rail speaks against no node.
"""

from __future__ import annotations

from collections.abc import Mapping

from airyard.core.health.facts import Component, HealthEvent, Remedy, Retest, Severity, Source
from airyard.core.health.idle_records import SweepNote

BAD = "fabric.node"
SUSPECT = "fabric.suspect"


def events_of(pool: str, sweep: SweepNote, machines: Mapping[str, str]) -> tuple[HealthEvent, ...]:
    """Return an event for each bad node, which takes it out, and each suspect, which counts only with something else.

    ``machines``: node → its machine; of one that is gone nothing is said. The same sweep says the same events.
    """
    said = [(name, BAD, sweep.why.get(name, "its pair tests failed")) for name in sweep.bad]
    said += [
        (name, SUSPECT, sweep.why.get(name, "some of its pair tests failed, and none could decide"))
        for name in sweep.doubtful
    ]
    return tuple(
        HealthEvent(
            event_id=f"sweep/{pool}/{sweep.number}/{sweep.at_ms}/{name}",
            rule=rule,
            machine=machines[name],
            node=name,
            at_ms=sweep.at_ms,
            component=Component.NETWORK,
            severity=Severity.HIGH if rule == BAD else Severity.WARNING,
            source=Source.CHECK,
            message=message,
            # The mildest that makes adapters and their driver begin anew; it also says that the node is worth mending.
            remedy=Remedy.REBOOT if rule == BAD else Remedy.NONE,
            retest=Retest.T4,
            evidence=(f"sweep {sweep.number} of {pool}: {message}",),
        )
        for name, rule, message in said
        if name in machines
    )
