"""A yard's backup: one archive of the journal and of what else its data folder cannot do without.

Owns: what goes in, the manifest by which it is checked, putting it back into an empty folder. Must not know: how a
journal is copied.

Left out: logs, MLflow's store and what is below ``node`` (environments, attempts, outputs and checkpoints): they are
large, and have ways of their own. Everything small below ``server`` goes in, so nothing new is forgotten.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import airyard
from airyard.adapters.journal_copy import content_of, copy_journal
from airyard.adapters.sql_database import Database
from airyard.adapters.sqlite_engine import SqliteDatabase, copy_file, sync
from airyard.core.errors import Conflict, NotFound, UserError
from airyard.server.config import Config, load_config
from airyard.server.journal_place import FILE, MOVED, journal_database

FORMAT = 1
SHARED = PurePosixPath("shared")
"""Below it lies in the archive what servers with a standby keep in their shared folder."""
MANIFEST = "manifest.json"
_OF_THE_PROCESS = frozenset({"lock", "start.lock", "endpoint.json", MOVED.name})
_LEFT_OUT = frozenset({"logs", "mlflow", "tmp", "ray"})


def back_up(home: Path, config: Config, database: Database, file: Path) -> dict[str, Any]:
    """Write the archive; a server may be at work. Returns its manifest without the list of files.

    The journal first: whatever it names lay there before it was written.
    Raises: Conflict (``BACKUP_EXISTS``), UserError (``BACKUP_INSIDE``), and what ``copy_journal`` raises.
    """
    if file.is_relative_to(home):
        raise UserError(
            f"{file} lies in the data folder that is to be saved",
            code="BACKUP_INSIDE",
            fix="name a file elsewhere, best on another disk",
        )
    if file.exists():
        raise Conflict(
            f"{file} is there already", code="BACKUP_EXISTS", fix="name a new file, or remove that one"
        )
    shared = _shared(config)
    if shared is not None and not (shared / "server").is_dir():
        raise NotFound(
            f"there is no shared data folder of servers in {shared}",
            code="NO_SHARED_FOLDER",
            fix="mount what [standby] shared names: keys, code and secrets lie there",
        )
    partial = file.with_name(f".{file.name}.part")
    with tempfile.TemporaryDirectory(prefix=".airyard-backup-", dir=file.parent) as name:
        work = Path(name)
        copy = work / "journal.db"
        if isinstance(database, SqliteDatabase):
            if not (home / FILE).exists():
                raise NotFound(f"there is no journal in {home}", code="NO_JOURNAL")
            copy_file(home / FILE, copy)
            content = content_of(SqliteDatabase(copy))
        else:
            content = copy_journal(database, SqliteDatabase(copy))
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": airyard.__version__,
            "journal": {"from": database.name, **content.as_json()},
            "left_out": [f"server/{name}" for name in sorted(_LEFT_OUT)]
            + ["node", *_named_elsewhere(home, config)],
            "files": {},
        }
        try:
            with tarfile.open(partial, "w:gz", compresslevel=1) as archive:
                partial.chmod(0o600)
                _add(archive, manifest, FILE.as_posix(), copy)
                for path in _files(home, config):
                    _add(archive, manifest, path.relative_to(home).as_posix(), _still(path, work))
                if shared is not None:
                    for path in _server_files(shared):
                        place = (SHARED / path.relative_to(shared)).as_posix()
                        _add(archive, manifest, place, _still(path, work))
                (work / MANIFEST).write_text(json.dumps(manifest))
                archive.add(work / MANIFEST, MANIFEST)
            sync(partial)
            partial.replace(file)
            sync(file.parent)
        finally:
            partial.unlink(missing_ok=True)
    return {**manifest, "files": len(manifest["files"]), "bytes": file.stat().st_size}


def restore(file: Path, home: Path) -> dict[str, Any]:
    """Put an archive into an empty data folder, checked file by file before any of it is there.

    Where its configuration names PostgreSQL the journal goes there, into an empty database.
    Raises: UserError (``HOME_NOT_EMPTY``, ``BACKUP_DAMAGED``), and what ``copy_journal`` raises.
    """
    if home.exists() and any(home.iterdir()):
        raise UserError(
            f"{home} is not empty, and a backup is put into an empty folder only",
            code="HOME_NOT_EMPTY",
            fix="move that folder away, or name another one with --home",
        )
    fresh = _stage(home)
    try:
        manifest = _unpack(file, fresh)
        stored = SqliteDatabase(fresh / FILE)
        content = content_of(stored)
        if content.as_json() != {name: manifest["journal"].get(name) for name in content.as_json()}:
            raise _damaged(file, "its journal is not the one that was saved")
        config = load_config(None, home=fresh)
        shared = _place_shared(fresh, config)
        database = journal_database(config, fresh)
        if not isinstance(database, SqliteDatabase):
            copy_journal(stored, database)
            (fresh / FILE).unlink()
        if shared is not None:
            shutil.copytree(fresh / SHARED, shared, dirs_exist_ok=True)
            shutil.rmtree(fresh / SHARED)
        _put_in_place(fresh, home)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    place = str(home / FILE) if isinstance(database, SqliteDatabase) else database.name
    return {**manifest, "files": len(manifest["files"]), "home": str(home), "place": place}


def _stage(home: Path) -> Path:
    """Return a new folder to unpack to: beside ``home``, or in it where its parent is not ours to write to."""
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    except PermissionError:
        if not home.is_dir():
            raise
    return Path(tempfile.mkdtemp(prefix=".restore-", dir=home))


def _put_in_place(fresh: Path, home: Path) -> None:
    """Let ``home`` be what is in ``fresh``: in one step beside it; within it the journal's folder comes last."""
    if fresh.parent == home:
        for entry in sorted(fresh.iterdir(), key=lambda each: each.name == "server"):
            entry.rename(home / entry.name)
        fresh.rmdir()
        sync(home)
        return
    if home.exists():
        home.rmdir()
    fresh.rename(home)
    sync(home.parent)


