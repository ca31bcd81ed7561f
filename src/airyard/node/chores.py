"""What the agent does for its machine's caches beside runs: build the usual environment early, look, remove old ones.

Owns: these chores. Must not know: sockets, or how an environment is built. All block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airyard.node.code_cache import CodeCache
from airyard.node.environment import EnvironmentRequest, EnvironmentStore, disk_usage
from airyard.node.file_locks import Cancelled
from airyard.node.identity import ANY, IdentityRefused, identity_of, switchable
from airyard.node.job_files import USERS
from airyard.node.telling import tell
from airyard.node.user_environment import ChildFailed, tidy_as, user_store
from airyard.node.uv import DiskFull, DownloadFailed, ResolveFailed

_FOREVER_S = 10 * 365 * 86_400.0
_NO_CAP = 1 << 62


def warm(node_folder: Path, base: Mapping[str, Any], should_stop: Callable[[], bool]) -> str:
    """Build a base environment before anybody asks; return what came of it. The first run tells a failure again."""
    store = EnvironmentStore(node_folder / "envs", inherited=os.environ)
    try:
        environment = store.ensure(EnvironmentRequest.from_order(base), should_stop=should_stop)
    except Cancelled:
        return "given up"
    except (ResolveFailed, DownloadFailed, DiskFull) as error:
        return str(error)
    environment.release()
    return "built" if environment.was_built else "there"


def has_environment(node_folder: Path, asked: Mapping[str, Any]) -> bool:
    """Return whether a member with this ``environment`` in its PREPARE would find it built."""
    store = EnvironmentStore(node_folder / "envs", inherited=os.environ)
    return store.is_ready(EnvironmentRequest.from_order(asked))


def tidy(node_folder: Path, *, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> dict[str, int]:
    """Remove environments unused for ``age_ms``, then the longest unused until under ``cap_bytes``.

    Code trees, which the server can send again, go by age alone. Return how many went (or would go) and the
    bytes of disk that are free for it.
    """
    root = node_folder / "envs"
    store = EnvironmentStore(root, inherited=os.environ)
    code = CodeCache(node_folder / "code")
    keep_bytes = cap_bytes if cap_bytes is not None else _NO_CAP
    older_than_s = age_ms / 1000 if age_ms is not None else _FOREVER_S
    own = _tidy_accounts(
        node_folder, {"keep_bytes": keep_bytes, "older_than_s": older_than_s, "dry_run": dry_run}
    )
    if dry_run:
        going = [
            *store.evictable(keep_bytes=keep_bytes, older_than_seconds=older_than_s),
            *code.evictable(older_than_seconds=older_than_s),
        ]
        freed = sum(disk_usage(folder) for folder in going)
        return {"count": len(going) + own["count"], "bytes": freed + own["bytes"]}
    before = disk_usage(root) + disk_usage(node_folder / "code")
    removed = store.evict(keep_bytes=keep_bytes, older_than_seconds=older_than_s)
    removed += code.evict(older_than_seconds=older_than_s)
    after = disk_usage(root) + disk_usage(node_folder / "code")
    return {"count": len(removed) + own["count"], "bytes": max(0, before - after) + own["bytes"]}


def _tidy_accounts(node_folder: Path, limits: Mapping[str, Any]) -> dict[str, int]:
    """Have each account tidy its own store: nobody else may follow the paths in there. The limits count for each."""
    total = {"count": 0, "bytes": 0}
    for folder in sorted((node_folder / USERS).glob("*")) if switchable() == ANY else ():
        try:
            identity = identity_of(int(folder.name))
            done = tidy_as(identity, user_store(node_folder, identity.uid), limits)
        except (ChildFailed, IdentityRefused, ValueError) as problem:
            tell(f"{folder} is left as it is: {problem}")
            continue
        total = {name: total[name] + done[name] for name in total}
    return total
