"""What a trace could not carry over, counted while it is read.

Owns: the closed list of such things, why each is left out, and the counting. Must not know: any file format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from airyard.sim.trace.records import NotCarried

EXAMPLES = 3


class Left(StrEnum):
    """A word for each thing that is left out or changed."""

    STEPS = "steps"
    REPEATED_HEADERS = "repeated-headers"
    REPEATED_RECORDS = "repeated-records"
    COLUMNS = "columns"
    CPU_ONLY = "cpu-only"
    GPU_PARTS = "gpu-parts"
    NEVER_STARTED = "never-started"
    NOT_ENDED = "not-ended"
    REVOKED = "revoked"
    EARLY_STARTS = "early-starts"
    REQUEUES = "requeues"
    RESIZED = "resized"
    SUSPENDED = "suspended"
    HETEROGENEOUS = "heterogeneous"
    LATE_ELIGIBLE = "late-eligible"
    UNEVEN = "uneven"
    MIXED_TYPES = "mixed-types"
    EXCLUSIVE = "exclusive"
    CONSTRAINTS = "constraints"
    RESERVATIONS = "reservations"
    LICENCES = "licences"
    PARTITION_LIMITS = "partition-limits"
    STATES = "states"
    QOS = "qos"
    UNKNOWN_QOS = "unknown-qos"
    NO_ACCOUNT = "no-account"
    NO_POOL = "no-pool"
    OTHER_NODES = "other-nodes"
    CPU_NODES = "cpu-nodes"
    GPU_PART_NODES = "gpu-part-nodes"
    JOINED_PARTITIONS = "joined-partitions"
    SPLIT_PARTITIONS = "split-partitions"
    NO_PARTITION = "no-partition"
    ACCOUNT_TREE = "account-tree"
    SHARED_CEILINGS = "shared-ceilings"
    TYPED_CEILINGS = "typed-ceilings"
    USER_SHARES = "user-shares"
    USER_CEILINGS = "user-ceilings"
    LIMITS = "limits"
    QOS_LIMITS = "qos-limits"
    TOPOLOGY = "topology"


WHY: dict[Left, str] = {
    Left.STEPS: "Steps run inside the devices of their job; only jobs are read.",
    Left.REPEATED_HEADERS: "Several outputs stand in one file; headers after the first are passed over.",
    Left.REPEATED_RECORDS: "The same start of the same job stands in the file more than once; one was read.",
    Left.COLUMNS: "These columns say nothing that a replay uses.",
    Left.CPU_ONLY: "These jobs held no GPU; only GPUs are scheduled in the replay.",
    Left.GPU_PARTS: "MIG slices and shares of a GPU (shard, mps) are no whole devices; these jobs are left out.",
    Left.NEVER_STARTED: "Cancelled before it ran: nobody knows how long it would have run.",
    Left.NOT_ENDED: "Waiting or running when the record was made: its duration is not known.",
    Left.REVOKED: "Ran on another cluster of the federation.",
    Left.EARLY_STARTS: "The record says that it started before it was submitted; it is left out.",
    Left.REQUEUES: "Starts after the first (requeued by preemption, a failed node or by hand): all starts of a job are"
    " one run, whose duration is the sum of them.",
    Left.RESIZED: "The job changed its size while it lived; the run has the last size.",
    Left.SUSPENDED: "The job was suspended for a while; that time is not part of its duration.",
    Left.HETEROGENEOUS: "Parts of a heterogeneous job start together; in the replay each is a run of its own.",
    Left.LATE_ELIGIBLE: "Eligible only after submit (a dependency, --begin, a hold, an array's limit): in the replay it"
    " may start from the same time on, whatever becomes of the runs it waited for.",
    Left.UNEVEN: "GPUs do not divide by nodes: every node of the run gets the rounded-up share.",
    Left.MIXED_TYPES: "The job held GPUs of several types; the run asks for their number only.",
    Left.EXCLUSIVE: "Got more GPUs than it asked for (--exclusive, or whole nodes only): the run asks for what it got.",
    Left.CONSTRAINTS: "Features that a job asks for (--constraint) are not asked for in the replay.",
    Left.RESERVATIONS: "Ran in an advance reservation; the replay has none.",
    Left.LICENCES: "Licences are not counted in the replay.",
    Left.PARTITION_LIMITS: "The limit is the partition's, which is not in the record: the run has none.",
    Left.STATES: "States that are not known here: the outcome of these runs is UNKNOWN.",
    Left.QOS: "Without `sacctmgr show qos --parsable2` a QOS other than `normal` says nothing; these are NORMAL.",
    Left.UNKNOWN_QOS: "The QOS is not in the list of them; these are NORMAL.",
    Left.NO_ACCOUNT: "Without an account; their project is `unknown`.",
    Left.NO_POOL: "None of the nodes given has GPUs in this partition; these runs are left out.",
    Left.OTHER_NODES: "Ran on nodes that are not among those given; their pool is that of their partition.",
    Left.CPU_NODES: "Nodes without GPUs are left out.",
    Left.GPU_PART_NODES: "MIG slices and shares of a GPU (shard, mps) are no whole devices; of these nodes they are"
    " left out.",
    Left.JOINED_PARTITIONS: "Partitions that share nodes are one pool: pools do not overlap. Limits and priorities of a"
    " partition are not kept.",
    Left.SPLIT_PARTITIONS: "A partition with several types of node is several pools; a run goes to that of the nodes it"
    " really ran on.",
    Left.NO_PARTITION: "Nodes that are in no partition serve nobody.",
    Left.ACCOUNT_TREE: "Accounts inside accounts: projects are flat, and each has its account's effective share.",
    Left.SHARED_CEILINGS: "A limit over several accounts together (GrpTRES of an account with accounts inside) holds"
    " for each of them alone.",
    Left.TYPED_CEILINGS: "GrpTRES for one type of GPU is not kept.",
    Left.USER_SHARES: "Shares among the users of an account: in the replay its users are alike.",
    Left.USER_CEILINGS: "GPU limits that differ between users of an account, or hold in one partition only.",
    Left.LIMITS: "Other limits of associations.",
    Left.QOS_LIMITS: "Limits of a QOS.",
    Left.TOPOLOGY: "Nodes of the yard that the topology does not name: they have no fabric and no rack.",
}


class Tally:
    """Counts what is left out; keeps the first few examples of each."""

    def __init__(self) -> None:
        self._counts: Counter[Left] = Counter()
        self._examples: dict[Left, list[str]] = {}

    def add(self, what: Left, example: str = "", count: int = 1) -> None:
        """Count one thing; ``example`` is a line, a name: anything that finds it again."""
        self._counts[what] += count
        examples = self._examples.setdefault(what, [])
        if example and example not in examples and len(examples) <= EXAMPLES:
            examples.append(example)

    def add_all(self, what: Left, examples: Iterable[str]) -> None:
        """Count several things."""
        for example in examples:
            self.add(what, example)

    def records(self) -> tuple[NotCarried, ...]:
        """Return what was counted, in the order of the list above."""
        return tuple(
            NotCarried(what=what.value, count=self._counts[what], why=self._why(what))
            for what in Left
            if self._counts[what]
        )

    def _why(self, what: Left) -> str:
        examples = self._examples[what]
        if not examples:
            return WHY[what]
        more = ", …" if len(examples) > EXAMPLES else ""
        return f"{WHY[what]} ({', '.join(examples[:EXAMPLES])}{more})"
