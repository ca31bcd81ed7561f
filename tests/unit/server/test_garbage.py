"""Young garbage goes soon, without the interpreter's own rounds."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from airyard.server.garbage import Collector


class Circle:
    """An object that names itself, and can be watched."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector() -> Iterator[Collector]:
    before = gc.get_threshold()
    made = Collector()
    made.start()
    yield made
    made.stop()
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_a_circle_is_broken_soon() -> None:
    gone = threading.Event()
    watched = weakref.ref(Circle(), lambda _: gone.set())
    assert gone.wait(timeout=30)
    assert watched() is None
