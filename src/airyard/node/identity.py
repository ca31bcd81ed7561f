"""Unix identities: whose account a member's command gets, and how a process becomes it for good.

Owns: looking an account up, what this process may switch to, the order of the system calls.
Must not know: orders, folders, who in the yard has which account. Standard library only.

Everything that may ask a name service happens before a fork; the forked child makes system calls only.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

ANY = "*"
"""What an agent says that may start members as anybody."""
_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_KILL, _CAP_SETGID, _CAP_SETUID = 0, 1, 3, 5, 6, 7
_NEEDED = (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_KILL, _CAP_SETGID, _CAP_SETUID)
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
_NO_SHELLS = ("nologin", "false", "sync")
# Loaded before any fork: loading in a forked child could wait for a lock that nobody holds any more.
_LIBC = ctypes.CDLL(None, use_errno=True)


class IdentityRefused(Exception):
    """A member cannot get the account it is to run as; ``permanent``: on no machine, as things are configured."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.permanent = permanent


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An account of this machine, with all that is needed to become it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """All groups, the first one too."""
    home: str
    shell: str

    def variables(self, *, homeless: str) -> dict[str, str]:
        """Return what a login would set; ``homeless`` is the HOME of an account whose own is not there."""
        return {
            "HOME": self.home if os.path.isdir(self.home) else homeless,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash" if os.path.basename(self.shell) in ("", *_NO_SHELLS) else self.shell,
        }


def account() -> str:
    """Return the name of the account that this process runs as; its number where it has no name."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def switchable() -> str:
    """Return whom this process may start members as: ``*`` for anybody, else its own account's name."""
    return ANY if _may_switch() else account()


def find_identity(name: str, *, node: str, allow_root: bool = False) -> Identity | None:
    """Return the account ``name`` to switch to; None when this process runs as it already.

    Raises: IdentityRefused, which names the node, the reason and the next step.
    """
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise IdentityRefused(
            f"node {node} has no Unix user {name!r}: create it there, or have the machine's name service know it"
        ) from None
    if found.pw_uid == 0 and not allow_root:
        raise IdentityRefused(
            f"{name!r} is root on node {node}, and members do not run as root: give the user of the yard another "
            "unix_user, or set [people] allow_root = true in the server's configuration",
            permanent=True,
        )
    if found.pw_uid == os.geteuid():
        return None
    if not _may_switch():
        raise IdentityRefused(
            f"the agent of node {node} runs as {account()}, without the rights of root, and cannot start a member as "
            f"{name!r}: run it as root there (docs/operate/people.md), or leave such runs to other nodes"
        )
    return _of(found)


def identity_of(uid: int) -> Identity:
    """Return the account with this number. Raises: IdentityRefused when there is none (any more), or it is root's."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        raise IdentityRefused(f"there is no Unix user with number {uid} here") from None
    if found.pw_uid == 0:
        raise IdentityRefused("root is nobody to switch to", permanent=True)
    return _of(found)


def _of(found: pwd.struct_passwd) -> Identity:
    return Identity(
        name=found.pw_name,
        uid=found.pw_uid,
        gid=found.pw_gid,
        groups=tuple(os.getgrouplist(found.pw_name, found.pw_gid)),
        home=found.pw_dir,
        shell=found.pw_shell,
    )


def become(identity: Identity) -> None:
    """Turn the calling process into ``identity`` for good: for a forked child, before it execs.

    Groups before the user, for afterwards the right to change them is gone. No capability is left, in no set, and no
    program that is started can give one back (set-user-ID programs, ``sudo``). Raises: OSError.
    """
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(_MOST_CAPABILITIES):
        _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # those that the kernel lacks are refused
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
        raise PermissionError(f"the kernel did not switch to {identity.name}")
    _drop_capabilities()
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    os.umask(0o077)


def closed_folder(path: Path, identity: Identity) -> Path | None:
    """Return the first folder on the way to ``path`` that ``identity`` may not pass, by its mode; None: it can.

    Links on the way are followed, as the kernel does.
    """
    for way in (path, Path(os.path.realpath(path))):
        for folder in reversed(way.absolute().parents):
            try:
                found = folder.stat()
            except OSError:
                return folder
            if not _passes(found, identity):
                return folder
    return None


def _passes(found: os.stat_result, identity: Identity) -> bool:
    if found.st_uid == identity.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid in identity.groups:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _may_switch() -> bool:
    """True for root with the capabilities that switching, giving files away and killing take."""
    if os.geteuid() != 0:
        return False
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    return all(effective >> number & 1 for number in _NEEDED)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_NONE_LEFT = (ctypes.c_uint32 * 6)()
_HEADER = _Header(_CAPABILITY_VERSION_3, 0)


def _drop_capabilities() -> None:
    if _LIBC.capset(ctypes.byref(_HEADER), ctypes.byref(_NONE_LEFT)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
