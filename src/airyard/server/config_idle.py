"""``[health.idle]``: how nodes are tested while nobody needs them.

Owns: the keys, their limits and defaults. Must not know: how tests are run.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from airyard.core.health import idle
from airyard.server.idle_rounds import IdleSettings

_AFTER_MINUTES = idle.LIGHT_AFTER_MS / idle.MINUTE_MS
_LIGHT_HOURS = idle.LIGHT_EVERY_MS / idle.HOUR_MS
_DEEP_HOURS = idle.DEEP_EVERY_MS / idle.HOUR_MS
_YEAR_HOURS = 365 * 24
Hours = Annotated[float, Field(gt=0, le=_YEAR_HOURS)]


class IdleSection(BaseModel):
    """When idle nodes are tested, and how many at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    cpu_slots: bool = False
    """Whether slots of CPUs are tested, too: a laptop is not to be warmed by tests that nobody asked for."""
    after_minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = _AFTER_MINUTES
    """So long a node has to have been idle."""
    light_every_hours: Hours = _LIGHT_HOURS
    deep_every_hours: Hours = _DEEP_HOURS
    sweep_every_hours: Hours = _DEEP_HOURS
    share: Annotated[float, Field(gt=0, le=1)] = idle.IDLE_SHARE
    """Of the idle nodes at most this share is tested at a time; one node, or one pair, always may be."""
    sweep_from: Annotated[int, Field(ge=4, le=10_000)] = idle.SWEEP_FROM
    """So many idle nodes of a pool are worth a sweep of pairs."""
    pair_gb_s: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """The least bandwidth of a pair; 0: pairs are only compared with each other."""

    def settings(self) -> IdleSettings:
        """Return the section as the tester takes it."""
        return IdleSettings(
            rules=idle.IdleRules(
                after_ms=int(self.after_minutes * idle.MINUTE_MS),
                light_every_ms=int(self.light_every_hours * idle.HOUR_MS),
                deep_every_ms=int(self.deep_every_hours * idle.HOUR_MS),
                sweep_every_ms=int(self.sweep_every_hours * idle.HOUR_MS),
                share=self.share,
                sweep_from=self.sweep_from,
            ),
            cpu_slots=self.cpu_slots,
            pair_gb_s=self.pair_gb_s,
        )
