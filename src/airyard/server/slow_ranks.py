"""Has it journalled when a throttled GPU slows a rank of a running gang down.

Owns: when the control loop is asked. Must not know: which GPU explains which rank, what follows from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from airyard.app.control import Control
from airyard.app.gang_slowness import effects
from airyard.core.cluster import Node
from airyard.core.commands import HealthReported
from airyard.core.health.slowing import Effect, event_of
from airyard.core.health.states import NodeHealth
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, AttemptState
from airyard.server.context import ServerContext

BY = "stragglers"


async def weigh_slow(context: ServerContext, key: MemberKey) -> None:
    """Judge the slow ranks of a gang of which a window has just ended. Cost: its ranks; a command for news."""

    def read(control: Control) -> Attempt | None:
        found = control.state.member(key)
        return found[1] if found is not None else None

    attempt = context.loop.peek(read)
    if attempt is None or attempt.state is not AttemptState.RUNNING:
        return
    found = effects_of(context, attempt, context.clock.monotonic_ms())
    if not found:
        return
    names = {one.slow.node for one in found}

    def known(control: Control) -> Mapping[str, NodeHealth]:
        return {name: one for name, one in control.state.health.items() if name in names}

    health, now_ms = context.loop.peek(known), context.clock.now_ms()
    events = [
        event_of(one, health.get(one.slow.node), run_id=key.run_id, attempt=key.attempt, now_ms=now_ms)
        for one in found
    ]
    news = tuple(one for one in events if one is not None and not context.throttles.was_told(one.event_id))
    if news:
        await asyncio.wrap_future(context.ask(HealthReported(events=news, by=BY)))
        for one in news:
            context.throttles.told(one.event_id)


def effects_of(context: ServerContext, attempt: Attempt, now_ms: int) -> list[Effect]:
    """Return the slow ranks of an attempt that their throttled GPUs explain."""
    names = {member.node for member in attempt.members}

    def read(control: Control) -> Mapping[str, Node]:
        return {name: control.state.nodes[name] for name in names if name in control.state.nodes}

    return effects(context.steps, context.throttles, attempt, context.loop.peek(read), now_ms)
