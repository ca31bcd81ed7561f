"""Checks of a node that the server asks its agent for: one round at a time, which gives way to work.

Owns: which round runs, when it is ended early, its certificate. Must not know: sockets, any check, what follows.

A round that makes GPUs work (``full``, or with an interpreter for it) is *heavy*: it is not begun on a node with a live
member, and is killed when a member is started there. The light ones only read, beside whatever runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

from airyard.checks.contract import Profile
from airyard.checks.preflight import certificate, parts
from airyard.checks.preflight.certificate import Identity
from airyard.checks.preflight.results import result_to_json
from airyard.core.health.facts import CheckResult, CheckStatus, Component
from airyard.node import preflight
from airyard.node.inventory import Node
from airyard.node.preflight import PreflightInterrupted

NICE = 10
"""Work on the same CPUs goes first."""
_OF_GPUS = frozenset({Component.GPU, Component.GPU_MEMORY, Component.NVLINK, Component.DRIVER})


class ChecksRefused(Exception):
    """This round cannot be begun now; ``code`` says why to a program."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A round that was begun."""

    name: str
    node: str
    heavy: bool
    over: Event


class NodeChecks:
    """The rounds of one agent. ``begin``, ``stop`` and ``give_way`` are called on the agent's thread."""

    def __init__(self, node_folder: Path) -> None:
        self._node_folder = node_folder
        self._lock = Lock()
        self._running: list[Round] = []
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checks")
        """Where rounds run: never on the threads that kill members."""

    @property
    def is_running(self) -> bool:
        """True while a round goes on."""
        with self._lock:
            return bool(self._running)

    def begin(
        self, asked: Mapping[str, Any], node: Node | None, *, busy: bool, is_wanted: Callable[[], bool]
    ) -> Callable[[], dict[str, Any]]:
        """Return the work of a round; the same name again replaces the first, which is ended.

        ``asked``: ``name, node, profile, python``, and of its pool ``limits, storage, fleet``; of a part of the full
        profile its name (``part``), those of all ``parts``, and its checks (``only``). ``busy``: a member lives on the
        node. ``is_wanted``: somebody waits for the answer still. Raises: ChecksRefused, ValueError, KeyError.
        """
        name, profile = str(asked["name"]), Profile(asked["profile"])
        if node is None:
            raise ChecksRefused("UNKNOWN_NODE", f"this machine has no node {asked['node']}")
        if busy and profile is Profile.FULL:
            message = f"runs are on {node.name}: a full round would disturb them"
            raise ChecksRefused("NODE_IN_USE", message)
        python = "" if busy else str(asked.get("python") or "")
        with self._lock:
            for other in self._running:
                if other.name != name and not other.over.is_set():
                    where = "" if other.node == node.name else f", on the machine of {node.name}"
                    message = f"a round of checks runs on {other.node} already{where}"
                    raise ChecksRefused("CHECKS_BUSY", message)
                other.over.set()
            mine = Round(
                name=name, node=node.name, heavy=bool(python) or profile is Profile.FULL, over=Event()
            )
            self._running.append(mine)

        def work() -> dict[str, Any]:
            try:
                return self._check(mine, node, profile, python, asked, is_wanted)
            finally:
                with self._lock:
                    self._running.remove(mine)

        return work

    def stop(self, name: str | None = None) -> None:
        """End a round, or all; what was begun answers that it was stopped."""
        with self._lock:
            for each in self._running:
                if name in (None, each.name):
                    each.over.set()

    def give_way(self, node: str) -> None:
        """End a heavy round on a node: a member starts there."""
        with self._lock:
            for each in self._running:
                if each.heavy and each.node == node:
                    each.over.set()

    def close(self) -> None:
        """End all, and begin nothing more."""
        self.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _check(
        self,
        mine: Round,
        node: Node,
        profile: Profile,
        python: str,
        asked: Mapping[str, Any],
        is_wanted: Callable[[], bool],
    ) -> dict[str, Any]:
        began = time.monotonic()
        uuids = [device.uuid for device in node.devices] if node.model is not None else []
        limits, storage = asked.get("limits"), tuple(asked.get("storage") or ())
        setting = preflight.setting_of(python, uuids, self._node_folder, limits, storage=storage)
        part, only = str(asked.get("part") or ""), tuple(str(one) for one in asked.get("only") or ())
        setting = replace(setting, only=only, fleet=preflight.fleet_of(asked))
        wish = {"profile": profile.value, "nice": NICE, "setting": setting.as_json()}
        try:
            results = preflight.check(
                wish, preflight.DEADLINE_S[profile], lambda: mine.over.is_set() or not is_wanted()
            )
        except PreflightInterrupted:
            return {"state": "stopped", "results": []}
        if results is None:
            return {"state": "silent", "results": []}
        kept = of_node(results, node)
        if node.model is not None:
            identity = preflight.identity_of(node.name, uuids, self._node_folder, limits, storage)
            if only:
                self._certify_part(identity, part, asked.get("parts") or (), kept)
            else:
                self._certify(identity, profile, kept, whole=mine.heavy)
        told = [result_to_json(one) for one in kept]
        return {"state": "done", "results": told, "part": part, "took_s": round(time.monotonic() - began, 1)}

    def _certify(
        self, identity: Identity, profile: Profile, results: Sequence[CheckResult], *, whole: bool
    ) -> None:
        """Keep what was passed for the next start, where GPUs had to work; what failed voids what was passed before."""
        path = preflight.certificate_path(self._node_folder, identity.node)
        if any(one.status is CheckStatus.FAIL for one in results):
            certificate.revoke(path)
        if not whole:
            return
        now_ms = time.time_ns() // 1_000_000
        kept = certificate.load(path)
        if profile is Profile.FAST and kept is not None and kept.holds(identity, Profile.FULL, now_ms):
            return  # it says more than this round
        passed = certificate.issue(identity, profile, results, now_ms)
        if passed is not None:
            with contextlib.suppress(OSError):  # the next start checks it again
                certificate.store(path, passed)

    def _certify_part(
        self, identity: Identity, part: str, all_parts: Sequence[str], results: Sequence[CheckResult]
    ) -> None:
        """Keep a part that was passed; with the last of all the node has a certificate."""
        path = preflight.certificate_path(self._node_folder, identity.node)
        mine = path.with_name(f"{identity.node}.parts")
        if any(one.status is CheckStatus.FAIL for one in results):
            certificate.revoke(path)
            parts.forget(mine)
            return
        with contextlib.suppress(OSError):  # the next start checks it again
            whole = parts.take(mine, identity, part, all_parts, results, time.time_ns() // 1_000_000)
            if whole is not None:
                certificate.store(path, whole)


def of_node(results: Sequence[CheckResult], node: Node) -> list[CheckResult]:
    """Return what concerns the node: not the GPUs of others, and none at all for a slot of CPUs."""
    mine = {device.index for device in node.devices}
    return [
        result
        for result in results
        if (result.device is None or result.device in mine)
        and (node.model is not None or result.component not in _OF_GPUS)
    ]
