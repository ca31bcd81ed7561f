"""``python -m airyard.server.maintenance``: moving, saving and putting back a yard, each a process of its own.

Owns: its arguments, the lock that keeps a server away meanwhile, one JSON object as the answer. Must not know: how it
is done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError, UserError
from airyard.server.config import JournalSection, load_config
from airyard.server.journal_place import database_at, journal_database, note_move, taken_password
from airyard.server.premises import Premises


def main(arguments: list[str] | None = None) -> int:
    """Do one thing, print what came of it, and return the exit code of ``core.errors`` when it failed."""
    parser = argparse.ArgumentParser(prog="python -m airyard.server.maintenance", description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    moving = verbs.add_parser("migrate")
    moving.add_argument("--to", required=True)
    moving.add_argument("--password-file", type=Path, default=None)
    for name in ("backup", "restore"):
        verbs.add_parser(name).add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    given.home = given.home.expanduser().absolute()
    os.umask(0o077)
    does: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "migrate": _migrate,
        "backup": _back_up,
        "restore": _restore,
    }
    try:
        try:
            print(json.dumps(does[given.verb](given)))  # noqa: T201  # who started this reads it
        except OSError as error:
            message = f"{error.filename or given.home} cannot be used: {error.strerror}"
            raise UserError(message, code="FILE_UNUSABLE") from error
    except AiryardError as error:
        print(json.dumps({"error": error.as_json()}), file=sys.stderr)  # noqa: T201  # who started this reads it
        return error.exit_code
    return 0


def _migrate(given: argparse.Namespace) -> dict[str, Any]:
    """Copy the journal to another place and note that it has left the old one; no server may run meanwhile."""
    from airyard.adapters.journal_copy import copy_journal

    url = _checked(given.to)
    config = load_config(given.config, home=given.home)
    premises = Premises(given.home)
    premises.open()
    with contextlib.closing(premises):
        password = taken_password()
        source = journal_database(config, given.home, password)
        target = database_at(url, given.password_file, given.home, password)
        if source.name == target.name:
            raise UserError(f"the journal is in {source.name} already", code="SAME_PLACE")
        content = copy_journal(source, target)
        note_move(given.home, source, target, url)
    return {"from": source.name, "to": target.name, "url": url, **content.as_json()}


def _back_up(given: argparse.Namespace) -> dict[str, Any]:
    from airyard.server.backup import back_up

    config = load_config(given.config, home=given.home)
    return back_up(given.home, config, journal_database(config, given.home), given.file.absolute())


def _restore(given: argparse.Namespace) -> dict[str, Any]:
    from airyard.server.backup import restore

    return restore(given.file.absolute(), given.home)


def _checked(url: str) -> str:
    """Return an address that the configuration would take, too. Raises: UserError."""
    try:
        JournalSection(url=url)
    except ValueError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        why = next((line for line in lines if line.startswith("Value error, ")), "it is no address")
        why = why.removeprefix("Value error, ").partition(" [type=")[0]
        raise UserError(f"--to: {why}", code="INVALID_ARGS") from None
    return url


if __name__ == "__main__":
    sys.exit(main())
