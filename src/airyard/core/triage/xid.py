"""The driver's numbered faults (Xid): what each means, whether it counts against the node, and what it asks for.

Owns: the table of Xid 1 to 172 for Ampere and newer, and which of several in one burst is the root.
Must not know: lines of a log (``kernel_lines.py``), NVLink's registers (``nvlink.py``), what becomes of a node.

Source: NVIDIA's Xid catalogue (2025-10-29) and what open fleet tools make of it; where they disagree the milder reading
was taken, because a second occurrence is acted on anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airyard.core.health.facts import Remedy, Retest
from airyard.core.triage.causes import Action, FailureClass


class Weight(Enum):
    """Whether an Xid speaks against the node that shows it."""

    HARD = "hard"
    """Alone and at once."""
    SOFT = "soft"
    """Only when it is repeated; it is counted."""
    NEVER = "never"
    CASCADE = "cascade"
    """It follows from another one, which is to be looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFacts:
    """What is known of one Xid. ``precedence``: of several in a burst the highest is the root."""

    code: int
    meaning: str
    failure_class: FailureClass
    weight: Weight
    action: Action
    remedy: Remedy
    retest: Retest
    precedence: int


_H, _D, _U, _X, _C = (
    FailureClass.HARDWARE,
    FailureClass.DRIVER,
    FailureClass.USER,
    FailureClass.UNKNOWN,
    FailureClass.CONFIG,
)
_HARD, _SOFT, _NEVER, _CASCADE = Weight.HARD, Weight.SOFT, Weight.NEVER, Weight.CASCADE
_RESET, _BOOT, _REPLACE = Action.CORDON_RESET, Action.CORDON_REBOOT, Action.REPLACE
_SAME, _ELSE, _NONE = Action.RETRY_SAME, Action.RETRY_ELSEWHERE, Action.NONE

_ORDER: tuple[tuple[int, ...], ...] = (
    (79,),
    (64,),
    (48, 95, 140, 171, 172),
    (74, *range(144, 151)),
    (119, 120, 62, 158),
    (46, 109, 143),
    (94,),
    (92, 63),
    (31, 13, 69),
    (43, 45, 137, 154),
)
"""Groups from the first cause to the last effect."""

_BY_WEIGHT = {_HARD: 5, _SOFT: 2, _NEVER: 0, _CASCADE: 0}
"""Where an Xid stands in ``_ORDER``'s count when no group names it."""

_REMEDIES = {
    Action.CORDON_RESET: Remedy.GPU_RESET,
    Action.CORDON_REBOOT: Remedy.REBOOT,
    Action.REPLACE: Remedy.REPLACE,
}

