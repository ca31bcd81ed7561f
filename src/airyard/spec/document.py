"""YAML text to plain data that remembers where every value was written.

Owns: the safe subset of YAML, the size and depth bounds, duplicate keys, positions, raw scalar text.
Must not know: which fields exist, files (the text comes in).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from airyard.spec.problems import FieldPath, Position, Problem, ProblemCode, dotted_path

MAX_BYTES = 1024 * 1024
MAX_NODES = 200_000
"""Values after aliases are expanded; stops a file of aliases to aliases."""
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(slots=True, kw_only=True)
class Document:
    """One YAML file (or several merged) as plain data, with positions and the raw text of each scalar."""

    data: dict[str, Any] = field(default_factory=dict)
    positions: dict[FieldPath, Position] = field(default_factory=dict)
    """Position of the key of a map entry, of the item in a list; ``()`` is the top of the file."""
    raw: dict[FieldPath, str] = field(default_factory=dict)
    """Scalars as written, without quotes: what ``1.10`` was before it became a number."""


def parse_document(text: str, *, file: str) -> tuple[Document, list[Problem]]:
    """Parse one YAML text whose top level is a map; a document with problems may be partial.

    Cost: pure Python, so that places and messages are the same everywhere: 1 ms for usual files, 6 s for 1 MiB.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        return Document(), [
            _problem(ProblemCode.FILE_TOO_LARGE, file, f"{size:,} bytes; a file has at most {MAX_BYTES:,}")
        ]
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        return Document(), [_syntax_problem(error, file)]
    except RecursionError:
        return Document(), [_problem(ProblemCode.YAML_SYNTAX, file, "the values are nested too deeply")]
    if root is None:
        return Document(), [_problem(ProblemCode.EMPTY_FILE, file, "the file is empty")]
    if not isinstance(root, yaml.MappingNode):
        message = f"the top level must be a map of fields, not {_kind_of(root)}"
        return Document(), [_problem(ProblemCode.WRONG_TYPE, file, message, root.start_mark)]
    reader = _Reader(loader, file)
    try:
        data = reader.read(root, ())
    except _TooMuch as error:
        return Document(), [_problem(ProblemCode.YAML_SYNTAX, file, str(error), root.start_mark)]
    document = Document(data=data, positions=reader.positions, raw=reader.raw)
    document.positions[()] = _position(file, root.start_mark)
    return document, reader.problems


def parse_value(text: str) -> Any:
    """Parse the value of an override by the same rules. Raises: ValueError with a one-line reason."""
    document, problems = parse_document(f"value: {text}", file="")
    if problems and "\n" not in text:
        document, problems = parse_document(f"value:\n  {text}", file="")
    if problems or list(document.data) != ["value"]:
        raise ValueError(problems[0].message if problems else "not one YAML value")
    return document.data["value"]


class _TooMuch(Exception):
    """The file expands to more than a reader should hold."""


class _Reader:
    """Walks composed nodes into plain data, noting positions, raw text and problems on the way."""

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self.positions: dict[FieldPath, Position] = {}
        self.raw: dict[FieldPath, str] = {}
        self.problems: list[Problem] = []
        self._loader = loader
        self._file = file
        self._count = 0
        self._open: set[int] = set()

    def read(self, node: yaml.Node, path: FieldPath) -> Any:
        """Return the plain value of a node. Raises: _TooMuch."""
        self._count += 1
        if self._count > MAX_NODES or len(path) > 100:
            raise _TooMuch(f"more than {MAX_NODES:,} values or 100 levels once its aliases are expanded")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            raise _TooMuch("an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            assert isinstance(node, yaml.SequenceNode)
            return self._sequence(node, path)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, path: FieldPath) -> Any:
        self.raw[path] = node.value
        if node.tag == _TIMESTAMP:
            return node.value  # JSON has no dates; the text says the same
        try:
            value = self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            self._add(ProblemCode.YAML_SYNTAX, path, f"unreadable value: {reason}", node.start_mark)
            return None
        unfit = _unfit(value)
        if unfit:
            self._add(ProblemCode.YAML_SYNTAX, path, unfit, node.start_mark)
            return None
        return value

    def _sequence(self, node: yaml.SequenceNode, path: FieldPath) -> Any:
        if not node.tag.endswith(":seq"):
            self._add(ProblemCode.YAML_SYNTAX, path, f"the tag {node.tag} is not supported", node.start_mark)
            return None
        items = []
        for index, child in enumerate(node.value):
            below = (*path, index)
            self.positions[below] = _position(self._file, child.start_mark)
            items.append(self.read(child, below))
        return items

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> Any:
        if not node.tag.endswith(":map"):
            self._add(ProblemCode.YAML_SYNTAX, path, f"the tag {node.tag} is not supported", node.start_mark)
            return None
        self._find_duplicates(node, path)
        try:
            self._loader.flatten_mapping(node)
        except yaml.YAMLError as error:
            self.problems.append(_syntax_problem(error, self._file))
        out: dict[str, Any] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._add(ProblemCode.WRONG_TYPE, path, "a key must be text", key.start_mark)
                continue
            if _unfit(key.value):
                self._add(ProblemCode.YAML_SYNTAX, path, _unfit(key.value), key.start_mark)
                continue
            below = (*path, key.value)
            self.positions[below] = _position(self._file, key.start_mark)
            out[key.value] = self.read(child, below)
        return out

    def _find_duplicates(self, node: yaml.MappingNode, path: FieldPath) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                message = f"given twice; the first is on line {seen[key.value]}"
                self._add(ProblemCode.DUPLICATE_KEY, (*path, key.value), message, key.start_mark)
            else:
                seen[key.value] = key.start_mark.line + 1

    def _add(self, code: ProblemCode, path: FieldPath, message: str, mark: yaml.Mark) -> None:
        self.problems.append(_problem(code, self._file, message, mark, dotted_path(path)))


def _unfit(value: Any) -> str:
    """Say why a scalar cannot be stored as JSON; empty when it can."""
    if isinstance(value, bytes):
        return "binary values are not supported"
    if isinstance(value, int) and value.bit_length() > 1024:
        return "the number is too large"
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "the text holds half of a character (a lone surrogate)"
    return ""


def _kind_of(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _position(file: str, mark: yaml.Mark | None) -> Position:
    if mark is None:
        return Position(file=file, line=1, column=1)
    return Position(file=file, line=mark.line + 1, column=mark.column + 1)


def _problem(
    code: ProblemCode, file: str, message: str, mark: yaml.Mark | None = None, path: str = ""
) -> Problem:
    return Problem(code=code, path=path, message=message, position=_position(file, mark))


def _syntax_problem(error: yaml.YAMLError, file: str) -> Problem:
    """Say what PyYAML found in one line, at the place it found it."""
    if isinstance(error, yaml.MarkedYAMLError):
        parts = [error.context, error.problem]
        message = "; ".join(part for part in parts if part) or "not valid YAML"
        if error.problem and "'\\t'" in error.problem:
            message = "a tab cannot indent YAML; use spaces"
        return _problem(ProblemCode.YAML_SYNTAX, file, message, error.problem_mark or error.context_mark)
    message = str(error).splitlines()[0] if str(error) else "not valid YAML"
    return _problem(ProblemCode.YAML_SYNTAX, file, message)
