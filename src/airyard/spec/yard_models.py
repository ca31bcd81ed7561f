"""The fields of yard.yaml, as pydantic models: the one source of its validation and its schema.

Owns: every field, its kind, default and description. Must not know: rules between fields (``core.policy_rules``),
files, positions.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Tag, WithJsonSchema

from airyard.core.policy import OverBudget, PoolOrder, Preflight
from airyard.spec.fields import AcceleratorType, Duration, NotBlank, quoted, refuse, setting
from airyard.spec.models import Block

Count = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Amount = Annotated[float, WithJsonSchema({"type": "number", "minimum": 0})]


def _order(value: Any) -> PoolOrder:
    if isinstance(value, str) and value.upper() in PoolOrder.__members__:
        return PoolOrder[value.upper()]
    return refuse(f"{quoted(value)} is none of predicted, fair and fifo")


def _over(value: Any) -> OverBudget:
    if isinstance(value, str) and value.upper() in OverBudget.__members__:
        return OverBudget[value.upper()]
    return refuse(f"{quoted(value)} is neither refuse nor pause")


def _preflight(value: Any) -> Preflight:
    if value is False:  # YAML reads a bare `off` as false
        return Preflight.OFF
    if isinstance(value, str) and value.upper() in Preflight.__members__:
        return Preflight[value.upper()]
    return refuse(f"{quoted(value)} is none of auto, off, fast and full")


class SlicingBlock(Block):
    """Time slicing, for runs that acknowledge checkpoints."""

    first_slice: Duration | None = setting(
        "How much service a run gets before it queues behind runs that have had less.", shown_default="2h"
    )
    apart: Duration | None = setting(
        "A run is evicted for others at most once in this time.", shown_default="1h"
    )


def _form(value: Any) -> str:
    return "[flag]" if isinstance(value, bool) else "[map]"


SlicingForm = Annotated[
    Annotated[bool, Tag("[flag]")] | Annotated[SlicingBlock, Tag("[map]")], Discriminator(_form)
]


class NodeCommandBlock(Block):
    """A shell command that runs on the node of each member of a run."""

    command: NotBlank = setting("What `sh -c` runs, as the user of the runner.", required=True)
    timeout: Duration | None = setting("After so long it is killed and has failed.", shown_default="1m")


class PoolBlock(Block):
    """A named set of nodes of one accelerator type. A node belongs to the first pool that takes it."""

    accelerator: AcceleratorType = setting("The accelerator type of its nodes, or CPU.", required=True)
    labels: dict[str, str] | None = setting("Only nodes that carry all of these.", shown_default="any")
    nodes: list[NotBlank] | None = setting("Only the nodes of these names.", shown_default="any")
    order: (
        Annotated[
            PoolOrder, BeforeValidator(_order), WithJsonSchema({"enum": [order.value for order in PoolOrder]})
        ]
        | None
    ) = setting(
        "How its queue is ordered below the priority class: fifo (submit order), fair (the project served least for "
        "its weight), predicted (guarantees first, then the shortest predicted duration).",
        shown_default="predicted",
    )
    share: bool | None = setting(
        "Whether runs that take part of a node may stand beside each other on one.", shown_default="true"
    )
    slicing: SlicingForm | None = setting("Time slicing: true, false, or its times.", shown_default="false")
    ageing: Duration | None = setting(
        "A run that has waited this long goes to the front of its class.", shown_default="11d19h"
    )
    reservations: Count | None = setting(
        "How many of the first blocked runs hold devices in time.", shown_default="8"
    )
    prolog: NodeCommandBlock | None = setting(
        "Runs on each node before a member is prepared. Where it fails the run goes elsewhere, the node is cordoned.",
        shown_default="none",
    )
    epilog: NodeCommandBlock | None = setting(
        "Runs on each node once nothing of a member is left. Where it fails the node is cordoned.",
        shown_default="none",
    )
    preflight: (
        Annotated[
            Preflight,
            BeforeValidator(_preflight),
            WithJsonSchema({"enum": [*(each.value for each in Preflight), False]}),
        ]
        | None
    ) = setting(
        "Which checks a node passes before a member's code: off, fast (a minute at most), full (15 minutes at most). "
        "auto: fast on nodes with real GPUs, of which only hardware, driver and disk count; off elsewhere.",
        shown_default="auto",
    )
    thresholds: dict[str, dict[str, Amount]] | None = setting(
        "Limits of health checks on its nodes, by table (all, or a generation such as H100) and name. They go before "
        "the limits of a machine and the packaged ones.",
        shown_default="none",
    )
    storage: list[NotBlank] | None = setting(
        "Folders of file servers that runs write to: health checks write a small file there and remove it.",
        shown_default="none",
    )


class ShareBlock(Block):
    """A project's part of one pool."""

    guarantee: Count | None = setting("Devices that are its own whenever it asks.", shown_default="0")
    ceiling: Count | None = setting("Devices beyond which its runs wait.", shown_default="no limit")
    weight: Amount | None = setting("Its part of what nobody's guarantee claims.", shown_default="1")


class BudgetBlock(Block):
    """GPU-hours of a calendar month (UTC); CPU slots cost none."""

    gpu_hours: Amount = setting("GPU-hours a month.", required=True)
    over: (
        Annotated[
            OverBudget, BeforeValidator(_over), WithJsonSchema({"enum": [over.value for over in OverBudget]})
        ]
        | None
    ) = setting(
        "What a spent budget does: refuse new runs, or pause them until the month ends.",
        shown_default="refuse",
    )


class PerUserBlock(Block):
    """What one user may have in the project at a time."""

    waiting: Count | None = setting("Waiting runs; more are refused at submit.", shown_default="no limit")
    running: Count | None = setting("Running runs; more wait.", shown_default="no limit")
    devices: Count | None = setting("Devices in use; beyond them runs wait.", shown_default="no limit")


class ProjectBlock(Block):
    """An owner of quota."""

    pools: dict[str, ShareBlock | None] | None = setting(
        "Its part of each pool.", shown_default="no guarantee, no ceiling, weight 1"
    )
    budget: BudgetBlock | None = setting("Its GPU-hours of a month.", shown_default="no limit")
    per_user: PerUserBlock | None = setting("Limits of each user in it.", shown_default="no limits")
    members: list[NotBlank] | None = setting(
        "Who may submit to it; * is everybody.", shown_default="everybody"
    )
    critical: list[NotBlank] | None = setting(
        "Who may use CRITICAL in it; * is everybody.", shown_default="nobody"
    )
    slicing: bool | None = setting(
        "Whether its runs are sliced, whatever the pool says.", shown_default="as the pool says"
    )


class UserBlock(Block):
    """What is known of one user."""

    project: NotBlank = setting("Where runs go that name no project.", required=True)


class YardFile(Block):
    """What a yard's operators declare. What is left out is not declared: the file replaces all that was before."""

    pools: dict[str, PoolBlock] | None = setting(
        "Pools by name, in the order in which they take nodes.", shown_default="one for each accelerator type"
    )
    projects: dict[str, ProjectBlock | None] | None = setting(
        "Projects by name.", shown_default="any name may be used, without quota"
    )
    users: dict[str, UserBlock] | None = setting(
        "Users by name.", shown_default="everybody's project is default"
    )
    half_life: Duration | None = setting(
        "How fast past usage is forgotten: after this time it counts half.", shown_default="7d"
    )
