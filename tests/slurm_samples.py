"""Texts as Slurm's commands print them, for a cluster of six GPU nodes and one CPU node; all names are made up."""

from __future__ import annotations

from collections.abc import Mapping

from airyard.sim.trace.records import NotCarried, Trace

HEADER = (
    "JobID|User|Account|Partition|QOS|State|Submit|Eligible|Start|End|ElapsedRaw|Suspended|Timelimit|NNodes|ReqTRES|"
    "AllocTRES|NodeList|Constraints|Reservation|JobName"
)
USUAL = {
    "JobID": "4711",
    "User": "ann",
    "Account": "nlp",
    "Partition": "h100",
    "QOS": "normal",
    "State": "COMPLETED",
    "Submit": "2026-03-02T08:00:00",
    "Eligible": "2026-03-02T08:00:00",
    "Start": "2026-03-02T08:10:00",
    "End": "2026-03-02T10:10:00",
    "ElapsedRaw": "7200",
    "Suspended": "00:00:00",
    "Timelimit": "04:00:00",
    "NNodes": "2",
    "ReqTRES": "billing=128,cpu=128,gres/gpu=16,mem=1000G,node=2",
    "AllocTRES": "billing=128,cpu=128,gres/gpu:h100=16,gres/gpu=16,mem=1000G,node=2",
    "NodeList": "n[01-02]",
    "Constraints": "",
    "Reservation": "",
    "JobName": "pretrain-7b",
}


def row(**changed: str) -> str:
    """Return the line of a job like any other, but for some columns."""
    return "|".join((USUAL | changed)[name] for name in HEADER.split("|"))


def waiting(**changed: str) -> str:
    """Return the line of a job that has not started."""
    unstarted = {
        "State": "PENDING",
        "Start": "Unknown",
        "End": "Unknown",
        "ElapsedRaw": "0",
        "AllocTRES": "",
        "NodeList": "None assigned",
    }
    return row(**(unstarted | changed))


def jobs(*rows: str) -> list[str]:
    """Return the output of sacct with these rows."""
    return [HEADER, *rows]


NODE = """NodeName={name} Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.44
   AvailableFeatures={features}
   ActiveFeatures={features}
   Gres={gres}
   NodeAddr={name} NodeHostName={name} Version=24.05.4
   OS=Linux 6.8.0-45-generic #45-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 30 12:02:04 UTC 2024
   RealMemory=512000 AllocMem=0 FreeMem=22270 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=10 Owner=N/A MCS_label=N/A
   Partitions={partitions}
   BootTime=2026-02-01T20:41:55 SlurmdStartTime=2026-02-01T23:46:50
   LastBusyTime=2026-03-01T23:47:41 ResumeAfterTime=None
   CfgTRES=cpu=64,mem=500G,billing=64{configured}
   AllocTRES=
   CurrentWatts=0 AveWatts=0
{last}
"""


def node(
    name: str,
    gres: str = "gpu:h100:8(S:0-1)",
    *,
    partitions: str = "h100",
    features: str = "(null)",
    state: str = "IDLE",
    configured: str = ",gres/gpu=8,gres/gpu:h100=8",
    last: str = "",
) -> str:
    """Return the block of one node."""
    return NODE.format(
        name=name,
        gres=gres,
        partitions=partitions,
        features=features,
        state=state,
        configured=configured,
        last=last,
    )


def cpu_node(name: str) -> str:
    """Return the block of a node without GPUs."""
    return node(name, "(null)", partitions="cpu", configured="")


TOPOLOGY = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[01-02]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[03-04]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=n[05-06]
SwitchName=row1 Level=1 LinkSpeed=1 Nodes=n[01-04] Switches=leaf[1-2]
SwitchName=row2 Level=1 LinkSpeed=1 Nodes=n[05-06] Switches=leaf3
SwitchName=core Level=2 LinkSpeed=1 Nodes=n[01-06] Switches=row[1-2]
"""

ASSOCIATIONS = """Cluster|Account|ParentName|User|Partition|Share|GrpTRES
yard|root||||1|
yard|root||root||1|
yard|research|root|||10|gres/gpu=24
yard|nlp|research|||30|cpu=900,gres/gpu=16
yard|nlp||ann||1|gres/gpu=8
yard|nlp||cho||1|gres/gpu=8
yard|vision|research|||parent|
yard|vision||bob||1|
yard|vision||dee||1|
"""

QOS = """Name|Priority|GraceTime|Preempt|PreemptMode|UsageFactor|GrpTRES|MaxWall|MaxTRESPU
normal|100|00:00:00||cluster|1.000000|||
urgent|1000|00:00:00|normal,scavenger|cluster|1.000000|gres/gpu=8||
scavenger|0|00:02:00||requeue|0.000000||1-00:00:00|
"""


def counts(trace: Trace | tuple[NotCarried, ...]) -> Mapping[str, int]:
    """Return how often each thing was not carried over."""
    found = trace.not_carried if isinstance(trace, Trace) else trace
    return {left.what: left.count for left in found}