_ROWS: tuple[tuple[int | tuple[int, ...], str, FailureClass, Weight, Action, Retest], ...] = (
    (8, "the GPU stopped processing", _X, _SOFT, _SAME, Retest.T2),
    ((11, 25, 32), "a bad stream of commands reached the GPU", _X, _SOFT, _SAME, Retest.T2),
    (
        13,
        "an exception of the graphics engine: out of bounds or a bad instruction",
        _U,
        _SOFT,
        _SAME,
        Retest.T2,
    ),
    ((14, 106, 107), "a test message", _X, _NEVER, _NONE, Retest.T1),
    (
        31,
        "a fault of the GPU's memory management: an address that is not mapped",
        _U,
        _SOFT,
        _SAME,
        Retest.T2,
    ),
    ((37, 38), "the firmware that switches contexts complained", _D, _NEVER, _NONE, Retest.T1),
    (
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        "an exception of a copy engine",
        _X,
        _SOFT,
        _SAME,
        Retest.T2,
    ),
    (43, "a channel was reset: the driver stopped the program", _U, _NEVER, _SAME, Retest.T1),
    (44, "a fault during a context switch", _D, _SOFT, _SAME, Retest.T2),
    (45, "channels were cleaned up after another fault, or after a kill", _X, _CASCADE, _NONE, Retest.T1),
    (46, "the GPU stopped processing and did not come back in time", _D, _HARD, _RESET, Retest.T2),
    (48, "a double-bit error of memory, which ECC cannot correct", _H, _HARD, _RESET, Retest.T2),
    (54, "the auxiliary power cable gives no power", _H, _HARD, _REPLACE, Retest.T3),
    (
        (56, 57, 58),
        "an error of the display engine or of the memory's interface",
        _D,
        _SOFT,
        _ELSE,
        Retest.T2,
    ),
    (60, "an exception of the security or video processor", _D, _SOFT, _SAME, Retest.T2),
    (61, "the internal microcontroller stopped at a breakpoint", _D, _SOFT, _ELSE, Retest.T2),
    (62, "the internal microcontroller halted", _H, _HARD, _RESET, Retest.T2),
    (63, "a row of memory was set aside, and is replaced at the next reset", _H, _SOFT, _ELSE, Retest.T2),
    (64, "a row of memory could not be set aside", _H, _HARD, _REPLACE, Retest.T3),
    (65, "an exception of the video processor", _X, _SOFT, _SAME, Retest.T2),
    ((66, 67), "an illegal access by the driver", _D, _SOFT, _SAME, Retest.T2),
    (68, "an exception of the video decoder", _X, _NEVER, _SAME, Retest.T1),
    (69, "a class error of the graphics engine", _U, _NEVER, _SAME, Retest.T1),
    ((73, 142), "an exception of the video encoder", _X, _NEVER, _SAME, Retest.T1),
    (74, "an NVLink error", _H, _HARD, _RESET, Retest.T3),
    (78, "a virtual GPU could not be started", _C, _NEVER, _NONE, Retest.T1),
    (79, "the GPU has fallen off the bus", _H, _HARD, _BOOT, Retest.T3),
    (80, "a stream of commands arrived damaged", _X, _SOFT, _SAME, Retest.T2),
    (81, "an error of the VGA subsystem", _H, _SOFT, _ELSE, Retest.T2),
    (
        (82, 83, 84, 86, 88, 89, *range(96, 106), 139),
        "an exception of an image or video engine",
        _X,
        _NEVER,
        _SAME,
        Retest.T1,
    ),
    (92, "single-bit errors of memory come at a high rate", _H, _SOFT, _ELSE, Retest.T3),
    (93, "the board's information memory wears out", _H, _SOFT, _NONE, Retest.T1),
    (94, "a contained memory error: only the program that touched it dies", _H, _SOFT, _ELSE, Retest.T2),
    (95, "an uncontained memory error", _H, _HARD, _RESET, Retest.T2),
    (109, "a context switch took too long", _X, _SOFT, _SAME, Retest.T2),
    (110, "a security fault", _D, _HARD, _RESET, Retest.T2),
    (119, "the GPU's system processor (GSP) did not answer in time", _D, _HARD, _RESET, Retest.T2),
    (120, "the GPU's system processor (GSP) failed", _D, _HARD, _RESET, Retest.T2),
    (121, "an error of the link between processor and GPU (C2C)", _H, _SOFT, _ELSE, Retest.T3),
    (136, "an NVLink could not be trained", _H, _HARD, _RESET, Retest.T3),
    (
        137,
        "an NVLink access without the right to it, as a rule after another fault",
        _X,
        _CASCADE,
        _NONE,
        Retest.T1,
    ),
    (140, "an ECC error that was not recovered", _H, _HARD, _RESET, Retest.T2),
    (141, "an error of CUDA's fast path", _X, _NEVER, _NONE, Retest.T1),
    (143, "the GPU could not be initialised", _D, _HARD, _RESET, Retest.T2),
    (144, "an NVLink error (SAW unit)", _H, _SOFT, _ELSE, Retest.T3),
    (145, "an NVLink error (RLW unit)", _H, _SOFT, _ELSE, Retest.T3),
    (146, "an NVLink error (TLW unit)", _H, _SOFT, _ELSE, Retest.T3),
    (147, "an NVLink error (TREX unit)", _H, _SOFT, _ELSE, Retest.T3),
    (148, "an NVLink error (NVLPW unit)", _H, _SOFT, _ELSE, Retest.T3),
    (149, "an NVLink error (NETIR unit)", _H, _SOFT, _ELSE, Retest.T3),
    (150, "an NVLink error (MSE unit)", _H, _SOFT, _ELSE, Retest.T3),
    (151, "keys of confidential computing could not be rotated", _C, _SOFT, _BOOT, Retest.T1),
    ((152, 153), "a message of the deep-learning accelerator", _D, _NEVER, _NONE, Retest.T1),
    (154, "the driver says what the GPU needs to recover", _X, _CASCADE, _NONE, Retest.T1),
    (155, "an error that NVLink's software defines", _D, _HARD, _RESET, Retest.T3),
    (156, "a resource of the GPU is being retired", _H, _HARD, _RESET, Retest.T2),
    (157, "a resource of the GPU could not be retired", _H, _HARD, _REPLACE, Retest.T3),
    (158, "the GPU's fatal timeout", _H, _HARD, _RESET, Retest.T2),
    (159, "an error of the coherent host interface", _D, _SOFT, _SAME, Retest.T2),
    ((160, 161), "a channel of memory is being retired", _H, _SOFT, _ELSE, Retest.T2),
    ((162, 163), "power smoothing engaged or disengaged", _H, _NEVER, _NONE, Retest.T1),
    ((164, 165), "power smoothing wears out", _H, _SOFT, _NONE, Retest.T1),
    ((166, 170), "an error of NVLink's secured traffic", _C, _SOFT, _ELSE, Retest.T3),
    (167, "a fatal timeout of PCIe", _H, _HARD, _BOOT, Retest.T3),
    (168, "memory is smaller than it was", _H, _HARD, _REPLACE, Retest.T3),
    (169, "the security processor halted", _D, _HARD, _RESET, Retest.T2),
    (171, "detail of a double-bit error: it was in DRAM", _H, _CASCADE, _RESET, Retest.T2),
    (172, "detail of a double-bit error: it was in SRAM", _H, _CASCADE, _RESET, Retest.T3),
)


def _precedence(code: int, weight: Weight) -> int:
    for place, group in enumerate(_ORDER):
        if code in group:
            return len(_ORDER) - place
    return _BY_WEIGHT[weight]


def _facts(
    code: int, meaning: str, failure_class: FailureClass, weight: Weight, action: Action, retest: Retest
) -> XidFacts:
    return XidFacts(
        code=code,
        meaning=meaning,
        failure_class=failure_class,
        weight=weight,
        action=action,
        remedy=_REMEDIES.get(action, Remedy.NONE),
        retest=retest,
        precedence=_precedence(code, weight),
    )


TABLE: dict[int, XidFacts] = {
    code: _facts(code, meaning, failure_class, weight, action, retest)
    for codes, meaning, failure_class, weight, action, retest in _ROWS
    for code in (codes if isinstance(codes, tuple) else (codes,))
}
"""By number. What is not here is not described by the catalogue: see ``xid_facts``."""


def xid_facts(code: int) -> XidFacts:
    """Return what is known of an Xid; one that nobody describes counts, but never alone."""
    return TABLE.get(code) or _facts(
        code,
        "the catalogue does not describe it",
        FailureClass.UNKNOWN,
        Weight.SOFT,
        Action.RETRY_ELSEWHERE,
        Retest.T2,
    )
