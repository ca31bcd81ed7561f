"""Starts the command of a member: its environment, its files, its process.

Owns: which variables a command sees and in what order they win, the command file, fork and exec.
Must not know: the server, when to start or stop.

Secrets go into the process's environment and nowhere else.
"""

from __future__ import annotations

import json
import os
import signal as signals
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airyard.node.flight import variables as flight_variables
from airyard.node.identity import Identity
from airyard.node.job_files import PASSAGE, make_folder, write_file
from airyard.node.trust import VARIABLE as CA_VARIABLE

INHERITED = frozenset({
    "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "all_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
})  # fmt: skip
INHERITED_PREFIXES = ("LC_", "PIP_", "UV_")
OWN_CACHES = frozenset({"UV_CACHE_DIR", "PIP_CACHE_DIR"})
"""Folders of this process's account, which another account could not use."""
PROTECTED = frozenset({
    "NUM_NODES", "NODE_RANK", "POD_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "LOCAL_ADDR", "CUDA_VISIBLE_DEVICES",
})  # fmt: skip
_NO_WORD_ON_HANGS = {"timeout_s": None, "action": "report"}
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the command finds things."""

    work: Path
    """The working folder: the code, or an empty folder."""
    code: Path | None
    control: Path
    stop_file: Path
    acknowledgement_file: Path
    checkpoints: Path
    output: Path
    scratch: Path
    temporary: Path


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a command may see of the machine's own environment."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    kept["PATH"] = environ.get("PATH", DEFAULT_PATH)
    return kept


def of_checks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what checks of the machine may see of it: NVML is to be found where the agent found it, too.

    Some hosts have the driver's library only where this variable says.
    """
    library = {name: environ[name] for name in ("LD_LIBRARY_PATH",) if name in environ}
    return {**inherited(environ), **library}


def airyard_variables(
    order: Mapping[str, Any],
    go: Mapping[str, Any],
    places: Places,
    *,
    address: str,
    token: str,
    network: Mapping[str, str] = MappingProxyType({}),
    ca_file: Path | None = None,
    bin_folder: Path | None = None,
) -> dict[str, str]:
    """Return Airyard's own variables for this member; ``network`` are those for NCCL and gloo.

    ``token`` is the command's (``command_token``), never the runner's. ``bin_folder`` is the environment's.

    ``ca_file`` is where the command finds the CA of the server's certificate, where that is a private one.
    """
    variables = {
        "NUM_NODES": str(order["members"]),
        "NODE_RANK": str(order["member"]),
        "POD_RANK": str(order["member"]),
        "LOCAL_WORLD_SIZE": str(order["local_world_size"]),
        "WORLD_SIZE": str(order["world_size"]),
        "MASTER_ADDR": str(go["master_addr"]),
        "MASTER_PORT": str(go["master_port"]),
        "LOCAL_ADDR": address,
        "CUDA_VISIBLE_DEVICES": str(order.get("visible_devices") or ""),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(places.temporary),
        "AIRYARD_RUN_ID": str(order["run_id"]),
        "AIRYARD_ATTEMPT": str(order["attempt"]),
        "AIRYARD_STOP_FILE": str(places.stop_file),
        "AIRYARD_CHECKPOINT_ACK": str(places.acknowledgement_file),
        "AIRYARD_PROGRESS_DIR": str(places.acknowledgement_file.parent),
        "AIRYARD_CHECKPOINT_DIR": str(places.checkpoints),
        "AIRYARD_OUTPUT_DIR": str(places.output),
        "AIRYARD_SCRATCH": str(places.scratch),
    }
    if places.code is not None:
        variables["CODE_SOURCE_PATH"] = variables["CODE_SOURCE"] = str(places.code)
    if order.get("parameters") is not None:
        variables["HYPERPARAMETERS_PATH"] = str(places.control / "hyperparameters.yaml")
    if int(order["world_size"]) > 1:
        at_once = (order.get("hang") or _NO_WORD_ON_HANGS) != _NO_WORD_ON_HANGS
        users = {*(order.get("variables") or {}), *(order.get("secrets") or {})}
        folder = places.acknowledgement_file.parent
        # Unset it says nothing of what went wrong between two nodes.
        variables["NCCL_DEBUG"] = "WARN"
        variables.update(flight_variables(folder, at_once=at_once, users=users, bin_folder=bin_folder))
    if order.get("simulated"):
        variables["AIRYARD_SIMULATED"] = "1"
    if ca_file is not None:
        variables[CA_VARIABLE] = str(ca_file)
    return {**variables, **network, **_tracking(go, token, ca_file)}


def command_token(go: Mapping[str, Any], runners: str) -> str:
    """Return the token that a command gets; the runner's own where a server of the release before gives no other."""
    return str((go.get("tracking") or {}).get("token") or runners)


def hand_ca(kept: Path | None, places: Places) -> Path | None:
    """Put a copy of the CA where the command can read it, whoever it runs as. Raises: OSError."""
    if kept is None:
        return None
    path = places.control / "ca.pem"
    path.write_bytes(kept.read_bytes())
    path.chmod(0o644)
    return path


