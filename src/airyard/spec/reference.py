"""The reference of the workload file, written from the models: `python -m airyard.spec.reference`.

Owns: the text of docs/workload.md.
Must not know: where it is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from airyard.core.workload import RESERVED_VARIABLES
from airyard.spec.catalogue import Entry, fields_of
from airyard.spec.fields import MAX_COMMAND_LINES, Origin
from airyard.spec.help import shown
from airyard.spec.models import Block, WorkloadFile
from airyard.spec.problems import ProblemCode
from airyard.spec.secret_files import HEAD_BYTES

_RESERVED = ", ".join(f"`{name}`" for name in sorted(RESERVED_VARIABLES))
_HEAD = """\
# The workload file

Written from the models by `python -m airyard.spec.reference > docs/workload.md`; do not edit it.

A workload file is YAML of at most 1 MiB whose top level is a map. `airyard run` reads `./workload.yaml`
when no file is named. The same text per field: `airyard run -h config.compute`. For editors: write
`airyard schema > workload.schema.json` and begin the file with
`# yaml-language-server: $schema=workload.schema.json`.

```yaml
experiment_name: digits
compute:
  accelerator_type: GPU_8xH100
  num_accelerators: 16
code_source:
  root_path: .
command: |
  torchrun --nnodes $NUM_NODES --node_rank $NODE_RANK --nproc_per_node $LOCAL_WORLD_SIZE \\
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT train.py
```

Rules for the whole file:

- Unknown and duplicate keys are errors; all problems are reported at once, each with line, column and the
  nearest valid name.
- Relative paths are relative to the file. A field that is empty (`environment:`) counts as left out.
- Keys are text; dates are text. As in YAML 1.1, `1e-4` is text, `1.0e-4` a number, `010` is 8 and `12:30` is
  750: parameters of such forms are warned about.
- What changes how a run runs and is not built yet is the error `NOT_SUPPORTED_YET`; what only describes is
  stored, shown, and warned about.
- The AI Runtime's fields of every generation are read. Fields marked *Airyard* are extensions, fields
  marked *older* other spellings.
"""

_BASES = f"""\
## `_bases_` and overrides

`_bases_: [common.yaml]` builds on other files, relative to this one: maps are merged key by key, later
files win, this file wins over all; lists and empty values replace. A cycle is an error that shows its
chain.

`--override compute.num_accelerators=16` sets one value, read as YAML; missing blocks are created,
`containers.0.command=...` reaches into a list, and below `env_variables`, `secrets` and `tags` the value is
taken as text. The order is: bases, file, overrides.

## Variables

Names that Airyard sets cannot be overridden: `AIRYARD_*`,
{_RESERVED}.
A name stands in `env_variables` or in `secrets`, not in both.
`{{{{secrets/scope/key}}}}` as the whole value of a variable also names a secret.

## Dependencies

Each entry is one line: a requirement (`torch==2.9`, `name @ URL`), a URL, the absolute path of a wheel, `-r
FILE`, an index option (`--index-url`, `--extra-index-url`, `--find-links`, `--no-index`), or an option for
the next entry (`--no-deps`, `--no-build-isolation`, `--no-cache-dir`, `--force-reinstall`). Files of
requirements are read at submit and stored with the run; `$CODE_SOURCE_PATH/requirements.txt` is looked up
in the code folder. `--trusted-host` is refused.

## What is sent as code

Git's own list of files (tracked and untracked, less what is ignored at any level), uncommitted changes
included; in a folder that is no repository, its files less what `.gitignore` files name. `.git`,
`__pycache__`, `.DS_Store` and `._*` never go along. With `git.branch` or `git.commit`, what `git archive`
gives for that commit. Links inside the folder are kept; a link that leads out of it is an error. Files that
look like secrets (`.env`, private keys, credential files, tokens in the first {HEAD_BYTES // 1024} KiB)
stop the submit with their names unless allowed. The limit is 1 GiB. The commit, branch, remote, dirty flag
and diff (up to 1 MiB) are recorded. A tree that the server already holds is not sent again.

## Limits

A command has at most {MAX_COMMAND_LINES} lines. A file with its aliases expanded has at most 200,000
values, 100 levels deep.

## Problem codes

{", ".join(f"`{code.value}`" for code in ProblemCode)}.
"""


def reference_text() -> str:
    """Return the whole reference; the same models give the same text."""
    parts = [_HEAD, "## Fields\n", _table(WorkloadFile, ())]
    for entry in _blocks(WorkloadFile, ()):
        doc = (entry.model.__doc__ or "").strip() if entry.model else ""
        assert entry.model is not None
        parts += [f"### `{entry.dotted}`\n", doc + "\n", _table(entry.model, entry.path)]
    parts.append(_BASES)
    return "\n".join(parts)


def _blocks(model: type[Block], prefix: tuple[str, ...]) -> Iterator[Entry]:
    for entry in fields_of(model, prefix):
        if entry.model is not None:
            yield entry
            yield from _blocks(entry.model, entry.path)


def _table(model: type[Block], prefix: tuple[str, ...]) -> str:
    rows = ["| field | takes | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [_row(entry) for entry in fields_of(model, prefix)]
    return "\n".join(rows) + "\n"


def _row(entry: Entry) -> str:
    note = {Origin.AIR: "", Origin.AIRYARD: " *Airyard*", Origin.OLDER: " *older*"}[entry.origin]
    example = f" For example `{shown(entry.examples[0])}`." if entry.examples else ""
    default = "**required**" if entry.required else entry.default
    meaning = _cell(entry.description).replace("{{", "`{{").replace("}}", "}}`") + example
    return f"| `{entry.name}`{note} | {_cell(entry.type_text)} | {default} | {meaning} |"


def _cell(text: str) -> str:
    """Keep a table a table, and ``<k>`` visible."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(reference_text())
