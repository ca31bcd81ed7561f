"""How a start that failed is told: once, in words on a terminal, as one JSON line to whoever started the server."""

from __future__ import annotations

import json

from airyard.core.errors import Fix, UserError
from airyard.server.__main__ import failure_text

ERROR = UserError(
    "no TLS beyond loopback",
    code="TLS_REQUIRED",
    fix=Fix(text="name a certificate", command="airyard server"),
)


def test_a_person_reads_words() -> None:
    assert failure_text(ERROR, for_person=True) == (
        "error: no TLS beyond loopback\nnext: name a certificate\n      airyard server\n"
    )


def test_a_program_reads_one_line() -> None:
    (line,) = failure_text(ERROR, for_person=False).splitlines()
    assert json.loads(line)["error"]["code"] == "TLS_REQUIRED"
