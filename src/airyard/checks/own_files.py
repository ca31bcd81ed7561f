"""A site's own checks: each file is loaded, run and judged in a process of its own, and costs only itself.

Owns: that process, its deadlines, how much it may say, what its crash comes to. Must not know: what is checked, how
results are shown.

Nothing of such a file is run in the process that asks: a file that cannot be loaded, loops, ends its process or prints
makes its own checks UNKNOWN, and all other results stand. The two sides speak JSON over a pipe, in turns::

    file: loaded    asker: go    file: collected    asker: limits    file: results
"""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from airyard.checks.children import die_with_parent
from airyard.checks.contract import Check, Probe, Profile, Site, Thresholds
from airyard.checks.hearing import received
from airyard.checks.limit import with_layer
from airyard.checks.preflight.results import result_from_json, result_to_json
from airyard.core.errors import UserError
from airyard.core.health.facts import CheckResult, CheckStatus, Component
from airyard.core.plain import plain

LOAD_S = 5.0
JUDGE_S = 5.0
MOST_S = {Profile.FAST: 40.0, Profile.FULL: 600.0}
"""A file's own ``deadline_s`` counts up to here: a round has a deadline, too."""
MOST_FILES = 64
MOST_CHECKS = 64
MOST_RESULTS = 256
"""Of one check, one a device as a rule."""
_MOST_BYTES = 16 << 20
_SAID = 300
_KILL_S = 1.0
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_NAME_LETTERS = 80


class Folder:
    """The own files of one round."""

    def __init__(self, folder: Path, profile: Profile, taken: frozenset[str] = frozenset()) -> None:
        """``taken``: names that no check of theirs may have. Raises: UserError where there is no such folder."""
        if not folder.is_dir():
            raise UserError(
                f"there is no folder {folder} with checks",
                code="BAD_CHECK",
                fix="Name the folder that has the site's own checks.",
            )
        self.profile = profile
        self.taken = taken
        found = sorted(folder.glob("*.py"))
        self.paths, self.more = found[:MOST_FILES], max(0, len(found) - MOST_FILES)


@dataclass(slots=True, kw_only=True)
class _File:
    """One file on its way: ``problem`` ends it, and says of which stage it is."""

    path: Path
    process: BaseProcess
    line: Connection
    probe: str = ""
    checks: tuple[tuple[str, Component], ...] = ()
    deadline_s: float = 0.0
    took_ms: int = 0
    problem: str = ""
    wanted: bool = True
    """False: it is of the other profile."""


