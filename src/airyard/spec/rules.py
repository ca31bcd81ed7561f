"""Rules between fields, on plain data, so that they speak even when some field is wrong.

Owns: what excludes what, counts that must agree, names that are taken, what is not supported yet.
Must not know: files (code folders and requirement files are `inputs`), how a single value is spelled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from airyard.core.access.table import LEVELS
from airyard.core.workload import CPU, is_reserved_variable, parse_accelerator
from airyard.spec.fields import LEGACY_ACCELERATORS
from airyard.spec.problems import FieldPath, ProblemCode, Report, dotted_path

POOL_SPELLINGS = ("pool_id", "pool_name", "provisioned_capacity_id", "node_pool_id")
SECRET_TEXT = re.compile(r"\{\{\s*secrets/([^/\s{}]+)/([^/\s{}]+)\s*\}\}")
_SCIENTIFIC = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
_SURPRISING = re.compile(r"[-+]?0[0-7_]+|[-+]?\d[\d_]*(:[0-5]?\d)+")
"""Octal (``010`` is 8) and base 60 (``12:30`` is 750), as YAML 1.1 has them."""
_IMAGES = ("unity_catalog_image", "docker_image", "custom_image_tag")


def check_rules(data: dict[str, Any], report: Report) -> None:
    """Report every rule between fields that the file breaks."""
    for rule in (
        _compute, _priority, _preemption, _command, _containers, _variables, _environment, _code_source,
        _tracking, _descriptive, _parameters, _unsupported,
    ):  # fmt: skip
        rule(data, report)


def at(data: Any, *path: str | int) -> Any:
    """Return the value at a path of plain data; None where the way is not there."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def mapping_at(data: Any, *path: str | int) -> dict[str, Any]:
    """Return the map at a path; an empty one where there is none."""
    value = at(data, *path)
    return value if isinstance(value, dict) else {}


def node_count(data: dict[str, Any]) -> int | None:
    """Return how many nodes the compute block asks; None while it is not clear."""
    accelerator, count = at(data, "compute", "accelerator_type"), at(data, "compute", "num_accelerators")
    if not isinstance(accelerator, str):
        return None
    try:
        _, devices = parse_accelerator(LEGACY_ACCELERATORS.get(accelerator, accelerator))
    except ValueError:
        return None
    if count is None:
        return 1 if devices == 0 else None
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or count % max(devices, 1):
        return None
    return count // max(devices, 1)


def _one_of(report: Report, parent: FieldPath, given: list[str]) -> None:
    """Report every field after the first of a group that allows one."""
    for name in given[1:]:
        first = dotted_path((*parent, given[0]))
        report.add(ProblemCode.CONFLICTING_FIELDS, (*parent, name), f"excludes {first}; keep one of them")


def _compute(data: dict[str, Any], report: Report) -> None:
    compute = mapping_at(data, "compute")
    given = [name for name in POOL_SPELLINGS if compute.get(name) is not None]
    if len({compute[name] for name in given if isinstance(compute[name], str)}) > 1:
        _one_of(report, ("compute",), given)
    accelerator, count = compute.get("accelerator_type"), compute.get("num_accelerators")
    if not isinstance(accelerator, str):
        return
    named = LEGACY_ACCELERATORS.get(accelerator, accelerator)
    try:
        _, devices = parse_accelerator(named)
    except ValueError:
        return
    path = ("compute", "num_accelerators")
    if count is None and named != CPU:
        report.add(
            ProblemCode.MISSING_FIELD, path, f"is required with {named}: the accelerators of the whole run"
        )
    elif (
        isinstance(count, int)
        and not isinstance(count, bool)
        and devices > 1
        and count > 0
        and count % devices
    ):
        lower, upper = count // devices * devices, (count // devices + 1) * devices
        choice = f"{lower} or {upper}" if lower else f"{upper}"
        report.add(
            ProblemCode.INVALID_VALUE,
            path,
            f"{count} is not a multiple of the {devices} accelerators of each {named} node; ask {choice}",
        )


def _priority(data: dict[str, Any], report: Report) -> None:
    value = data.get("priority")
    if isinstance(value, int) and not isinstance(value, bool):
        message = (
            "numbers are not supported yet; write compute.priority_class: CRITICAL, NORMAL or BEST_EFFORT"
        )
        report.add(ProblemCode.NOT_SUPPORTED_YET, ("priority",), message)
    elif value is not None and at(data, "compute", "priority_class") is not None:
        report.add(ProblemCode.CONFLICTING_FIELDS, ("priority",), "excludes compute.priority_class; keep one")


def _preemption(data: dict[str, Any], report: Report) -> None:
    if at(data, "preemption", "max_loss") is None:
        return
    priority = at(data, "compute", "priority_class") or data.get("priority")
    if isinstance(priority, str) and priority.strip().upper() in ("CRITICAL", "BEST_EFFORT"):
        message = f"has no effect with {priority}: only NORMAL runs are spared for it"
        report.warn(ProblemCode.LOOKS_WRONG, ("preemption", "max_loss"), message)


