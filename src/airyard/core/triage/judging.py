"""Says why an attempt failed, from what its logs, its machines' kernels and their monitors told.

Owns: which finding decides, who is blamed, how sure that is. Must not know: how logs are read (``reading.py``), what
becomes of a node.

Three rules hold throughout. A collective that timed out, or a peer that went away, is an effect: it never decides. An
error of the program never blames a node. And what a job printed never confirms a fault: the kernel or a monitor has to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airyard.core.health.facts import Component, HealthEvent, Severity
from airyard.core.health.slowing import SLOWNESS
from airyard.core.run import Cause
from airyard.core.triage.causes import Action, EvidenceLine, FailureCause, FailureClass
from airyard.core.triage.first_ranks import Named, of_event, of_fault, unnamed
from airyard.core.triage.machine_faults import MachineFault, faults
from airyard.core.triage.places import Places
from airyard.core.triage.reading import Collective, Finding, Findings
from airyard.core.triage.signatures import Role

TOGETHER_MS = 30_000
"""Errors so close in time are one failure: clocks of nodes differ, and output is buffered."""
BEFORE_MS, AFTER_MS = 600_000, 180_000
"""A machine's fault counts when it came so long before the first error, or so long after it."""
EXPLICIT = 70
"""Signatures of the program's own errors that no fault of a machine brings about begin at this precedence."""
DESYNC = 1_000
"""Ranks of one group whose counts of collectives differ by so many run programs that differ."""
FULL = 0.9
"""A share of the host's memory from which a killed process was killed for memory."""
SPOKEN = 0.5
"""Confidence of what may be spoken of only; below that from which a verdict excuses a retry."""
_EVIDENCE = 6
_HANDLED = frozenset({"user.exception"})
_ENDING = frozenset({FailureClass.HARDWARE, FailureClass.DRIVER, FailureClass.USER})
_OF_KILLED = frozenset(
    {"process.killed", "user.host_memory", "net.peer_gone", "torch.watchdog", "launcher.teardown"}
)
"""What is said where a process of the job was killed, by it or by those that waited for it."""
_YEAR_MS = 365 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How a rank's process ended. ``rank`` None: it is one of several of a launcher, and which is not known."""

    rank: int | None
    code: int | None = None
    signal: int | None = None
    at_ms: int | None = None
    out_of_memory: bool = False


def judge(
    findings: Findings,
    *,
    exits: Sequence[RankExit] = (),
    events: Sequence[HealthEvent] = (),
    nodes: Mapping[int, str] | None = None,
    devices: Mapping[str, Sequence[int]] | None = None,
) -> FailureCause:
    """Return the verdict on one failure. ``nodes``: on which node each rank ran, where that is known.

    ``devices``: the GPUs of each node in the order in which its processes count them, where that is known.
    """
    roots = _reported([each for each in findings.findings if each.signature.role is Role.ROOT])
    root = _first_root(_not_handled(roots))
    exits = exits or _told_exits(findings)
    places = Places(findings.places)
    fault = _machine_fault(faults(findings.kernel), root)
    if fault is not None and not fault.host:
        fault = replace(fault, host=places.host_in(fault.lines[0].file))
    event = _health_event(events, root)
    named = Named()
    verdict: FailureCause
    if event is not None and not _explicit(root):
        verdict = _of_event(event, root)
        named = of_event(event, places, devices or {})
    elif (
        fault is not None
        and fault.hard
        and not _vetoed(fault, root)
        and not _of_a_stranger(fault, root, places, findings, exits)
    ):
        verdict = _of_fault(fault, root)
        named = of_fault(fault, places)
    elif root is not None:
        verdict = _of_root(root, findings, fault)
        if fault is not None and root.rank is None and fault.failure_class is root.signature.failure_class:
            named = of_fault(fault, places)
        if fault is not None and fault.hard and not verdict.confirmed:
            verdict = replace(verdict, cascade=(fault.rule,))  # told of, so that somebody may look at it
    elif fault is not None:
        verdict = _of_fault(fault, None)
        named = of_fault(fault, places)
    else:
        verdict = _of_silence(findings, exits)
    if named.rank is not None:
        verdict = replace(verdict, first_rank=named.rank, rank_why=named.why)
    verdict = _first(verdict, findings)
    if verdict.first_rank is None:
        verdict = replace(verdict, rank_why=named.why or unnamed(verdict))
    return _blame(verdict, nodes or {}, findings)