class OwnFiles:
    """The files of a folder (None: there are none) while they are run: within its context they read, then ``judge``."""

    def __init__(self, folder: Folder | None, site: Site) -> None:
        self._folder = folder
        self._site = site
        self._taken = set(folder.taken if folder is not None else ())
        self._files: list[_File] = []
        self._asked_s = 0.0

    def __enter__(self) -> Self:
        """Start a process for each file, and have it read what it looks at once it has said what it is."""
        if self._folder is not None:
            self._begin(self._folder.paths)
            self._ask(time.monotonic() + LOAD_S, self._folder.profile)
        return self

    def __exit__(self, *_: object) -> None:
        """End what is left of them."""
        for file in self._files:
            file.line.close()
            file.process.kill()
        for file in self._files:
            file.process.join(_KILL_S)

    def _begin(self, paths: Sequence[Path]) -> None:
        context = multiprocessing.get_context("fork")
        for path in paths:
            mine, its = context.Pipe()
            given = (path, self._site, its, mine, os.getpid())
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            its.close()
            self._files.append(_File(path=path, process=process, line=mine))

    def _ask(self, until: float, profile: Profile) -> None:
        for file in self._files:
            said = _heard(file, until, f"it is not loaded within {LOAD_S:g} s")
            if said is not None:
                self._take(file, said, profile)
            if file.problem:
                file.problem = f"the check in {file.path.name} cannot be used: {file.problem}"
            elif file.wanted:
                _tell(file, {"go": True})
        self._asked_s = time.monotonic()

    def _take(self, file: _File, said: Mapping[str, Any], profile: Profile) -> None:
        names = [str(name) for name, _ in said["checks"]]
        bad = next((name for name in names if not _NAME.fullmatch(name) or len(name) > _NAME_LETTERS), None)
        known = next((name for name in names if name in self._taken or names.count(name) > 1), None)
        if bad is not None:
            file.problem = f"{plain(repr(bad), _SAID)} is no name of a check: lower case with a dot"
        elif known is not None:
            file.problem = f"the name {known} is taken"
        else:
            self._taken.update(names)
            file.probe = plain(str(said["probe"]), _SAID)
            file.checks = tuple((str(name), Component(its)) for name, its in said["checks"])
            file.deadline_s = min(float(said["deadline_s"]), MOST_S[profile])
            file.wanted = profile is Profile.FULL or said["profile"] == Profile.FAST.value

    def _wait(self) -> None:
        for file in self._open():
            late = f"the probe {file.probe} is late: it did not answer within {file.deadline_s:g} s"
            said = _heard(file, self._asked_s + file.deadline_s, late)
            if said is not None:
                file.took_ms = int(said["took_ms"])
            elif file.problem != late:
                file.problem = f"the probe {file.probe} crashed: {file.problem}"

    def judge(self, thresholds: Thresholds) -> list[CheckResult]:
        """Return what every file came to, in their order; each is waited for up to its deadline."""
        self._wait()
        limits = {
            "values": dict(thresholds.values),
            "sources": dict(thresholds.sources),
            "generation": thresholds.generation,
        }
        for file in self._open():
            _tell(file, limits)
        until = time.monotonic() + JUDGE_S
        found = [result for file in self._files if file.wanted for result in self._judged(file, until)]
        if self._folder is not None and self._folder.more:
            said = f"{self._folder.more} more files were not run: {MOST_FILES} are the most"
            found.append(_unknown("own.files", said, ""))
        return found

    def _judged(self, file: _File, until: float) -> Iterator[CheckResult]:
        if not file.problem:
            late = f"the rules of {file.probe} are late: they did not answer within {JUDGE_S:g} s"
            said = _heard(file, until, late)
            if said is not None:
                for name, component in file.checks:
                    yield from _of_check(file, name, component, said["checks"].get(name, {}))
                return
            if file.problem != late:
                file.problem = f"the rules of {file.probe} crashed: {file.problem}"
        for name, component in file.checks or ((_name_of(file.path), Component.HOST),):
            yield replace(_unknown(name, file.problem, file.path.name), component=component)

    def _open(self) -> list[_File]:
        return [file for file in self._files if file.wanted and not file.problem]