def _command(data: dict[str, Any], report: Report) -> None:
    command, containers = data.get("command"), data.get("containers")
    if command is None and containers is None and data.get("job_type") != "udp":
        report.add(ProblemCode.MISSING_FIELD, ("command",), "is required (or containers, for roles)")
    elif command is not None and containers is not None:
        report.add(ProblemCode.CONFLICTING_FIELDS, ("containers",), "excludes command; keep one of them")


def _containers(data: dict[str, Any], report: Report) -> None:
    containers = data.get("containers")
    if not isinstance(containers, list):
        return
    names: dict[str, int] = {}
    owners: dict[int, int] = {}
    nodes = node_count(data)
    for index in range(len(containers)):
        name = at(containers, index, "name")
        if isinstance(name, str) and names.setdefault(name, index) != index:
            message = f"{name!r} is already the name of containers[{names[name]}]"
            report.add(ProblemCode.INVALID_VALUE, ("containers", index, "name"), message)
        _container_ranks(containers, index, owners, nodes, report)
    if nodes is not None and not report.has(("containers",)):
        missing = [rank for rank in range(nodes) if rank not in owners]
        if missing:
            message = f"no role for node rank {_some(missing)}; the run has {nodes} nodes, from 0"
            report.add(ProblemCode.INVALID_VALUE, ("containers",), message)


def _container_ranks(
    containers: list[Any], index: int, owners: dict[int, int], nodes: int | None, report: Report
) -> None:
    ranks = at(containers, index, "ranks")
    for place, rank in enumerate(ranks if isinstance(ranks, list) else []):
        path: FieldPath = ("containers", index, "ranks", place)
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            continue  # the models speak
        if rank in owners:
            report.add(ProblemCode.INVALID_VALUE, path, f"rank {rank} is taken by containers[{owners[rank]}]")
        elif nodes is not None and rank >= nodes:
            message = (
                f"rank {rank} does not exist: the run has {nodes} node{'s' if nodes > 1 else ''}, from 0"
            )
            report.add(ProblemCode.INVALID_VALUE, path, message)
        owners.setdefault(rank, index)


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:5])) + (" ..." if len(ranks) > 5 else "")


def _variables(data: dict[str, Any], report: Report) -> None:
    _variable_places(data, report, ((), ("environment",)))
    containers = data.get("containers")
    for index in range(len(containers) if isinstance(containers, list) else 0):
        here: FieldPath = ("containers", index)
        _variable_places(data, report, (here, (*here, "environment_variables")))


def _variable_places(data: dict[str, Any], report: Report, parents: tuple[FieldPath, ...]) -> None:
    """Check the variables of one scope, which may stand in several places."""
    seen: dict[str, FieldPath] = {}
    for parent in parents:
        for key in ("env_variables", "variables", "secrets"):
            for name, value in mapping_at(data, *parent, key).items():
                path = (*parent, key, name)
                _variable(path, name, value, report)
                if name in seen:
                    message = f"is also in {dotted_path(seen[name][:-1])}; keep one of them"
                    report.add(ProblemCode.CONFLICTING_FIELDS, path, message)
                seen.setdefault(name, path)


def _variable(path: FieldPath, name: str, value: Any, report: Report) -> None:
    if is_reserved_variable(name):
        report.add(
            ProblemCode.RESERVED_NAME, path, "is set by Airyard on every node and cannot be overridden"
        )
    if not isinstance(value, str):
        return
    if "\0" in value:
        report.add(ProblemCode.INVALID_VALUE, path, "contains a NUL character")
    if "{{" in value and "secrets/" in value and path[-2] != "secrets" and not SECRET_TEXT.fullmatch(value):
        message = "a secret is the whole text {{secrets/scope/key}}"
        report.add(ProblemCode.INVALID_VALUE, path, message)


def _environment(data: dict[str, Any], report: Report) -> None:
    environment = mapping_at(data, "environment")
    images = [name for name in _IMAGES if environment.get(name) is not None]
    _one_of(report, ("environment",), images)
    for name in ("version", "dependencies") if images else ():
        if environment.get(name) is not None:
            message = f"excludes environment.{images[0]}: an image brings its own software"
            report.add(ProblemCode.CONFLICTING_FIELDS, ("environment", name), message)
    docker = mapping_at(environment, "docker_image")
    scope, key = docker.get("credentials_scope"), docker.get("credentials_key")
    if (scope is None) != (key is None):
        missing = "credentials_scope" if scope is None else "credentials_key"
        path = ("environment", "docker_image", missing)
        report.add(ProblemCode.MISSING_FIELD, path, "credentials_scope and credentials_key go together")
    if (scope or key) and docker.get("tag_policy") != "latest":
        path = ("environment", "docker_image", "tag_policy")
        report.add(ProblemCode.INVALID_VALUE, path, "credentials need tag_policy: latest")