def _told_exits(findings: Findings) -> list[RankExit]:
    """Return the ends that a launcher tells of, where nobody else has seen them."""
    return [
        RankExit(
            rank=one.rank,
            code=one.code if one.code is not None and one.code >= 0 else None,
            signal=-one.code if one.code is not None and one.code < 0 else None,
        )
        for one in findings.first_failed
    ]


def _first(verdict: FailureCause, findings: Findings) -> FailureCause:
    """Name whom the launcher saw fail first, where the deciding line is of no rank.

    Of ranks that wait for each other the first to give up is no first to fail. Each launcher knows its own ranks only:
    of several the earliest counts, and where two are as early nobody is named.
    """
    if verdict.first_rank is not None or verdict.rule == "collective.timeout":
        return verdict
    earliest = min((one.at for one in findings.first_failed), default="")
    ranks = {one.rank for one in findings.first_failed if one.at == earliest}
    why = "its launcher saw it fail first"
    return replace(verdict, first_rank=ranks.pop(), rank_why=why) if len(ranks) == 1 else verdict


def _reported(roots: Sequence[Finding]) -> Sequence[Finding]:
    """Leave out faults of machines that a program spoke of before it ended by an error of its own.

    Whoever printed one and went on to another error was not ended by it.
    """
    users: dict[tuple[str, int | None], int] = {}
    for each in roots:
        if each.signature.failure_class is FailureClass.USER:
            whose = (each.file, each.rank)
            users[whose] = max(users.get(whose, 0), each.number)
    return [
        each for each in roots if not (each.quoted and users.get((each.file, each.rank), 0) > each.number)
    ]


def _not_handled(roots: Sequence[Finding]) -> Sequence[Finding]:
    """Leave out exceptions that a program went on after, until something else than the network ended it.

    Network errors say nothing here: who failed and does not end meets them long after.
    """
    last: dict[tuple[str, int | None], int] = {}
    for each in roots:
        if each.signature.rule not in _HANDLED and each.signature.failure_class in _ENDING and each.at_ms:
            whose = (each.file, each.rank)
            last[whose] = max(last.get(whose, 0), each.at_ms)

    def is_handled(root: Finding) -> bool:
        end_ms = last.get((root.file, root.rank))
        return (
            root.signature.rule in _HANDLED
            and root.at_ms is not None
            and _comparable(root.at_ms, end_ms)
            and (end_ms or 0) - root.at_ms > TOGETHER_MS
        )

    return [root for root in roots if not is_handled(root)]


def _comparable(first_ms: int | None, second_ms: int | None) -> bool:
    """Return whether both are times of one calendar: a stamp without a year counts from 1970."""
    return first_ms is not None and second_ms is not None and (first_ms > _YEAR_MS) == (second_ms > _YEAR_MS)


def _first_root(roots: Sequence[Finding]) -> Finding | None:
    """Return the finding that decides: the strongest of those near the first one in time."""
    if not roots:
        return None
    timed = [root for root in roots if root.at_ms is not None]
    near = list(roots)
    if len(timed) == len(roots) and len({root.at_ms > _YEAR_MS for root in timed if root.at_ms}) == 1:
        first_ms = min(root.at_ms or 0 for root in timed)
        near = [root for root in timed if (root.at_ms or 0) <= first_ms + TOGETHER_MS]
    best = max(near, key=lambda root: root.signature.precedence)
    same = [root for root in near if root.signature.rule == best.signature.rule]
    if all(root.at_ms is not None for root in same):
        best = min(same, key=lambda root: (root.at_ms or 0, root.number))
    earlier = [root for root in near if _came_before(root, best)]
    if best.signature.rule == "user.exception" and earlier:
        # What a program raises while it is torn down is no cause of it.
        return max(earlier, key=lambda root: root.signature.precedence)
    return best


def _came_before(root: Finding, other: Finding) -> bool:
    if root.signature.failure_class is FailureClass.USER or root is other:
        return False
    if root.at_ms is not None and other.at_ms is not None and root.at_ms != other.at_ms:
        return root.at_ms < other.at_ms
    return root.file == other.file and root.rank == other.rank and root.number < other.number


def _explicit(root: Finding | None) -> bool:
    return (
        root is not None
        and root.signature.failure_class is FailureClass.USER
        and root.signature.precedence >= EXPLICIT
    )


