"""Replaces secret values in a byte stream by ``***``, across chunk borders.

Owns: which byte sequences count as secret and the rule for holding bytes back.
Must not know: where the bytes come from or go; what a secret is for.

The rule: every byte that any occurrence of any secret covers is masked; occurrences that overlap become one
mask. The result does not depend on how the stream was cut.
"""

from __future__ import annotations

from collections.abc import Iterable

MASK = b"***"
MIN_LINE_BYTES = 6
"""Shorter lines of a multi-line secret are ignored: ``{`` or ``"a":`` would blank out ordinary output."""


class Masker:
    """Masks one stream; stdout and stderr of a member have one each."""

    __slots__ = ("_covered", "_held", "_longest", "_secrets")

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = secret_forms(secrets)
        self._longest = max(map(len, self._secrets), default=0)
        self._held = b""
        # How many leading bytes of ``_held`` belong to a mask that is already out.
        self._covered = 0

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown by now.

        Held back is only the longest suffix that could still grow into a secret, so ordinary output is never
        delayed. Cost: one ``bytes.find`` pass per secret; nothing without secrets.
        """
        if not self._secrets:
            return data
        buffer = self._held + data if self._held else data
        return self._release(buffer, self._undecided_from(buffer))

    def flush(self) -> bytes:
        """Return what was held back; for the end of the stream."""
        return self._release(self._held, len(self._held))

    def _release(self, buffer: bytes, end: int) -> bytes:
        """Emit ``buffer[:end]`` masked, keep the rest; no occurrence that starts before it is unfinished."""
        pieces: list[bytes] = []
        masked_to = shown_to = self._covered
        for start, stop in self._occurrences(buffer):
            if start >= end:
                break
            if start >= masked_to:
                pieces += (buffer[shown_to:start], MASK)
            shown_to = masked_to = max(masked_to, stop)
        if not pieces and shown_to == 0:
            shown = buffer if end == len(buffer) else buffer[:end]
        else:
            pieces.append(buffer[shown_to:end])
            shown = b"".join(pieces)
        self._held = buffer[end:]
        self._covered = max(0, masked_to - end)
        return shown

    def _occurrences(self, buffer: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            at = buffer.find(secret)
            while at >= 0:
                found.append((at, at + len(secret)))
                at = buffer.find(secret, at + 1)
        found.sort()
        return found

    def _undecided_from(self, buffer: bytes) -> int:
        """Return where the longest suffix starts that is a proper prefix of a secret."""
        end = len(buffer)
        undecided = end
        for secret in self._secrets:
            at = buffer.find(secret[:1], max(0, end - len(secret) + 1))
            while 0 <= at < undecided:
                if secret.startswith(buffer[at:]):
                    undecided = at
                    break
                at = buffer.find(secret[:1], at + 1)
        return undecided


def secret_forms(secrets: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return what to mask, longest first: each value, and each line of a value that has several.

    Lines lose the blanks around them, so that a re-indented key file is masked too.
    """
    forms: set[bytes] = set()
    for secret in secrets:
        forms.add(secret)
        if b"\n" in secret or b"\r" in secret:
            forms.update(line.strip() for line in secret.splitlines() if len(line.strip()) >= MIN_LINE_BYTES)
    forms.discard(b"")
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))
