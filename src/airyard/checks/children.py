"""What every child process of checks does first.

Owns: its end with its parent. Must not know: what the child is for.
"""

from __future__ import annotations

import ctypes
import os
import signal

_DIE_WITH_PARENT = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread of ``parent`` that started it is gone, however that ended."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # gone before the kernel was told: nothing would come any more
        os.kill(os.getpid(), signal.SIGKILL)