def _of_check(file: _File, name: str, component: Component, said: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Return the results of one check; all of it is unknown where one is no result, or not its own."""
    results: list[CheckResult] = []
    problem = str(said.get("problem", ""))
    try:
        results = [result_from_json(each) for each in said.get("results", ())]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = f"what it said is no result: {error}"
    other = next((one.check for one in results if one.check != name), None)
    if other is not None:
        problem = f"it spoke of {other}, which is not its own"
    if problem:
        yield replace(
            _unknown(name, f"the check itself crashed: {problem}", file.path.name), component=component
        )
        return
    for result in results:
        yield replace(result, duration_ms=file.took_ms)


def _unknown(name: str, message: str, file: str) -> CheckResult:
    return CheckResult(
        check=name,
        status=CheckStatus.UNKNOWN,
        message=message,
        next_step=f"mend {file}: docs/operate/own-checks.md shows what such a file has" if file else "",
    )


def _name_of(path: Path) -> str:
    return "own." + re.sub(r"[^a-z0-9_]", "_", path.stem.lower())[:40]


def _tell(file: _File, what: Mapping[str, Any]) -> None:
    with suppress(OSError):  # it has ended: that is seen where it is heard
        file.line.send_bytes(json.dumps(what).encode())


def _heard(file: _File, until: float, late: str) -> dict[str, Any] | None:
    """Return what a file says next; None, with the problem noted and its process ended, where that is nothing."""
    try:
        told = received(file.line, until, _MOST_BYTES)
        if told is None:
            file.problem = late
        else:
            said: dict[str, Any] = json.loads(told)
            if "problem" not in said:
                return said
            file.problem = plain(str(said["problem"]), _SAID)
    except EOFError:
        file.problem = "its process ended without a word"
    except (OSError, ValueError) as error:
        file.problem = f"it said what cannot be read: {type(error).__name__}"
    file.process.kill()
    return None


# --- in the file's own process


def _serve(path: Path, site: Site, line: Connection, others: Connection, parent: int) -> None:
    """Load, read and judge; never returns, so that nothing of the asker's is run at the end."""
    others.close()
    _alone(parent)
    try:
        probe = _load(path)
        _say(line, _described(probe))
        json.loads(line.recv_bytes())
        began = time.monotonic()
        read = probe.collect(site)
        _say(line, {"took_ms": int((time.monotonic() - began) * 1000)})
        told = json.loads(line.recv_bytes())
        limits = Thresholds(values=told["values"], sources=told["sources"], generation=told["generation"])
        _say(line, {"checks": {check.name: _results(path, check, read, limits) for check in probe.checks}})
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too: it is the file's own matter
        with suppress(Exception):
            _say(line, {"problem": _words(error, path)})
    finally:
        os._exit(0)


def _alone(parent: int) -> None:
    """Cut off what such a file could disturb: what the asker prints, and who is killed when memory runs out."""
    die_with_parent(parent)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")


def _load(path: Path) -> Probe:
    described = importlib.util.spec_from_file_location(f"airyard_site_check_{path.stem}", path)
    if described is None or described.loader is None:
        raise _NoProbe("it cannot be loaded")
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module
    described.loader.exec_module(module)
    probe = getattr(module, "PROBE", None)
    if not isinstance(probe, Probe) or not all(isinstance(check, Check) for check in probe.checks):
        raise _NoProbe("it has no PROBE of the class airyard.checks.contract.Probe")
    if not 0 < len(probe.checks) <= MOST_CHECKS:
        raise _NoProbe(f"it has {len(probe.checks) or 'no'} checks; 1 to {MOST_CHECKS} are possible")
    deadline_s: Any = probe.deadline_s
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
        raise _NoProbe(f"its deadline_s is {deadline_s!r}, no number of seconds")
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise _NoProbe(f"its deadline_s is {deadline_s}, no number of seconds")
    return probe


class _NoProbe(Exception):
    """The file is none; its words need no name of an exception."""


def _described(probe: Probe) -> dict[str, Any]:
    return {
        "probe": probe.name,
        "profile": probe.profile.value,
        "deadline_s": probe.deadline_s,
        "checks": [(check.name, check.component.value) for check in probe.checks],
    }


def _results(path: Path, check: Check, read: Any, limits: Thresholds) -> dict[str, Any]:
    try:
        found = list(islice(check.judge(read, limits), MOST_RESULTS + 1))
        if len(found) > MOST_RESULTS:
            return {"problem": f"it has more than {MOST_RESULTS} results"}
        return {"results": [_told(one) for one in found]}
    except Exception as error:  # a rule that crashes says nothing of the machine, nor of the other rules
        return {"problem": _words(error, path)}


def _told(result: Any) -> dict[str, Any]:
    if not isinstance(result, CheckResult):
        raise _NoProbe(f"it said {plain(repr(result), _SAID)}, which is no CheckResult")
    told = result_to_json(with_layer(result))
    json.dumps(told)  # what has no form in JSON is this check's problem, and no other's
    return told


def _say(line: Connection, what: Mapping[str, Any]) -> None:
    line.send_bytes(json.dumps(what).encode())


def _words(error: BaseException, path: Path) -> str:
    try:
        said = plain(str(error), _SAID)
    except Exception:  # an exception of one's own can be anything
        said = ""
    if isinstance(error, _NoProbe):
        return said
    lines, frame = [], error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            lines.append(frame.tb_lineno)
        frame = frame.tb_next
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {said}{where}"