def _vetoed(fault: MachineFault, root: Finding | None) -> bool:
    """Return whether the program's own error stands against the kernel's word.

    Any exception of the program does where nobody can tell whether the two are of one time: a kernel's log goes back to
    the start of the machine.
    """
    if fault.failure_class is FailureClass.USER or root is None:
        return False
    untold = root.signature.rule == "user.exception" and not _comparable(fault.at_ms, root.at_ms)
    return untold or _explicit(root)


def _of_a_stranger(
    fault: MachineFault, root: Finding | None, places: Places, findings: Findings, exits: Sequence[RankExit]
) -> bool:
    """Return whether the kernel killed a process for memory that is no rank, and the program tells of an error.

    Who is killed says nothing more; so its launcher, its parent or the others would say that it was.
    """
    if fault.rule != "host.oom" or root is None or root.signature.failure_class is not FailureClass.USER:
        return False
    killed = any(each.signature.rule in _OF_KILLED for each in findings.findings)
    killed = killed or any(one.signal == 9 or one.out_of_memory or one.code == 137 for one in exits)
    return not killed and of_fault(fault, places).rank is None


def _in_window(at_ms: int | None, root: Finding | None) -> bool:
    if root is None or at_ms is None or root.at_ms is None or not _comparable(at_ms, root.at_ms):
        return True
    return -BEFORE_MS <= at_ms - root.at_ms <= AFTER_MS


def _machine_fault(found: Sequence[MachineFault], root: Finding | None) -> MachineFault | None:
    near = [fault for fault in found if _in_window(fault.at_ms, root)]
    return max(near, key=lambda fault: (fault.hard, fault.precedence), default=None)


def _health_event(events: Sequence[HealthEvent], root: Finding | None) -> HealthEvent | None:
    """Return the first grave fault that a monitor has read itself, about the time of the failure."""
    grave = [
        event
        for event in events
        if event.confirmed
        and event.severity in (Severity.CRITICAL, Severity.HIGH)
        and event.rule not in SLOWNESS
        and _in_window(event.at_ms, root)
    ]
    order = list(Severity)
    return max(grave, key=lambda event: (order.index(event.severity), -event.at_ms), default=None)


_OF_COMPONENT: dict[Component, tuple[FailureClass, Cause]] = {
    Component.GPU: (FailureClass.HARDWARE, Cause.DEVICE),
    Component.GPU_MEMORY: (FailureClass.HARDWARE, Cause.DEVICE),
    Component.NVLINK: (FailureClass.HARDWARE, Cause.DEVICE),
    Component.DRIVER: (FailureClass.DRIVER, Cause.NODE),
    Component.NETWORK: (FailureClass.NETWORK, Cause.NETWORK),
    Component.HOST: (FailureClass.HARDWARE, Cause.NODE),
    Component.DISK: (FailureClass.HARDWARE, Cause.STORAGE),
    Component.STORAGE: (FailureClass.NETWORK, Cause.STORAGE),
    Component.FACILITY: (FailureClass.HARDWARE, Cause.NODE),
}


def _of_event(event: HealthEvent, root: Finding | None) -> FailureCause:
    failure_class, cause = _OF_COMPONENT[event.component]
    lines = tuple(EvidenceLine(file=event.source.value, number=0, text=text) for text in event.evidence)
    return FailureCause(
        failure_class=failure_class,
        cause=cause,
        action=Action.CORDON if event.severity is Severity.CRITICAL else Action.RETRY_ELSEWHERE,
        rule=event.rule,
        message=event.message,
        next_step="the run is tried elsewhere; `airyard health events` shows what was seen",
        confidence=0.95,
        first_rank=root.rank if root is not None else None,
        blamed_node=event.node or event.machine,
        blamed_device=event.device_uuid or (str(event.device) if event.device is not None else ""),
        confirmed=True,
        evidence=(*lines, *_lines(root)),
    )


def _of_fault(fault: MachineFault, root: Finding | None) -> FailureCause:
    lines = tuple(
        EvidenceLine(
            file=each.file, number=each.number, text=each.event.text, at_ms=each.event.at_ms, kernel=True
        )
        for each in fault.lines
    )
    blames = fault.failure_class not in (FailureClass.USER, FailureClass.CONFIG)
    return FailureCause(
        failure_class=fault.failure_class,
        cause=fault.cause,
        action=fault.action,
        rule=fault.rule,
        message=fault.message,
        next_step=_STEPS[fault.action],
        confidence=fault.confidence,
        first_rank=root.rank if root is not None else None,
        blamed_node=fault.host if blames else "",
        blamed_device=fault.pci if blames else "",
        confirmed=blames and fault.hard,
        evidence=(*lines, *_lines(root))[:_EVIDENCE],
    )


