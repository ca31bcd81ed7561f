"""`_bases_`: files that a workload file builds on.

Owns: reading bases, their order, cycles, the deep merge of documents.
Must not know: which fields exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airyard.spec.document import Document, parse_document
from airyard.spec.problems import FieldPath, Position, Problem, ProblemCode, position_of

BASES_KEY = "_bases_"
_MAX_FILES = 64


def deep_merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge maps key by key; anything else of ``over``, lists and nulls included, replaces."""
    out = dict(under)
    for key, value in over.items():
        below = out.get(key)
        out[key] = deep_merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return out


def merge_documents(under: Document, over: Document) -> Document:
    """Merge two documents; every position still names the file that the value came from."""
    replaced: set[FieldPath] = set()
    _note_replaced(under.data, over.data, (), replaced)

    def kept(path: FieldPath) -> bool:
        return not any(path[:length] in replaced for length in range(1, len(path) + 1))

    return Document(
        data=deep_merge(under.data, over.data),
        positions={**{path: at for path, at in under.positions.items() if kept(path)}, **over.positions},
        raw={**{path: text for path, text in under.raw.items() if kept(path)}, **over.raw},
    )


def _note_replaced(
    under: dict[str, Any], over: dict[str, Any], path: FieldPath, replaced: set[FieldPath]
) -> None:
    for key, value in over.items():
        if key not in under:
            continue
        if isinstance(under[key], dict) and isinstance(value, dict):
            _note_replaced(under[key], value, (*path, key), replaced)
        else:
            replaced.add((*path, key))


def resolve_bases(
    document: Document, *, folder: Path, file: str, own: Path | None = None
) -> tuple[Document, list[Problem]]:
    """Merge a document over its bases, theirs first; paths are relative to the file that names them.

    ``file`` is the document's name in problems, ``own`` its path where it has one.
    """
    problems: list[Problem] = []
    merged = _resolve(document, folder, (own.resolve() if own else folder,), (file,), file, problems)
    return merged, problems


def _resolve(
    document: Document,
    folder: Path,
    chain: tuple[Path, ...],
    names: tuple[str, ...],
    file: str,
    problems: list[Problem],
) -> Document:
    if BASES_KEY not in document.data:
        return document
    bases = document.data[BASES_KEY]
    own = Document(
        data={key: value for key, value in document.data.items() if key != BASES_KEY},
        positions=document.positions,
        raw=document.raw,
    )
    if not isinstance(bases, list) or not all(isinstance(item, str) for item in bases):
        problems.append(
            _problem(document, (BASES_KEY,), file, ProblemCode.WRONG_TYPE, "expected a list of paths")
        )
        return own
    merged = Document()
    for index, name in enumerate(bases):
        at: FieldPath = (BASES_KEY, index)
        base = _read_base(document, at, folder / name, name, chain, names, file, problems)
        if base is not None:
            merged = merge_documents(merged, base)
    return merge_documents(merged, own)


def _read_base(
    document: Document,
    at: FieldPath,
    path: Path,
    name: str,
    chain: tuple[Path, ...],
    names: tuple[str, ...],
    file: str,
    problems: list[Problem],
) -> Document | None:
    resolved = path.resolve()
    if resolved in chain:
        loop = " → ".join([*names[chain.index(resolved) :], name])
        problems.append(_problem(document, at, file, ProblemCode.BASES_CYCLE, f"bases form a cycle: {loop}"))
        return None
    if len(chain) >= _MAX_FILES:
        problems.append(
            _problem(
                document, at, file, ProblemCode.INVALID_VALUE, f"more than {_MAX_FILES} bases in a chain"
            )
        )
        return None
    try:
        text = resolved.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        problems.append(
            _problem(document, at, file, ProblemCode.FILE_NOT_FOUND, f"cannot read the base {name}: {reason}")
        )
        return None
    base, found = parse_document(text, file=name)
    problems.extend(found)
    return _resolve(base, resolved.parent, (*chain, resolved), (*names, name), name, problems)


def _problem(document: Document, path: FieldPath, file: str, code: ProblemCode, message: str) -> Problem:
    at: Position = position_of(path, document.positions, file)
    return Problem(code=code, path=BASES_KEY, message=message, position=at)
