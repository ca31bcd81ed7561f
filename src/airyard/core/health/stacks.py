"""What of a process's stack says where it stands: without what differs between processes that stand at the same place.

Owns: which frames count, their form. Must not know: who took a stack, what a difference means. Innermost frame first.
"""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\s*0x[0-9a-f]+\b")
_LINE = re.compile(r":\d+\)$")
_FRAMES = 32


def normal(stack: str) -> str:
    """Return the frames that have names, with the line of the innermost one of a program's text only."""
    frames: list[str] = []
    placed = False
    for line in stack.splitlines():
        text = line.strip()
        if not text or _ADDRESS.match(text):
            continue
        if placed:
            text = _LINE.sub(")", text)
        placed = placed or _LINE.search(text) is not None
        frames.append(text)
    return "\n".join(frames[:_FRAMES])


def of_program(stack: str) -> str:
    """Return the frames of Python alone, with the line of the innermost one."""
    return normal("\n".join(line for line in stack.splitlines() if ".py" in line or "(<" in line))
