"""The first look at a host, in the plainest shell, and whether it will do.

Owns: what is asked, reading the answer, the judgement. Must not know: how the question gets there. Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from airyard.core.errors import AiryardError, Conflict, Denied, Fix, NotFound, Unavailable, UserError

INSTALL_BYTES = 2_000_000_000
"""What an installation takes with the cache beside it: 1 GB, and the room to unpack."""
OLDEST_PYTHON = (3, 11)

_SCRIPT = """\
case $home in '~/'*) home=$HOME/${home#'~/'};; '~') home=$HOME;; esac
case $home in /*) ;; *) home=$HOME/$home;; esac
echo "home=$home"
echo "os=$(uname -s)"
echo "arch=$(uname -m)"
echo "user=$(id -un)"
echo "host=$(uname -n)"
d=$home
while [ ! -d "$d" ]; do d=$(dirname "$d"); done
test -w "$d" && echo writable=yes
set -- $(df -Pk "$d" | tail -n 1)
echo "free_kb=$4"
test -d /run/systemd/system && echo systemd=yes
for p in "$wanted" python$minor python3 $HOME/.local/bin/python$minor $HOME/.pyenv/versions/$exact/bin/python3 \\
    $HOME/.local/share/uv/python/cpython-$exact-*/bin/python3 /opt/python/$exact/bin/python3 /usr/local/bin/python3; do
  test -n "$p" || continue
  found=$("$p" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3], sys.executable)' 2>/dev/null) || continue
  echo "python=$found"
done
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a host said of itself."""

    home: str
    os: str = ""
    arch: str = ""
    user: str = ""
    host: str = ""
    writable: bool = False
    free_bytes: int = 0
    systemd: bool = False
    pythons: Mapping[str, str] = field(default_factory=dict)
    """Path → version, in the order of preference."""


def script(*, home: str, python: str, wanted_version: str) -> str:
    """Return the question. ``python`` is what was asked for, empty for whatever fits; ``home`` may begin with ``~``."""
    minor = ".".join(wanted_version.split(".")[:2])
    given = {"home": home, "wanted": python, "minor": minor, "exact": wanted_version}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in given.items()) + _SCRIPT


def read(answer: str) -> Look:
    """Read the answer; what a login shell prints around it is passed over."""
    pairs = [line.partition("=")[::2] for line in answer.splitlines() if "=" in line]
    said = dict(pairs)
    pythons: dict[str, str] = {}
    for name, value in pairs:
        version, _, path = value.partition(" ")
        if name == "python" and path:
            pythons.setdefault(path, version)
    free = said.get("free_kb", "")
    return Look(
        home=said.get("home", ""),
        os=said.get("os", ""),
        arch=said.get("arch", ""),
        user=said.get("user", ""),
        host=said.get("host", ""),
        writable=said.get("writable") == "yes",
        free_bytes=int(free) * 1024 if free.isdigit() else 0,
        systemd=said.get("systemd") == "yes",
        pythons=pythons,
    )


def judge(look: Look, *, name: str, python: str, wanted_version: str, to_install: bool) -> AiryardError | str:
    """Return the Python to use there, or why this host will not do. ``name`` is the host's for people."""
    if look.os != "Linux":
        return UserError(
            f"{name} runs {look.os or 'an unknown system'}: machines of a fleet run Linux.",
            code="HOST_SYSTEM",
        )
    if not look.writable:
        return Denied(
            f"{name}: user {look.user} may not write to {look.home}.",
            code="HOST_NOT_WRITABLE",
            fix="Name a folder of that user with --home, or log in as another user.",
        )
    if to_install and look.free_bytes < INSTALL_BYTES:
        return Unavailable(
            f"{name} has {look.free_bytes / 1e9:.1f} GB free where {look.home} is; "
            f"an installation needs {INSTALL_BYTES / 1e9:.1f} GB.",
            code="HOST_DISK_FULL",
            fix="Make room there, or name a folder on another disk with --home.",
            details={"free_bytes": look.free_bytes, "needed_bytes": INSTALL_BYTES},
        )
    return _choose(look, name, python, wanted_version)


def _choose(look: Look, name: str, python: str, wanted: str) -> AiryardError | str:
    exact = [path for path, version in look.pythons.items() if version == wanted]
    if exact:
        return exact[0]
    there = ", ".join(f"{version} ({path})" for path, version in look.pythons.items())
    fix = Fix(
        text=f"Install Python {wanted} there, for that user or for all, and name it with --python if it is not found.",
        command=f"uv python install {wanted}",
    )
    if not look.pythons:
        asked = f" ({python} is none)" if python else ""
        return NotFound(
            f"{name} has no Python{asked}; a fleet needs {wanted}.", code="HOST_PYTHON_MISSING", fix=fix
        )
    old = not any(map(new_enough, look.pythons.values()))
    why = "Airyard needs 3.11 or newer, and a fleet" if old else "a fleet"
    return Conflict(
        f"{name} has Python {there}, and the server {wanted}: {why} needs the same on all machines.",
        code="HOST_PYTHON_VERSION",
        fix=fix,
        details={"there": dict(look.pythons), "wanted": wanted},
    )


def new_enough(version: str) -> bool:
    """Return whether Airyard runs on this Python."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= OLDEST_PYTHON