_STEPS = {
    Action.NONE: "nothing",
    Action.FIX_CODE: "look at the program: nodes are not to blame",
    Action.FIX_CONFIG: "mend the configuration that the message names",
    Action.RETRY_SAME: "try it again",
    Action.RETRY_ELSEWHERE: "try it on other nodes, and test these when they are idle",
    Action.CORDON: "cordon the node and look at it",
    Action.CORDON_RESET: "cordon the node, drain it, reset the GPU, test it again",
    Action.CORDON_REBOOT: "cordon the node, drain it, reboot it, test it again",
    Action.REPLACE: "cordon the node; the part has to be replaced",
}


def _of_root(root: Finding, findings: Findings, fault: MachineFault | None) -> FailureCause:
    signature = root.signature
    confirmed = (
        fault is not None
        and fault.hard
        and fault.failure_class is signature.failure_class
        and fault.failure_class is not FailureClass.USER
    )
    same = [each for each in findings.findings if each.signature.rule == signature.rule and each is not root]
    # Other words before it: it may be spoken of only, which is no ground to touch a node.
    of_part = signature.failure_class is FailureClass.HARDWARE
    spoken = of_part and root.quoted and not confirmed and all(each.quoted for each in same)
    return FailureCause(
        failure_class=signature.failure_class,
        cause=signature.cause,
        action=Action.RETRY_ELSEWHERE if spoken else signature.action,
        rule=signature.rule,
        message=signature.message,
        next_step=_STEPS[Action.RETRY_ELSEWHERE] if spoken else signature.next_step,
        confidence=min(signature.confidence, SPOKEN) if spoken else signature.confidence,
        first_rank=root.rank,
        blamed_node=root.host if _blames(signature.failure_class) else "",
        blamed_device=_device(root) if signature.failure_class is FailureClass.HARDWARE else "",
        confirmed=confirmed,
        evidence=(*_lines(root), *(line for each in same for line in _lines(each)))[:_EVIDENCE],
    )


def _blames(failure_class: FailureClass) -> bool:
    """Return whether one node can be meant: a network has two ends, a configuration or a program none."""
    return failure_class in (FailureClass.HARDWARE, FailureClass.DRIVER)


def _device(root: Finding) -> str:
    return f"GPU {root.device}" if root.device is not None else ""


def _lines(root: Finding | None) -> tuple[EvidenceLine, ...]:
    if root is None:
        return ()
    return (
        EvidenceLine(file=root.file, number=root.number, text=root.text, rank=root.rank, at_ms=root.at_ms),
    )


def _unknown(
    rule: str, message: str, findings: Findings, next_step: str, action: Action = Action.RETRY_ELSEWHERE
) -> FailureCause:
    effects = [each for each in findings.findings if each.signature.role is not Role.ROOT]
    return FailureCause(
        failure_class=FailureClass.UNKNOWN,
        cause=Cause.PLATFORM,
        action=action,
        rule=rule,
        message=message,
        next_step=next_step,
        confidence=0.3,
        evidence=tuple(line for each in effects for line in _lines(each))[:_EVIDENCE],
    )


