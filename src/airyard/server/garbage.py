"""When the server's garbage is collected: often and little, because a collection stops every thread.

Owns: the rhythm. Must not know: what the garbage is.

Left alone, the interpreter collects when so many more objects have been made than freed. In a steady yard the two are
level for seconds, and then one collection looks at everything that is young by then: 100 ms with 1,000 running runs.
And now and then it looks at everything there is: half a second for 10,000 runs, for next to nothing, as records form
no circles.
"""

from __future__ import annotations

import gc
import threading

EVERY_S = 0.25
AFTER = (5_000, 1_000, 20_000)
"""Objects, and rounds of the generation below, after which the interpreter collects by itself."""


class Collector:
    """Collects what is young on a thread of its own."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="garbage", daemon=True)

    def start(self) -> None:
        """Begin. What is there already stays for good: no collection looks at it again."""
        gc.set_threshold(*AFTER)
        gc.freeze()
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            gc.collect(1)
