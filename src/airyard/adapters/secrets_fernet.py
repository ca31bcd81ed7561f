"""Secrets in one SQLite file, each value encrypted with Fernet under a key that lies beside it (0600).

Owns: names and sizes that are accepted, encryption, the key file. Must not know: who asks, how values reach a run.
The encryption keeps values out of a copy of the database; whoever reads the key file, too, reads all.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from airyard.adapters.sqlite_engine import copy_file
from airyard.adapters.term_files import newest, take_over
from airyard.core.errors import InvariantBroken, NotFound, Unavailable, UserError
from airyard.ports.secrets import SecretName

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_VALUE_BYTES = 64 * 1024
MIN_MASKED_BYTES = 6


class FernetSecretStore:
    """Implements ``ports.secrets.SecretStore`` in ``<folder>/secrets.db`` with ``<folder>/secrets.key``. Any thread."""

    def __init__(self, folder: Path, term: int | None = None) -> None:
        """``term``: this leader's, among several servers on one folder; it writes to a file of its own."""
        self._key_path = folder / "secrets.key"
        path = folder / "secrets.db"
        if term is not None:
            path = take_over(path, term, copy_file)
        elif (found := newest(path)) is not None:
            path = found[1]
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS secrets (owner TEXT, scope TEXT, key TEXT, value BLOB NOT NULL,"
            " masked INTEGER NOT NULL, changed_ms INTEGER NOT NULL, PRIMARY KEY (owner, scope, key)) STRICT"
        )
        self._fernet = Fernet(self._load_key())
        self._try_key()

    def _try_key(self) -> None:
        """Read one secret, so that a wrong key is found at the start. Raises: Unavailable."""
        first = self._database.execute("SELECT owner, scope, key FROM secrets LIMIT 1").fetchone()
        if first is not None:
            self.get(*first)

    def _load_key(self) -> bytes:
        """Return the key, made once. Raises: Unavailable when it is gone or no key while secrets are stored."""
        try:
            key = self._key_path.read_bytes().strip()
            Fernet(key)
            return key
        except FileNotFoundError:
            (stored,) = self._database.execute("SELECT count(*) FROM secrets").fetchone()
            if stored:
                raise self._lost_key(f"is missing, and {stored} secrets are stored under it") from None
        except ValueError:
            raise self._lost_key("is damaged") from None
        key = Fernet.generate_key()
        # Whole or not at all: a key that a crash cut off would lock the owner out.
        partial = self._key_path.with_name(f"{self._key_path.name}.new")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, key)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(self._key_path)
        _sync_folder(self._key_path.parent)
        return key

    def _lost_key(self, what: str) -> Unavailable:
        return Unavailable(
            f"the key of the secrets, {self._key_path}, {what}",
            code="SECRETS_KEY_LOST",
            fix="put the key back from a backup, or remove secrets.db beside it and store the secrets again",
        )

    def put(self, owner: str, scope: str, key: str, value: str, *, masked: bool, now_ms: int) -> None:
        """Store or replace a value."""
        _check_name(scope, key)
        data = value.encode()
        name = f"{scope}/{key}"
        if not data:
            raise UserError(f"secret {name} is empty", code="EMPTY_SECRET")
        if len(data) > MAX_VALUE_BYTES:
            raise UserError(
                f"secret {name} has {len(data)} bytes; the limit is {MAX_VALUE_BYTES}",
                code="SECRET_TOO_LARGE",
            )
        if masked and len(data) < MIN_MASKED_BYTES:
            raise UserError(
                f"secret {name} has {len(data)} bytes; under {MIN_MASKED_BYTES} it cannot be masked in logs "
                "without masking ordinary text",
                code="SECRET_TOO_SHORT",
                fix="use a longer value, or store it with --unmasked",
            )
        # The name is encrypted along with the value: no row can be passed off as another one.
        sealed = self._fernet.encrypt(json.dumps([owner, scope, key, value]).encode())
        row = (owner, scope, key, sealed, int(masked), now_ms)
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?, ?, ?, ?)", row)

    def get(self, owner: str, scope: str, key: str) -> tuple[str, bool]:
        """Return a value and whether it is masked."""
        with self._lock:
            row = self._database.execute(
                "SELECT value, masked FROM secrets WHERE owner = ? AND scope = ? AND key = ?",
                (owner, scope, key),
            ).fetchone()
        if row is None:
            raise _not_found(scope, key)
        try:
            *name, value = json.loads(self._fernet.decrypt(row[0]))
        except InvalidToken:
            raise self._lost_key(f"is not the one that {scope}/{key} was stored under") from None
        if name != [owner, scope, key]:
            raise InvariantBroken(
                f"secret {scope}/{key} holds the value of another one", code="SECRETS_DAMAGED"
            )
        return str(value), bool(row[1])

    def names(self, owner: str) -> Sequence[SecretName]:
        """Return the owner's secrets by scope and key, without values."""
        with self._lock:
            rows = self._database.execute(
                "SELECT scope, key, changed_ms, masked FROM secrets WHERE owner = ? ORDER BY scope, key",
                (owner,),
            ).fetchall()
        return [
            SecretName(owner=owner, scope=scope, key=key, changed_ms=changed_ms, masked=bool(masked))
            for scope, key, changed_ms, masked in rows
        ]

    def delete(self, owner: str, scope: str, key: str) -> None:
        """Remove a secret."""
        with self._lock:
            cursor = self._database.execute(
                "DELETE FROM secrets WHERE owner = ? AND scope = ? AND key = ?", (owner, scope, key)
            )
            if cursor.rowcount == 0:
                raise _not_found(scope, key)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_name(scope: str, key: str) -> None:
    for what, name in (("scope", scope), ("key", key)):
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{what} {name!r} of a secret must be 1 to 128 letters, digits, '_', '.' or '-'",
                code="BAD_SECRET_NAME",
            )


def _not_found(scope: str, key: str) -> NotFound:
    return NotFound(
        f"no secret {scope}/{key}",
        code="SECRET_NOT_FOUND",
        fix=f"store it with `airyard secrets put {scope}/{key}`",
    )
