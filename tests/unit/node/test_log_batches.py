"""How the size of log batches follows the line."""

from __future__ import annotations

from airyard.node.runner_threads import fitting_batch

MIB = 1024 * 1024


def test_batches_grow_while_the_line_is_quick() -> None:
    size = 256 * 1024
    for _ in range(10):
        size = fitting_batch(size, size, 0.01)
    assert size == 8 * MIB


def test_a_small_batch_says_nothing_of_a_larger_one() -> None:
    assert fitting_batch(MIB, 1000, 0.001) == MIB


def test_batches_shrink_on_a_slow_line_but_not_to_nothing() -> None:
    assert fitting_batch(8 * MIB, 2 * MIB, 5.0) == MIB
    size = MIB
    for _ in range(10):
        size = fitting_batch(size, size, 5.0)
    assert size == 64 * 1024
