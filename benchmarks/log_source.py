"""Prints numbered lines as fast as a pipe takes them: ``python log_source.py MIB``.

Owns: the text, which ``blocks`` also gives to whoever checks it. Must not know: who reads. Every block of 1 MiB begins
with its number, so that a lost, doubled or swapped piece changes the hash. Standard library only: it runs anywhere.
"""

import os
import sys
from collections.abc import Iterator

BLOCK_BYTES = 1024 * 1024
_LINE = b"x" * 127 + b"\n"
_BODY = _LINE * (BLOCK_BYTES // len(_LINE) - 1)


def blocks(count: int) -> Iterator[bytes]:
    """Yield the blocks."""
    for number in range(count):
        yield b"%0127d\n" % number + _BODY


def main() -> None:
    """Write them to stdout."""
    for block in blocks(int(sys.argv[1])):
        view = memoryview(block)
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
