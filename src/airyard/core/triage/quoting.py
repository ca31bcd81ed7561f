"""Whether a line that names a fault of a machine reports it, or only speaks of it: a data set, a retry, a parser.

Owns: which exceptions are a program's own, what stands before a report. Must not know: which finding decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airyard.core.triage.causes import FailureClass
from airyard.core.triage.signatures import Signature, signature_of

MACHINES = frozenset((FailureClass.HARDWARE, FailureClass.DRIVER, FailureClass.NETWORK))
_ENDING = MACHINES - {FailureClass.DRIVER}
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*(?:Error|Exception))(?:\(\w+\))?:")
_REPORTS = re.compile(
    r"(?:Runtime|Accelerator|Internal|Unknown|System|OS|IO|Connection\w*|Timeout|BrokenPipe|External|Unavailable|Aborted"
    r"|DeadlineExceeded|Cancelled|FailedPrecondition|ResourceExhausted|Enforce|ChildFailed|RayTask"
    r"|\w*(?:CUDA|Cuda|cuda|NVML|Nvml|nvml|NCCL|Nccl|nccl|HIP|GPU|Gpu|Device|Driver|Xla|Jax|Torch|MXNet|Horovod|DeepSpeed"
    r"|Lightning|Dist|Backend|Engine|Worker|Actor|Node|Rendezvous|Launch|Store|Process)\w*)?(?:Error|Exception)"
)
"""Exceptions by which drivers, libraries and launchers report. All others are of programs themselves, or of Python."""
_OF_PYTHON = re.compile(
    r"(?:Value|Type|Key|Index|Attribute|Name|Assertion|ZeroDivision|NotImplemented|UnboundLocal|Recursion|Lookup|Overflow"
    r"|JSONDecode|UnicodeDecode|UnicodeEncode|Import|ModuleNotFound)Error"
)
_OF_LIBRARY = re.compile(r"\b(?:CUDA|NCCL|NVML|HIP)\b[\w ]*: ?$|\b(?:cu|cuda|nccl)[A-Z]\w+(?: failed)?: ?$")
"""What stands before a fault where a library itself reports it, in whatever exception."""
_LEADS = 80
"""So much of what stands before can be a library's own words."""
_OWN_CLASS = re.compile(r"(?:[a-z_]\w*\.)+[A-Z]\w*: ")
_BEGINS = re.compile(r"(?:\w+ )?(?:Fatal )?(?:[\w.]*(?:Error|Exception)|CRITICAL|FATAL)\b", re.IGNORECASE)
_MARKS = re.compile(r"[\"'`<]")
"""What begins a quotation."""
_PLACE = re.compile(r"[/\\\d]|\.(?:py|cc|cpp|cu|c|h|hpp)\b")
"""What makes a word between blanks a path, an address or a number."""
_CHAIN = re.compile(r"[\w.]+")
_WORD = re.compile(r"[A-Za-z_]{2,}")
_USUAL = re.compile(
    r"errors?|err|exception|what|terminate|called|after|throwing|an|instance|of|runtime_error|nccl|warn(?:ing)?|info"
    r"|fatal|critical|debug|cuda|cudnn|cublas|nvml|gloo|gpu|fail(?:ure|ed)?|rank|rdzv|caught|traceback|python|process"
    r"|group|watchdog|thread|terminated|with|unhandled|the|main|net|ib|async|system|call|last|stderr|stdout|to|job|run"
    r"|initialize|initializing|training|worker|trainer|torch|distributed|on|in|by|reason|root|cause|device|ordinal"
    r"|returned|line|file|check|\w*Error\w*|\w*Exception",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"[A-Z_]+|\w*[a-z][A-Z]\w*|[A-Z]{2,}[a-z]\w*")
"""A name of code, not a word of a sentence."""


def spoken_of(text: str) -> Signature | None:
    """Return a line's signature; of a program's own exception that names a machine's fault that of the exception."""
    signature = signature_of(text)
    if signature is None or signature.failure_class not in MACHINES:
        return signature
    named = _EXCEPTION.match(text)
    if named is None:
        own = _OWN_CLASS.match(text)
        return None if own is not None and not _reports(text, signature) else signature
    if _REPORTS.fullmatch(named[1]) is not None:
        return signature
    if _OF_PYTHON.fullmatch(named[1]) is None and _reports(text, signature):
        return signature
    return signature_of(f"{named[0]} it")


def _reports(text: str, signature: Signature) -> bool:
    """Return whether a library's own words lead to the fault, or are it."""
    found = signature.expression.search(text)
    if found is None:
        return False
    return " " not in found[0] or _OF_LIBRARY.search(text[: found.start()][-_LEADS:]) is not None


def is_quoted(text: str, signature: Signature) -> bool:
    """Return whether words stand before a fault of a machine that no launcher, logger or traceback writes there.

    Of drivers never: where one is not ready, a program goes on without GPUs, and fails by an error of its own.
    """
    found = signature.expression.search(text) if signature.failure_class in _ENDING else None
    if found is None:
        return False
    before = text[: found.start()]
    if _BEGINS.match(text) is not None and _MARKS.search(before) is None and _reports(text, signature):
        return False  # an error in which a library speaks, whatever the program says of it
    return any(not (_USUAL.fullmatch(word) or _IDENTIFIER.fullmatch(word)) for word in _words(before))


def _words(text: str) -> Iterator[str]:
    """Yield the words of a text but paths, numbers and names with dots. Cost: its length, whatever a job prints."""
    for part in text.split():
        if _PLACE.search(part) is None:
            for chain in _CHAIN.findall(part):
                *before, last = chain.split(".")
                if not before or not before[-1]:
                    yield from _WORD.findall(last)