def code_block(data: dict[str, Any]) -> tuple[FieldPath, dict[str, Any]]:
    """Return where the fields of the code lie (flat or nested form), and those fields."""
    if isinstance(at(data, "code_source", "snapshot"), dict):
        return ("code_source", "snapshot"), mapping_at(data, "code_source", "snapshot")
    return ("code_source",), mapping_at(data, "code_source")


def _code_source(data: dict[str, Any], report: Report) -> None:
    source = mapping_at(data, "code_source")
    if not isinstance(data.get("code_source"), dict):
        return
    path, block = code_block(data)
    if path == ("code_source",) and source.get("root_path") is None:
        report.add(ProblemCode.MISSING_FIELD, ("code_source", "root_path"), "is required in code_source")
    if path != ("code_source",):
        for name in ("root_path", "include_paths", "git", "remote_volume"):
            if source.get(name) is not None:
                message = "excludes code_source.snapshot; keep one form"
                report.add(ProblemCode.CONFLICTING_FIELDS, ("code_source", name), message)
    git = mapping_at(block, "git")
    _one_of(report, (*path, "git"), [name for name in ("branch", "commit") if git.get(name) is not None])
    if git.get("remote") not in (None, False):
        message = "commits are never fetched; fetch first, then name the commit"
        report.add(ProblemCode.NOT_SUPPORTED_YET, (*path, "git", "remote"), message)
    if block.get("remote_volume") is not None:
        message = "code goes to the server's own store; leave it out"
        report.add(ProblemCode.NOT_SUPPORTED_YET, (*path, "remote_volume"), message)


def _tracking(data: dict[str, Any], report: Report) -> None:
    if data.get("tracking") in (False, "off"):
        for name in ("mlflow_run_name", "mlflow_experiment_directory", "mlflow_artifact_location"):
            if data.get(name) is not None:
                report.warn(ProblemCode.LOOKS_WRONG, (name,), "has no effect with tracking: off")


def _descriptive(data: dict[str, Any], report: Report) -> None:
    _one_of(
        report,
        (),
        [name for name in ("usage_policy_name", "usage_policy_id") if data.get(name) is not None],
    )
    for name in ("usage_policy_name", "usage_policy_id"):
        if data.get(name) is not None:
            report.warn(ProblemCode.NOT_ENFORCED, (name,), "is stored and shown, but not enforced yet")
    grants = data.get("permissions")
    for index, grant in enumerate(grants if isinstance(grants, list) else []):
        principals = ("user_name", "group_name", "service_principal_name")
        given = [name for name in principals if isinstance(grant, dict) and grant.get(name) is not None]
        if isinstance(grant, dict) and len(given) != 1:
            message = f"needs exactly one of {', '.join(principals)}; it has {len(given)}"
            report.add(ProblemCode.INVALID_VALUE, ("permissions", index), message)
        level = grant.get("level") if isinstance(grant, dict) else None
        if isinstance(level, str) and level not in LEVELS:
            message = f"{level} is none of {', '.join(LEVELS)}, and gives no right"
            report.warn(ProblemCode.LOOKS_WRONG, ("permissions", index, "level"), message)


def _parameters(data: dict[str, Any], report: Report) -> None:
    for path, value in _leaves(data.get("parameters"), ("parameters",)):
        if isinstance(value, float) and not math.isfinite(value):
            message = f"{value} cannot be stored as a number; write it as text"
            report.add(ProblemCode.INVALID_VALUE, path, message)
        elif isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
            message = f"YAML reads {value} as text; as a number it is {_with_dot(value)}"
            report.warn(ProblemCode.LOOKS_WRONG, path, message)
        elif isinstance(value, int) and _SURPRISING.fullmatch(report.raw.get(path, "")):
            message = f"YAML reads {report.raw[path]} as the number {value}; put it in quotes to keep it"
            report.warn(ProblemCode.LOOKS_WRONG, path, message)


def _with_dot(text: str) -> str:
    """Write ``1e-4`` so that YAML 1.1 sees a number: ``1.0e-4``."""
    mantissa, exponent = re.split("[eE]", text)
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{sign}{exponent}"


def _leaves(value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _leaves(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _leaves(below, (*path, index))
    else:
        yield path, value


def _unsupported(data: dict[str, Any], report: Report) -> None:
    """What changes how a run runs and is not built yet is an error, never silence."""
    for name in _IMAGES:
        if at(data, "environment", name) is not None:
            message = "images are not supported yet; use version and dependencies"
            report.add(ProblemCode.NOT_SUPPORTED_YET, ("environment", name), message)
    containers = data.get("containers")
    for index in range(len(containers) if isinstance(containers, list) else 0):
        if at(containers, index, "unity_catalog_image") is not None:
            path: FieldPath = ("containers", index, "unity_catalog_image")
            report.add(ProblemCode.NOT_SUPPORTED_YET, path, "images are not supported yet")
    if data.get("job_type") == "udp" or data.get("udp") is not None:
        name = "job_type" if data.get("job_type") == "udp" else "udp"
        report.add(ProblemCode.NOT_SUPPORTED_YET, (name,), "batch inference (udp) is not supported yet")
