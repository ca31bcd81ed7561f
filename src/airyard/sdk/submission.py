"""From a workload file to a submitted run: read, pack, upload what is missing, submit.

Owns: the order of these steps, the idempotency key. Must not know: text for people, exit codes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from airyard.core.errors import UserError
from airyard.spec.command_line import CommandLine, command_line_workload
from airyard.spec.load import Loaded, load_stored, load_workload
from airyard.spec.run_name import checked_run_name

if TYPE_CHECKING:
    from airyard.sdk.client import Client
    from airyard.spec.snapshot import Snapshot

LARGE_UPLOAD_BYTES = 16 * 1024 * 1024
Document = dict[str, Any]
Say = Callable[[str], None]


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A workload that has been read and judged, ready to be sent."""

    loaded: Loaded
    workload: Document
    """The normalised workload as JSON, still without its code."""

    @property
    def sends_code(self) -> bool:
        """True when a code folder goes along."""
        return self.loaded.code_source is not None


def prepare(
    path: str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Submission:
    """Read a workload file; ``name`` and ``tags`` come on top of what it says.

    Raises: WorkloadInvalid with all problems at once; UserError when the file cannot be read.
    """
    return _prepared(load_workload(Path(path), overrides=overrides), name, tags)


def prepare_command(
    line: CommandLine,
    *,
    models: Sequence[str] = (),
    overrides: Sequence[str] = (),
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> Submission:
    """Make a workload of a bare command; ``models`` are the accelerator models that the yard offers."""
    loaded = command_line_workload(line, folder=Path.cwd(), models=models, overrides=overrides)
    return _prepared(loaded, name, tags)


def prepare_again(
    source: Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[Document, str | None]:
    """Return workload and YAML of a stored run, changed by ``overrides``; its code snapshot stays the same."""
    stored: Document = dict(source["workload"])
    text = source.get("source_yaml")
    if overrides:
        if not text:
            raise UserError(
                "The run was submitted without a workload file; it can only be run again unchanged."
            )
        loaded = load_stored(text, stored, folder=Path.cwd(), overrides=overrides)
        changed = loaded.workload.to_json()
        named = {override.partition("=")[0].split(".")[0] for override in overrides}
        kept = {key: stored.get(key) for key in ("name", "tags") if key not in named}
        stored = {**changed, **kept}
        text = loaded.source_yaml
    if name is not None:
        stored["name"] = checked_run_name(name)
    stored["tags"] = {**(stored.get("tags") or {}), **(tags or {})}
    return stored, text


def submit(
    client: Client,
    prepared: Submission,
    *,
    idempotency_key: str | None = None,
    allow_secret_files: bool = False,
    dry_run: bool = False,
    held: bool = False,
    begin_at: str | None = None,
    say: Say = _silent,
) -> Document:
    """Pack the code, upload it where the server lacks it, and submit; returns the server's answer.

    A dry run packs to learn the size and sends nothing but the workload; its answer gets ``upload``:
    ``{tree_hash, archive_bytes, needed}``. ``say`` hears about uploads worth waiting for.
    Raises: UserError for code that may not be sent (secrets, size); Conflict for a key used otherwise.
    """
    workload, upload, diff = prepared.workload, None, None
    if prepared.loaded.code_source is not None:
        workload, upload, diff = _code(client, prepared, allow_secret_files, dry_run, say)
    answer = client.submit(
        workload,
        source_yaml=prepared.loaded.source_yaml,
        git_diff=None if dry_run else diff,
        idempotency_key=None
        if dry_run
        else idempotency_key or prepared.loaded.idempotency_token or new_key(),
        dry_run=dry_run,
        held=held,
        begin_at=begin_at,
    )
    if upload is not None:
        answer["upload"] = upload
    return answer


def _code(
    client: Client, prepared: Submission, allow_secret_files: bool, dry_run: bool, say: Say
) -> tuple[Document, Document, str | None]:
    """Return the workload with its code reference, what the upload came to, and the code's git diff."""
    from airyard.spec.snapshot import pack

    assert prepared.loaded.code_source is not None
    snapshot = pack(prepared.loaded.code_source, allow_secrets=allow_secret_files)
    needed = not client.has_code(snapshot.tree_hash)
    archive_bytes = _send(client, snapshot, dry_run, say) if needed else 0
    workload = {**prepared.workload, "code": snapshot.reference().to_json()}
    upload = {"tree_hash": snapshot.tree_hash, "archive_bytes": archive_bytes, "needed": needed}
    upload |= {"size_bytes": snapshot.size_bytes, "files": snapshot.file_count}
    return workload, upload, None if snapshot.diff is None else snapshot.diff.decode()


def _send(client: Client, snapshot: Snapshot, dry_run: bool, say: Say) -> int:
    """Pack into a spooled file, which is on disk only when large, and upload it; returns its size."""
    if snapshot.size_bytes >= LARGE_UPLOAD_BYTES:
        mib = snapshot.size_bytes / 2**20
        say(f"packing {snapshot.directory_name}: {snapshot.file_count} files, {mib:.0f} MiB")
    with tempfile.SpooledTemporaryFile(max_size=LARGE_UPLOAD_BYTES) as archive:
        snapshot.write_tar(archive)
        size = archive.tell()
        if not dry_run:
            if size >= LARGE_UPLOAD_BYTES:
                say(f"uploading {size / 2**20:.0f} MiB")
            client.upload_code(snapshot.tree_hash, cast(BinaryIO, archive), size)
    return size


def new_key() -> str:
    """Return a fresh idempotency key, so that repeating a submit after a broken connection is safe."""
    return os.urandom(16).hex()


def _prepared(loaded: Loaded, name: str | None, tags: Mapping[str, str] | None) -> Submission:
    workload = loaded.workload
    if name is not None:
        workload = replace(workload, name=checked_run_name(name))
    if tags:
        workload = replace(workload, tags=tuple(sorted({**dict(workload.tags), **tags}.items())))
    return Submission(loaded=replace(loaded, workload=workload), workload=workload.to_json())
