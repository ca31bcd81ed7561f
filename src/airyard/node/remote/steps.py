"""What is done on a host of a fleet, by a Python there: look, receive, install, join, leave.

Owns: the installation folder (``<home>/install``) and its service. Must not know: Airyard's modules: the text of this
file is sent to the host and run there before anything is installed. Standard library only, Python 3.11.

Read from stdin: this file's length on one line, this file, a line of JSON {step, ...}, and for ``receive`` a tar.gz.
Answers with one line of JSON: {"result": ...} or {"error": {code, message, fix}}. A token comes by stdin alone.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

CONNECT_S = 10.0
SYSTEMD = Path("/run/systemd/system")
UNITS = Path("/etc/systemd/system")
KEPT = 2
"""Installations that stay: runs may still be served by the one before."""


class Problem(Exception):
    """Something that the one who asked can mend."""

    def __init__(self, code: str, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "fix": fix}


def look(asked: dict[str, Any], _: IO[bytes]) -> dict[str, Any]:
    """Say what is here: the membership of this home, whose it is, what is installed."""
    home = Path(asked["home"])
    ray = home / "node" / "ray"
    offer, notes = _read(ray / "offer.json"), _read(home / "install" / "joined.json")
    token = ray / "token"
    digest = hashlib.sha256(token.read_bytes().strip()).hexdigest() if offer and token.exists() else ""
    return {
        "joined": bool(offer),
        "live": _held(ray / "keeper.lock"),
        "same_yard": digest == asked["token_digest"],
        "server": str((offer or {}).get("server_url", "")),
        "machine": str((offer or {}).get("machine", "")),
        "installed": (home / "install" / asked["folder"] / "ready").exists(),
        "notes": notes or {},
        "away": _away(asked["server"]),
    }


def _away(server: str) -> str:
    """Return why the server cannot be reached from here; empty when it can."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def receive(asked: dict[str, Any], stdin: IO[bytes]) -> dict[str, Any]:
    """Unpack what follows into ``<home>/install/incoming``."""
    incoming = Path(asked["home"]) / "install" / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(parents=True, mode=0o700)
    try:
        with tarfile.open(fileobj=stdin, mode="r|gz") as archive:
            if hasattr(tarfile, "data_filter"):  # not in the first releases of 3.11; the sender is trusted
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(incoming)
    except OSError as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise _disk(error, incoming) from None
    except (tarfile.TarError, EOFError) as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise Problem(
            "REMOTE_FAILED", f"what was sent came in pieces: {error}", "run the command again"
        ) from None
    return {}


def install(asked: dict[str, Any], _: IO[bytes]) -> dict[str, Any]:
    """Make the environment of this version, unless it is there; return {bin, fresh}."""
    root = Path(asked["home"]) / "install"
    folder, incoming = root / asked["folder"], root / "incoming"
    fresh = not (folder / "ready").exists()
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)  # of one that was broken off
        try:
            _fill(folder, incoming, asked)
            (folder / "ready").touch()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
    os.utime(folder)
    old = sorted((each for each in root.glob("*/ready")), key=lambda each: each.parent.stat().st_mtime)
    for each in old[:-KEPT]:
        shutil.rmtree(each.parent, ignore_errors=True)
    link = root / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(root / "current")
    return {"bin": str(folder / "bin" / "airyard"), "fresh": fresh}