def _shared(config: Config) -> Path | None:
    return Path(config.standby.shared).absolute() if config.standby.shared is not None else None


def _place_shared(fresh: Path, config: Config) -> Path | None:
    """Return the folder to which the saved shared files go back; None when the archive has none.

    Raises: UserError (``HOME_NOT_EMPTY``) when something is there already.
    """
    if not (fresh / SHARED).is_dir():
        return None
    shared = _shared(config)
    if shared is None or shared.is_relative_to(fresh):
        raise UserError(
            "this backup has the files of a shared folder, and its configuration names none outside of it",
            code="NO_SHARED_FOLDER",
            fix="it was saved by a configuration given with --config; put it into the new place by hand",
        )
    if shared.exists() and any(shared.iterdir()):
        raise UserError(
            f"{shared}, the shared folder of its servers, is not empty",
            code="HOME_NOT_EMPTY",
            fix="move that folder away: keys, code and secrets of the backup go there",
        )
    return shared


def _unpack(file: Path, folder: Path) -> dict[str, Any]:
    """Lay every file out and return the manifest. Raises: UserError unless it is whole and all of it is right."""
    found: dict[str, str] = {}
    try:
        with tarfile.open(file, "r:gz") as archive:
            for member in archive:
                if not member.isfile() or not _is_inside(member.name):
                    raise _damaged(file, f"it holds {member.name!r}, which no backup does")
                source = archive.extractfile(member)
                assert source is not None  # a regular file has contents
                target = folder / member.name
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with source, open(target, "xb", opener=_private) as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                    sink.flush()
                    os.fsync(sink.fileno())
                found[member.name] = _hash(target)
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).unlink()
        found.pop(MANIFEST)
        if manifest["format"] != FORMAT:
            raise _damaged(file, f"it has format {manifest['format']}, this version reads format {FORMAT}")
        if manifest["files"] != found:
            wrong = {
                name
                for name in found.keys() | manifest["files"]
                if found.get(name) != manifest["files"].get(name)
            }
            raise _damaged(file, f"not as they were saved: {', '.join(sorted(wrong)[:5])}")
    except (OSError, tarfile.TarError, EOFError, ValueError, KeyError, TypeError) as error:
        raise _damaged(file, str(error) or type(error).__name__) from error
    return manifest


def _files(home: Path, config: Config) -> Iterator[Path]:
    """Yield the regular files that go in: the configuration, what it names in here, and the server's own."""
    for path in (home / "config.toml", *_named(config)):
        if path.is_relative_to(home) and not path.is_relative_to(home / "server") and path.is_file():
            yield path
    yield from _server_files(home)


def _server_files(home: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(home / "server"):
        here = Path(top)
        if here == home / "server":
            folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in sorted(names):
            path = here / name
            if stat.S_ISREG(path.lstat().st_mode) and not _is_of_the_process(path, home):
                yield path


def _is_of_the_process(path: Path, home: Path) -> bool:
    top = path.parent == home / "server"
    journal = top and path.name.startswith(FILE.name)
    beside = path.name.endswith(("-wal", "-shm"))  # of a database that is copied whole
    return journal or beside or (top and (path.name in _OF_THE_PROCESS or path.suffix == ".log"))


def _still(path: Path, work: Path) -> Path:
    """Return a file that nobody writes to: of a database a copy as of one moment."""
    if path.suffix != ".db":
        return path
    copy = work / path.name
    copy_file(path, copy)
    return copy


def _named(config: Config) -> list[Path]:
    """Return the files that the configuration names."""
    tls = config.server.tls
    names = [config.policy.file, config.people.file, config.journal.password_file]
    names += [tls.certificate, tls.key] if tls is not None else []
    return [Path(name) for name in names if name is not None]


def _named_elsewhere(home: Path, config: Config) -> list[str]:
    return [str(path) for path in _named(config) if not path.is_relative_to(home)]


def _add(archive: tarfile.TarFile, manifest: dict[str, Any], name: str, source: Path) -> None:
    """Add one file, and its hash as it went in; one that was removed meanwhile is left out."""
    try:
        with source.open("rb") as opened:
            info = archive.gettarinfo(arcname=name, fileobj=opened)
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            hashed = _Hashed(opened, info.size)
            archive.addfile(info, hashed)  # type: ignore[arg-type]  # tarfile only reads
    except FileNotFoundError:
        return
    manifest["files"][name] = hashed.digest.hexdigest()


class _Hashed:
    """Reads a file and hashes what was read; one that has shrunk meanwhile reads as zeros at its end."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data: bytes = self._file.read(min(count, self._left)).ljust(min(count, self._left), b"\0")
        self._left -= len(data)
        self.digest.update(data)
        return data


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _damaged(file: Path, why: str) -> UserError:
    return UserError(
        f"{file} is no whole backup of a yard: {why}",
        code="BACKUP_DAMAGED",
        fix="take another copy of it; nothing was put back",
    )