def _of_silence(findings: Findings, exits: Sequence[RankExit]) -> FailureCause:
    """Judge a failure that nothing names: by counts of collectives, by memory, by how the processes ended."""
    rules = {each.signature.rule for each in findings.findings}
    if any(one.out_of_memory for one in exits):
        return _memory(findings, next(one.rank for one in exits if one.out_of_memory), 0.95)
    killed = "process.killed" in rules or any(one.signal == 9 for one in exits)
    if killed and findings.memory_shares and max(findings.memory_shares[-20:]) >= FULL:
        rank = next(
            (each.rank for each in findings.findings if each.signature.rule == "process.killed"), None
        )
        return _memory(findings, rank, 0.75)
    if _desynchronised(findings.collectives):
        silent = _unknown("user.desync", "the ranks are at different places of the program", findings, "")
        return _as_user(
            silent, "make sure that all ranks take the same number of steps (uneven data, early exits)"
        )
    if "torch.watchdog" in rules:
        return _unknown(
            "collective.timeout",
            "a collective was not finished in time, and nothing says on whose account",
            findings,
            "the run is tried on other nodes; turn the flight recorder on (TORCH_NCCL_TRACE_BUFFER_SIZE=2000)",
        )
    if "batch.time_limit" in rules:
        limit = _unknown("batch.time_limit", "the job ran into the batch system's time limit", findings, "")
        step = "ask for more time, or go on from a checkpoint; if it stood still, look for where"
        return _as_user(limit, step, cause=Cause.USER_LIMIT, confidence=0.7)
    crashed = next((one for one in exits if one.signal in (6, 7, 11)), None)
    if crashed is not None:
        return _unknown(
            "process.crashed",
            f"{_who(crashed)} ended by signal {crashed.signal}",
            findings,
            "run it with PYTHONFAULTHANDLER=1 to see where",
        )
    if killed:
        return _unknown(
            "process.killed", "a process was killed from outside, and nothing says by whom", findings,
            "look at the kernel's log of its node for the out-of-memory killer",
        )  # fmt: skip
    if "process.stopped" in rules and rules <= {"process.stopped", "launcher.teardown"}:
        return _unknown(
            "process.stopped", "the job was stopped from outside: preempted, requeued or cancelled", findings,
            "nothing, if somebody meant it; else look at the batch system's account of the job",
        )  # fmt: skip
    if rules:
        return _unknown(
            "effects.only", "only effects of a failure were seen, not its cause", findings,
            "look at the logs of all ranks: one of them is missing, or ended without a word",
        )  # fmt: skip
    if findings.tracebacks:
        unread = _unknown(
            "traceback.unread", "a traceback begins, and no line names an error that is known", findings,
            "read how the traceback ends; where its last line is missing, get the rest of the log", Action.NONE,
        )  # fmt: skip
        return replace(
            unread,
            evidence=tuple(
                EvidenceLine(file=each.file, number=each.number, text=each.text, rank=each.rank)
                for each in findings.tracebacks
            )[:_EVIDENCE],
        )
    return _unknown(
        "nothing.found", "nothing in these logs looks like a failure", findings,
        "nothing; if something did fail, look at the logs of all its ranks and at the kernel's", Action.NONE,
    )  # fmt: skip


def _who(exit_: RankExit) -> str:
    return f"rank {exit_.rank}" if exit_.rank is not None else "a launcher of several ranks"


def _memory(findings: Findings, rank: int | None, confidence: float) -> FailureCause:
    plain = _unknown(
        "user.host_memory", "the host's memory did not suffice, and a process was killed for it", findings, ""
    )
    return _as_user(
        plain,
        "keep less in memory, or ask for more",
        cause=Cause.USER_LIMIT,
        rank=rank,
        confidence=confidence,
    )


def _as_user(
    verdict: FailureCause,
    next_step: str,
    *,
    cause: Cause = Cause.USER_CODE,
    rank: int | None = None,
    confidence: float = 0.6,
) -> FailureCause:
    return replace(
        verdict,
        failure_class=FailureClass.USER,
        cause=cause,
        action=Action.FIX_CODE,
        next_step=next_step,
        confidence=confidence,
        first_rank=rank,
    )


def _desynchronised(collectives: Sequence[Collective]) -> bool:
    """Return whether ranks of one group are so far apart that they run different programs."""
    by_group: dict[str, dict[int, int]] = {}
    for one in collectives:
        reached = one.completed if one.completed is not None else one.stuck
        if one.rank is not None and reached is not None:
            places = by_group.setdefault(one.group, {})
            places[one.rank] = max(places.get(one.rank, 0), reached)
    return any(
        len(places) > 1 and max(places.values()) - min(places.values()) >= DESYNC
        for places in by_group.values()
    )


def _blame(verdict: FailureCause, nodes: Mapping[int, str], findings: Findings) -> FailureCause:
    """Fill in the node from the rank, and the rules that matched too and decided nothing."""
    node = verdict.blamed_node
    if not node and _blames(verdict.failure_class) and verdict.first_rank is not None:
        node = nodes.get(verdict.first_rank, "")
    others = {each.signature.rule for each in findings.findings} - {verdict.rule}
    return replace(verdict, blamed_node=node, cascade=tuple(sorted({*others, *verdict.cascade})))
