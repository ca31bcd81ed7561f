"""A workload from a command line alone: `airyard run --gpus 2 [--nodes 2] -- CMD...`.

Owns: which accelerator such a run asks, how the command is written.
Must not know: argument parsing, the server (the models it offers come in).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from airyard.core.errors import UserError
from airyard.core.workload import CPU
from airyard.spec.load import Loaded, load_text

_DEFAULT_NAME = "adhoc"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What stands before and after the ``--``."""

    command: Sequence[str]
    gpus: int = 0
    """Per node; 0 runs on the CPU."""
    nodes: int = 1
    model: str | None = None
    """``H100``; None takes the only one that is offered."""
    experiment: str | None = None
    send_code: bool = False
    """Send the current folder along."""


def command_line_workload(
    line: CommandLine, *, folder: Path, models: Sequence[str] = (), overrides: Sequence[str] = ()
) -> Loaded:
    """Build the workload of a command line.

    ``models`` are the accelerator models that the yard offers, for ``--gpus`` without ``--model``.
    Raises: UserError, WorkloadInvalid.
    """
    if not line.command:
        raise UserError(
            "there is no command after --", code="NO_COMMAND", fix="airyard run --gpus 1 -- python train.py"
        )
    for name, value, least in (("--gpus", line.gpus, 0), ("--nodes", line.nodes, 1)):
        if value < least:
            raise UserError(f"{name} {value}: at least {least} is needed", code="INVALID_ARGS")
    text = yaml.safe_dump(_fields(line, models), sort_keys=False, allow_unicode=True, width=1000)
    return load_text(text, folder=folder, file="command line", overrides=overrides)


def _fields(line: CommandLine, models: Sequence[str]) -> Mapping[str, Any]:
    fields: dict[str, Any] = {
        "experiment_name": line.experiment or _experiment(line.command),
        "compute": {
            "accelerator_type": f"GPU_{line.gpus}x{_model(line, models)}" if line.gpus else CPU,
            "num_accelerators": line.nodes * max(line.gpus, 1),
        },
        "command": _command(line.command),
        "max_retries": 0,  # a person is watching; a second try is their decision
    }
    if line.send_code:
        fields["code_source"] = {"root_path": "."}
    return fields


def _command(words: Sequence[str]) -> str:
    """Write the words as bash reads them; a single word with spaces is a script already."""
    return words[0] if len(words) == 1 and re.search(r"\s", words[0]) else shlex.join(words)


def _experiment(words: Sequence[str]) -> str:
    """Name the experiment after the program: ``python train.py`` is ``train``."""
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    scripts = [word for word in plain if word.endswith((".py", ".sh"))]
    word = (scripts or plain or [_DEFAULT_NAME])[0]
    stem = (
        Path(word.split()[0] if word.split() else word).name.rpartition(".")[0] or Path(word.split()[0]).name
    )
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-")[:100] or _DEFAULT_NAME


def _model(line: CommandLine, models: Sequence[str]) -> str:
    if line.model is not None:
        return line.model
    if len(set(models)) == 1:
        return models[0]
    if models:
        raise UserError(
            f"this yard has several accelerators: {', '.join(sorted(set(models)))}",
            code="AMBIGUOUS_ACCELERATOR",
            fix=f"name one: --model {sorted(set(models))[0]}",
        )
    raise UserError(
        "this yard has no GPU",
        code="NO_SUCH_ACCELERATOR",
        fix="run on the CPU with --cpu, or try it on simulated nodes: `airyard up --simulate`",
    )