def _tracking(go: Mapping[str, Any], token: str, ca_file: Path | None) -> dict[str, str]:
    tracking = go.get("tracking") or {}
    variables: dict[str, str] = {}
    if tracking.get("uri"):
        variables["MLFLOW_TRACKING_URI"] = str(tracking["uri"])
        variables["MLFLOW_TRACKING_TOKEN"] = token
        if ca_file is not None and variables["MLFLOW_TRACKING_URI"].startswith("https:"):
            variables["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(ca_file)
    if tracking.get("run_id"):
        variables["MLFLOW_RUN_ID"] = str(tracking["run_id"])
    if tracking.get("experiment_id"):
        variables["MLFLOW_EXPERIMENT_ID"] = str(tracking["experiment_id"])
    if go.get("tracking_deferred"):
        variables["AIRYARD_TRACKING"] = "deferred"
    else:
        variables["AIRYARD_TRACKING"] = "on" if variables else "off"
    return variables


def login(machine: Mapping[str, str], identity: Identity | None, *, homeless: Path) -> dict[str, str]:
    """Return the variables of a process: the machine's, and those of the account that it runs as."""
    kept = inherited(machine)
    if identity is None:
        return kept
    kept = {name: value for name, value in kept.items() if name not in OWN_CACHES}
    return {**kept, **identity.variables(homeless=str(homeless))}


def full_environment(
    order: Mapping[str, Any],
    own: Mapping[str, str],
    *,
    machine: Mapping[str, str],
    view: Mapping[str, str],
    cage: Mapping[str, str],
    bin_folder: Path | None,
) -> dict[str, str]:
    """Put the layers together; later wins: machine, the run's environment, Airyard, user, secrets, cage.

    ``machine`` is what ``login`` returns. ``bin_folder`` is the environment's and comes first on the PATH.

    A user's variable never replaces an ``AIRYARD_*``, rank or rendezvous name (at submit it is an error).
    """
    merged = {**machine, **view, **own}
    if bin_folder is not None:
        merged["PATH"] = f"{bin_folder}:{merged['PATH']}"
    for layer in (order.get("variables") or {}, order.get("secrets") or {}):
        for name, value in layer.items():
            if name not in PROTECTED and not name.startswith("AIRYARD_"):
                merged[name] = str(value)
    return {**merged, **cage}


def write_control_files(order: Mapping[str, Any], places: Places, owner: Identity | None = None) -> Path:
    """Write the command text and the hyperparameters (JSON, which is YAML); return the command file.

    The folder stays ours, so that nobody can put a link where a file of ours is about to be written.
    """
    places.control.mkdir(parents=True, exist_ok=True)
    if owner is not None:
        places.control.chmod(PASSAGE)
    make_folder(places.acknowledgement_file.parent, owner)
    command = places.control / "command.sh"
    write_file(command, str(order["command"]), owner)
    if order.get("parameters") is not None:
        text = json.dumps(order["parameters"], indent=2, ensure_ascii=False)
        write_file(places.control / "hyperparameters.yaml", text + "\n", owner)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command that runs, and the reading ends of its output."""

    pid: int
    stdout: int
    stderr: int


def start_command(
    command: Path,
    *,
    environment: Mapping[str, str],
    work: Path,
    before_exec: Callable[[], None],
    owner: Identity | None = None,
) -> Started:
    """Run ``bash command`` in its own session; the child calls ``before_exec``, then enters ``work``.

    ``owner`` is whom ``before_exec`` turns the child into.
    Raises: OSError, with what the child met before it could exec.
    """
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    note_read, note_write = os.pipe()
    if owner is not None:
        for fd in (stdout_write, stderr_write):
            os.fchown(fd, owner.uid, owner.gid)  # else /dev/stdout could not be opened

    def prepare_child() -> None:
        try:
            before_exec()
            os.chdir(work)
        except BaseException as error:
            os.write(note_write, f"{type(error).__name__}: {error}".encode()[:4096])
            raise

    try:
        with warnings.catch_warnings():
            # Python 3.12+ warns of forking with threads: the child only makes system calls before exec.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = subprocess.Popen(
                ["bash", str(command)],
                stdin=subprocess.DEVNULL,
                stdout=stdout_write,
                stderr=stderr_write,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=prepare_child,  # noqa: PLW1509  # see above
            )
    except (OSError, subprocess.SubprocessError) as error:
        os.close(note_write)
        note_write = -1
        note = os.read(note_read, 4096).decode("utf-8", "replace")
        os.close(stdout_read)
        os.close(stderr_read)
        raise OSError(note or str(error)) from error
    finally:
        for fd in (stdout_write, stderr_write, note_read, note_write):
            if fd >= 0:
                os.close(fd)
    # The output pump reaps the process; tell Popen that nobody needs to.
    process.returncode = 0
    return Started(pid=process.pid, stdout=stdout_read, stderr=stderr_read)


def signal_number(name: str) -> int:
    """Return the number of ``SIGTERM``, ``TERM`` or ``15``; SIGTERM for a name that this machine lacks."""
    text = name.strip().upper()
    if text.isdigit():
        return int(text)
    if not text.startswith("SIG"):
        text = f"SIG{text}"
    return int(getattr(signals, text, signals.SIGTERM))


def signal_group(pid: int, name: str) -> None:
    """Signal the command's process group; one that is gone is fine."""
    try:
        os.killpg(pid, signal_number(name))
    except (ProcessLookupError, PermissionError):
        pass