def _fill(folder: Path, incoming: Path, asked: dict[str, Any]) -> None:
    cache = (
        Path(asked["home"]) / "node" / "uv-cache"
    )  # on the same disk: what is the same is linked, not copied
    uv = incoming / "uv"
    if uv.exists():
        uv.chmod(0o700)
        make = [str(uv), "venv", "--quiet", "--python", asked["python"], str(folder)]
        pip = [str(uv), "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    else:
        make = [asked["python"], "-m", "venv", str(folder)]
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
    variables = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    # The host's own trust, for mirrors and proxies inside.
    variables |= {"UV_CACHE_DIR": str(cache), "UV_SYSTEM_CERTS": variables.get("UV_SYSTEM_CERTS", "true")}
    index = asked["index_url"] or (_pip_index() if uv.exists() else "")
    if (incoming / "wheelhouse").is_dir():
        source = ["--no-index", "--find-links", str(incoming / "wheelhouse")]
    else:
        source = []
        if index:  # by the environment: it may hold a password, and anybody may read a command line
            variables |= {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index}
    _run(make, variables, folder, "VENV_FAILED")
    _run(
        [*pip, "--require-hashes", *source, "-r", str(incoming / "node.lock")],
        variables,
        folder,
        "INSTALL_FAILED",
    )
    _run(
        [*pip, "--no-deps", "--no-index", str(incoming / asked["wheel"])], variables, folder, "INSTALL_FAILED"
    )


def _run(command: list[str], variables: dict[str, str], folder: Path, code: str) -> None:
    done = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode == 0:
        return
    said = " ".join((done.stderr or done.stdout).split())[-600:]
    lowered = said.lower()
    if "no space left" in lowered or "quota exceeded" in lowered:
        raise Problem(
            "HOST_DISK_FULL", f"the disk became full while installing: {said}", "make room, or use --home"
        )
    if "ensurepip" in lowered:
        raise Problem(
            "VENV_FAILED", f"this Python makes no environments: {said}", "apt-get install python3-venv"
        )
    if any(
        word in lowered
        for word in ("failed to fetch", "error sending request", "connection", "name resolution")
    ):
        fix = "name an index that the host reaches with --index-url, or carry the wheels with --wheelhouse"
        raise Problem("INDEX_UNREACHABLE", f"the packages cannot be had there: {said}", fix)
    if (
        "no matching distribution" in lowered
        or "no solution found" in lowered
        or "in the package registry" in lowered
    ):
        fix = "the index or the wheelhouse lacks what the lock file names (`airyard fleet lock`)"
        raise Problem("INDEX_LACKS", f"a package cannot be had there: {said}", fix)
    raise Problem(code, f"`{' '.join(command[:4])} ...` ended with {done.returncode}: {said}")


def _pip_index() -> str:
    """Return the index that this host's pip is told to use; uv does not read pip's files."""
    if given := os.environ.get("PIP_INDEX_URL"):
        return given
    if os.environ.get("UV_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX"):
        return ""
    parser = configparser.ConfigParser(interpolation=None)
    files = ["/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"]
    with contextlib.suppress(configparser.Error):
        parser.read([os.path.expanduser(name) for name in files])
    return parser.get("global", "index-url", fallback="")


def join(asked: dict[str, Any], _: IO[bytes]) -> dict[str, Any]:
    """Join with what is installed; leave first if this home is in the fleet already. Return {joined, service}."""
    home = Path(asked["home"])
    if asked["version"]:
        _same_version(asked["bin"], asked["version"])
    if asked["rejoin"]:
        _service(home, "stop")
        if (home / "node" / "ray" / "offer.json").exists():
            _airyard(asked["bin"], home, ["node", "leave", "--force"])
    token = home / "node" / "ray" / "token"
    _private(token, asked["token"])
    arguments = ["node", "join", asked["server"], "--token-file", str(token), *asked["arguments"]]
    if asked["ca"]:
        ca = token.with_name("ca.pem")
        _private(ca, asked["ca"])
        arguments += ["--ca-file", str(ca)]
    joined = _airyard(asked["bin"], home, arguments)
    (home / "install").mkdir(exist_ok=True, mode=0o700)
    (home / "install" / "joined.json").write_text(json.dumps(asked["notes"]))
    service = _enable(home, asked["bin"], arguments) if asked["service"] else "not asked for"
    return {"joined": joined, "service": service}


def leave(asked: dict[str, Any], _: IO[bytes]) -> dict[str, Any]:
    """Leave the fleet, forget the service and, if asked, everything that was brought here."""
    home = Path(asked["home"])
    joined = _read(home / "install" / "joined.json") or {}
    binary = asked["bin"] or joined.get("bin") or str(home / "install" / "current" / "bin" / "airyard")
    offer = _read(home / "node" / "ray" / "offer.json")
    _service(home, "disable")
    members: list[str] = []
    if offer:
        within = ["--within", f"{asked['within_s']}s"] if asked["within_s"] else []
        force = ["--force"] if asked["force"] else []
        # A service that was stopped has left already, and runs went on: the members are still to be drained.
        try:
            members = list(_airyard(binary, home, ["node", "leave", *within, *force])["members"])
        except Problem:
            _service(home, "enable")  # it is still in the fleet, and is to be so after a restart
            raise
    _service(home, "remove")
    purged = bool(asked["purge"]) and not members
    if purged:
        for name in ("install", "node"):
            shutil.rmtree(home / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            home.rmdir()
    return {"left": bool(offer), "members": members, "purged": purged}


def _airyard(binary: str, home: Path, arguments: list[str]) -> dict[str, Any]:
    done = _start([binary, "-o", "json", "--home", str(home), *arguments])
    with contextlib.suppress(ValueError, AttributeError):
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        if "data" in answer:
            return dict(answer["data"])
        fix = (answer["error"].get("fix") or {}).get("text", "")
        raise Problem(answer["error"]["code"], answer["error"]["message"], fix)
    said = " ".join((done.stderr or done.stdout).split())[-600:]
    raise Problem(
        "REMOTE_FAILED", f"`airyard {' '.join(arguments[:2])}` ended with {done.returncode}: {said}"
    )


def _same_version(binary: str, wanted: str) -> None:
    said = _start([binary, "--version"]).stdout.split()
    found = said[-1] if said else "none"
    if found != wanted:
        raise Problem(
            "VERSION_MISMATCH",
            f"{binary} is Airyard {found} there, and {wanted} here: a fleet has one version",
            "upgrade it there, or leave out --use-airyard",
        )


def _start(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise Problem("REMOTE_FAILED", f"{command[0]} cannot be run: {error.strerror}") from None


def _private(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise _disk(error, path) from None


def _disk(error: OSError, path: Path) -> Problem:
    full = error.errno in (28, 122)  # ENOSPC, EDQUOT
    code = "HOST_DISK_FULL" if full else "HOST_NOT_WRITABLE"
    return Problem(
        code, f"{path} cannot be written: {error.strerror or error}", "make room, or name another --home"
    )


# --- the service


def unit(home: str, command: list[str], *, system: bool) -> str:
    """Return the text of the unit that joins at each start of the machine. Pure."""

    def quoted(word: str) -> str:
        for plain, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
            word = word.replace(plain, written)
        return f'"{word}"'

    return f"""\
[Unit]
Description=Airyard node ({home.replace("%", "%%")})
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={" ".join(map(quoted, command))}
Restart=on-failure
RestartSec=10
# Runs outlive a restart of it: only the process that stays in the fleet is stopped, and takes Ray and the agent along.
KillMode=process
TimeoutStopSec=60

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""


def _unit_file(home: Path) -> tuple[Path, list[str]]:
    """Return where the unit of a home is, and the systemctl that it belongs to."""
    usual = home == Path.home() / ".airyard"
    name = "airyard-node" if usual else f"airyard-node-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"
    if os.getuid() == 0:
        return UNITS / f"{name}.service", ["systemctl"]
    return Path.home() / ".config" / "systemd" / "user" / f"{name}.service", ["systemctl", "--user"]


def _enable(home: Path, binary: str, arguments: list[str]) -> str:
    """Have systemd join again at each start of the machine; return what came of it, in words."""
    if not SYSTEMD.is_dir():
        return "no systemd: after a reboot run `airyard fleet add` again"
    path, systemctl = _unit_file(home)
    system = os.getuid() == 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unit(str(home), [binary, "--home", str(home), *arguments, "--block"], system=system))
    except OSError as error:
        return f"no service: {path} cannot be written: {error.strerror}"
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for line in ([*systemctl, "daemon-reload"], [*systemctl, "enable", "--now", path.name]):
        done = _start(line)
        if done.returncode != 0:
            return f"no service: `{' '.join(line)}`: {done.stderr.strip()[-200:]}"
    if not system and _start(["loginctl", "enable-linger"]).returncode != 0:
        return f"{path.name}, only while this user is logged in: `loginctl enable-linger` was refused"
    return path.name


def _service(home: Path, action: str) -> None:
    """``stop``, ``disable`` (and stop), ``enable`` (and start), ``remove``; harmless where there is none."""
    path, systemctl = _unit_file(home)
    if not path.exists() or not SYSTEMD.is_dir():
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if action == "stop":
        _start([*systemctl, "stop", path.name])
    elif action == "enable":
        _start([*systemctl, "enable", "--now", path.name])
    elif action == "disable":
        # Killed, not stopped: what leaves with grace is done by the step itself.
        _start([*systemctl, "disable", path.name])
        _start([*systemctl, "kill", "--kill-whom=main", "--signal=KILL", path.name])
        _start([*systemctl, "stop", path.name])
    else:
        path.unlink(missing_ok=True)
        _start([*systemctl, "daemon-reload"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _held(path: Path) -> bool:
    """Return whether a process holds this lock."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


STEPS = {"look": look, "receive": receive, "install": install, "join": join, "leave": leave}


def main(stdin: IO[bytes]) -> int:
    """Do the step that stdin names; one line of JSON says what came of it."""
    asked = json.loads(stdin.readline())
    os.umask(0o077)
    try:
        answer: dict[str, Any] = {"result": STEPS[asked["step"]](asked, stdin)}
    except Problem as problem:
        answer = {"error": problem.error}
    except OSError as error:
        answer = {"error": _disk(error, Path(str(error.filename or asked["home"]))).error}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer))
