"""What differs between two policies, field by field, in the words of yard.yaml.

Owns: the comparison and how a value reads. Must not know: who asked, colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Share, UserPolicy
from airyard.core.policy_json import policy_to_json

Path = tuple[str, ...]
"""Where a value stands in yard.yaml: ``("projects", "nlp", "pools", "h100", "guarantee")``."""
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class ChangeKind(Enum):
    """What happened to an object or a field."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference. ``before`` and ``after`` are texts; empty for a whole object that came or went."""

    kind: ChangeKind
    path: Path
    before: str = ""
    after: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the form that the API gives; the path is dotted."""
        return {
            "kind": self.kind.value,
            "path": ".".join(self.path),
            "before": self.before,
            "after": self.after,
        }


def changes(before: Policy, after: Policy) -> tuple[Change, ...]:
    """Return every difference, by path: objects that came (with what is not default in them), went or changed.

    Cost: what differs, and one comparison of each record.
    """
    if before == after:
        return ()
    old, new = _Tree(_without_same(before, after)), _Tree(_without_same(after, before))
    found = [
        Change(kind=ChangeKind.REMOVED, path=path) for path in _tops(set(old.objects) - set(new.objects))
    ]
    for path in new.objects:
        if path not in old.objects:
            found.append(Change(kind=ChangeKind.ADDED, path=path))
    for path, text in new.leaves.items():
        if path in old.leaves:
            if old.leaves[path] != text:
                found.append(Change(kind=ChangeKind.CHANGED, path=path, before=old.leaves[path], after=text))
        elif text != new.defaults.get(path):
            found.append(Change(kind=ChangeKind.ADDED, path=path, after=text))
    order = _common_order(before, after)
    return tuple(sorted((*found, *order), key=lambda change: _sorted_by(change.path)))


def duration_text(seconds: int) -> str:
    """Write a duration as yard.yaml does: ``7d``, ``1h30m``; of nothing ``0s``."""
    out = ""
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        out += f"{count}{unit}" if count else ""
    return out or "0s"


def number_text(value: float) -> str:
    """Write a number without a fraction that says nothing: ``8``, ``2.5``."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


_PLAIN = Policy(
    pools=(PoolPolicy(name="", accelerator=""),),
    projects=(ProjectPolicy(name="", shares=(Share(pool=""),)),),
    users=(UserPolicy(name=""),),
)


class _Tree:
    """A policy as objects and leaves by path. ``defaults`` are the texts that leaves would have by default."""

    def __init__(self, policy: Policy) -> None:
        self.objects: list[Path] = []
        self.leaves: dict[Path, str] = {}
        self.defaults: dict[Path, str] = {}
        self._walk(policy_to_json(policy), (), policy_to_json(_PLAIN))

    def _walk(self, node: Mapping[str, Any], path: Path, plain: Mapping[str, Any]) -> None:
        for key, value in node.items():
            if key in ("name", "pool"):
                continue
            usual = plain[key]
            if key in ("pools", "projects", "users"):
                for item in value:
                    below = (*path, key, str(item.get("name") or item.get("pool")))
                    self.objects.append(below)
                    self._walk(item, below, usual[0])
            elif key == "per_user":
                self._walk(value, (*path, key), usual)
            else:
                self.leaves[(*path, key.removesuffix("_s"))] = _text(key, value)
                self.defaults[(*path, key.removesuffix("_s"))] = _text(key, usual)


def _without_same(policy: Policy, other: Policy) -> Policy:
    """Leave out the records that stand in the other policy as well."""
    pools, projects, users = set(other.pools), set(other.projects), set(other.users)
    return replace(
        policy,
        pools=tuple(pool for pool in policy.pools if pool not in pools),
        projects=tuple(project for project in policy.projects if project not in projects),
        users=tuple(user for user in policy.users if user not in users),
    )


def _text(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if key == "thresholds":  # names such as copy_gb_s are no durations
        return (
            ", ".join(
                f"{table}.{name} {number_text(limit)}"
                for table, limits in value.items()
                for name, limit in limits.items()
            )
            or "none"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if key.endswith("_s"):
        return duration_text(value)
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{name.removesuffix('_s')} {_text(name, item)}" for name, item in value.items())
            or "none"
        )
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _tops(paths: set[Path]) -> list[Path]:
    """Leave out what lies in another one: a project that goes takes its shares along."""
    return [path for path in paths if not any(path[:length] in paths for length in range(1, len(path)))]


def _common_order(before: Policy, after: Policy) -> list[Change]:
    """Pools stand in an order that matters: the first that takes a node has it."""
    names = {pool.name for pool in before.pools} & {pool.name for pool in after.pools}
    old, new = ([pool.name for pool in policy.pools if pool.name in names] for policy in (before, after))
    if old == new:
        return []
    return [Change(kind=ChangeKind.CHANGED, path=("pools",), before=", ".join(old), after=", ".join(new))]


def _sorted_by(path: Path) -> tuple[bool, Path]:
    return len(path) == 1 and path != ("pools",), path


def normal(policy: Policy) -> Policy:
    """Return the policy in one order: all but the pools by name, lists without repetition.

    Two files that say the same are then equal. Of pools, projects, users and shares nothing is left out.
    """
    return replace(
        policy,
        pools=tuple(
            replace(pool, labels=tuple(sorted(set(pool.labels))), nodes=_unique(pool.nodes))
            for pool in policy.pools
        ),
        projects=tuple(
            replace(
                project,
                shares=tuple(sorted(project.shares, key=lambda share: share.pool)),
                members=_unique(project.members),
                critical=_unique(project.critical),
            )
            for project in sorted(policy.projects, key=lambda project: project.name)
        ),
        users=tuple(sorted(policy.users, key=lambda user: user.name)),
    )


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
