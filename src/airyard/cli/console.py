"""Where output goes: results to stdout, progress to stderr, as text or in the JSON envelope.

Owns: the envelope, flushing, whether colours are used. Must not know: what is printed.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from airyard.cli import formats
from airyard.core.errors import AiryardError

ENVELOPE_VERSION = 1


class Console:
    """Prints for one command. ``as_json`` and ``colour`` are settled once the options are parsed."""

    def __init__(self, *, as_json: bool = False, colour: str = "auto") -> None:
        self.as_json = as_json
        self._colour = colour

    @property
    def colour_out(self) -> bool:
        """Whether results are coloured."""
        return self._coloured(sys.stdout)

    @property
    def colour_err(self) -> bool:
        """Whether progress is coloured."""
        return self._coloured(sys.stderr)

    def data(self, data: Any) -> None:
        """Print the envelope around a result."""
        self._line(envelope(data=data))

    def event(self, kind: str, data: Any) -> None:
        """Print one line of a stream: the envelope with its type."""
        self._line(envelope(type=kind, data=data))

    def text(self, text: str) -> None:
        """Print a result for people."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def write(self, text: str) -> None:
        """Print a piece of a result as it is."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str, colour: str | None = None) -> None:
        """Print progress to stderr."""
        sys.stderr.write(formats.paint(text, colour, self.colour_err) + "\n")
        sys.stderr.flush()

    def error(self, error: AiryardError) -> None:
        """Print a failure: the envelope on stdout, or message and next step on stderr."""
        if self.as_json:
            self._line(envelope(error=error.as_json()))
            return
        self.note(f"{formats.paint('error', 'red', self.colour_err)}: {error.message}")
        if error.fix is not None:
            self.note(f"{formats.paint('next', 'bold', self.colour_err)}: {error.fix.text}")
            if error.fix.command and error.fix.command not in error.fix.text:
                self.note(f"      {error.fix.command}")

    def _line(self, document: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def _coloured(self, stream: TextIO) -> bool:
        if self._colour != "auto":
            return self._colour == "always"
        return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def envelope(**content: Any) -> dict[str, Any]:
    """Return ``{"v","ts", ...}`` with the time now in UTC."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"v": ENVELOPE_VERSION, "ts": now, **content}
