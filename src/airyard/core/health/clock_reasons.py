"""Why a GPU's clocks are held lower, as NVML's bits, and what that means.

Owns: the bits of heat, hardware and the power brake, their words. Must not know: who read them, what follows.
"""

from __future__ import annotations

HW_SLOWDOWN = 0x008
"""The umbrella of what the hardware does by itself: on beside heat and the brake, too."""
SW_THERMAL = 0x020
HW_THERMAL = 0x040
POWER_BRAKE = 0x080
"""Pulled by the chassis or its supply, not by the GPU."""
HARD = HW_SLOWDOWN | HW_THERMAL | POWER_BRAKE
"""Slowed down by the hardware: its own trip, heat, the power brake."""
HEAT = SW_THERMAL | HW_THERMAL
SLOWED = HARD | HEAT
"""What should not be while a GPU works; power caps, clocks that were asked for and idleness are usual."""


def in_words(reasons: int) -> str:
    """Return what slows a GPU down, the umbrella only where nothing under it is known; empty for what is usual."""
    told = [words for bits, words in ((POWER_BRAKE, "the power brake"), (HEAT, "heat")) if reasons & bits]
    if not told and reasons & HW_SLOWDOWN:
        return "the hardware"
    return " and ".join(told)


def is_brake_alone(reasons: int) -> bool:
    """True when nothing but the power brake slows it down: no fault of the GPU."""
    return reasons & SLOWED & ~HW_SLOWDOWN == POWER_BRAKE
