"""One sample of every event kind, with every field set: what the golden file of the journal format is made from.

``python tests/core_samples.py`` prints the golden file as this version would write it. A change of an event adds a
newer form to the golden file; the older forms stay, because journals hold them.
"""

from __future__ import annotations

import json

from airyard.core import codec
from airyard.core import events as e
from airyard.core.access.logins import Login
from airyard.core.access.roles import Kind, Role, Scope
from airyard.core.access.tokens import Token
from airyard.core.cluster import Device, Machine, Node
from airyard.core.health.fabric_faults import Blamed, FabricFault
from airyard.core.health.facility import Incident, Slowdown, Supply
from airyard.core.health.facts import CheckStatus, Component, Remedy, Retest, Severity
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.health.states import HealthState, Hit, NodeHealth
from airyard.core.meeting import Meeting
from airyard.core.policy import (
    Budget,
    NodeCommand,
    OverBudget,
    Policy,
    PoolOrder,
    PoolPolicy,
    Preflight,
    ProjectPolicy,
    Reservation,
    Share,
    Slicing,
    UserLimits,
    UserPolicy,
)
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    Checkpoint,
    Exit,
    Failure,
    LogClose,
    Member,
    MemberPhase,
    Order,
    Outcome,
    Run,
    RunState,
    StallNote,
    StopReason,
    StopRequest,
    Tracking,
    TrackingState,
)
from airyard.core.triage.causes import Action, EvidenceLine, FailureCause, FailureClass, Judgement
from airyard.core.workload import Compute, Priority, Workload

MACHINE = Machine(
    name="m1",
    boot_id="b-1",
    address="10.0.0.1",
    alive=False,
    network="TCP only: no RDMA adapter",
    version="0.1.0",
    away_ms=9,
)
NODE = Node(
    name="m1-cpu-0",
    machine="m1",
    accelerator="GPU_2xH100",
    model="H100",
    devices=(Device(index=0, uuid="GPU-0"), Device(index=1, uuid="GPU-1", owner="pid 12")),
    cpus=7.5,
    memory_bytes=8 << 30,
    simulated=True,
    labels={"rack": "r1"},
    cordoned=True,
    run_as="*",
)
POLICY = Policy(
    pools=(
        PoolPolicy(
            name="h100",
            accelerator="GPU_8xH100",
            labels=(("zone", "a"),),
            nodes=("m1-gpu-0",),
            order=PoolOrder.FAIR,
            share=False,
            slicing=Slicing(first_slice_ms=60_000, apart_ms=30_000),
            ageing_ms=90_000,
            reservations=3,
            prolog=NodeCommand(command="check", timeout_ms=5_000),
            epilog=NodeCommand(command="clean", timeout_ms=6_000),
            preflight=Preflight.FULL,
            thresholds=(("H100", "nvlinks", 12.0), ("all", "cpus_least", 8.0)),
            storage=("/mnt/checkpoints",),
        ),
    ),
    projects=(
        ProjectPolicy(
            name="nlp",
            shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=2.5),),
            budget=Budget(gpu_hours=100.5, over=OverBudget.PAUSE),
            per_user=UserLimits(waiting=10, running=2, devices=8),
            members=("ada",),
            critical=("ada",),
            slicing=True,
        ),
    ),
    users=(UserPolicy(name="ada", default_project="nlp"),),
    half_life_ms=1000,
)
RESERVATION = Reservation(
    reservation_id=4,
    nodes=("m1",),
    from_ms=10,
    to_ms=20,
    by="ada",
    maintenance=True,
    project="nlp",
    note="new switch",
)
TOKEN = Token(
    token_id="k1",
    digest="ab12",
    user="ada",
    name="nightly",
    scope=Scope.WRITE,
    kind=Kind.AGENT,
    by="op",
    created_ms=5,
    project="nlp",
    expires_ms=50,
    gpu_hours=2.5,
    revoked_ms=40,
    revoked_by="ada",
    login=Login(issuer="https://id.example.org", subject="17", role=Role.OPERATOR, groups=("vision",)),
)
EXIT = Exit(
    code=3,
    signal=9,
    started=True,
    cause=Cause.USER_CODE,
    message="ValueError: ä",
    at_ms=50,
    duration_ms=40,
    out_of_memory=True,
    address_in_use=True,
    stop_reason="CANCELLED",
    permanent=True,
    fingerprint="00ff",
    fault="prolog",
    fault_message="Xid 79",
)
FAILURE = Failure(
    cause=Cause.NODE,
    message="it broke",
    next_step="mend it",
    member=1,
    node="m1",
    exit_code=3,
    signal=9,
    fingerprint="00ff",
)
STOP = StopRequest(
    reason=StopReason.PREEMPTED,
    by="scheduler",
    at_ms=30,
    grace_s=120,
    message="for run 9",
    for_run=9,
    rule="reclaim",
    node="m2",
)
CHECKPOINT = Checkpoint(step=7, path="step-7", at_ms=25)
TRACKING = Tracking(state=TrackingState.OPEN, experiment_id="1", run_id="abc", detail="late")
LOGS = LogClose(last_seq=12, sha256="ab12")
MEETING = Meeting(
    addresses=("10.0.0.1/24",),
    port=40_001,
    rdma=True,
    network="RDMA 1 × 400G InfiniBand",
    store_port=40_002,
    facts=(("node", "m1"), ("driver", "570.1")),
)
MEMBER = Member(
    index=0,
    node="m1",
    machine="m1",
    devices=(0, 1),
    phase=MemberPhase.EXITED,
    address="10.0.0.1",
    prepared=(("code_ms", 3), ("environment_ms", 9)),
    meeting=MEETING,
    exit=EXIT,
    logs=LOGS,
    logs_given_up=True,
    last_report=4,
)
STALL = StallNote(
    case="BEHIND",
    ranks=(3,),
    nodes=("n1",),
    step=90,
    at_ms=14,
    message="no step for 70 s",
    confidence=0.8,
    suspect_node="n1",
    evidence=("rank 3 on n1",),
    over_ms=15,
    source="metrics",
)
JUDGEMENT = Judgement(
    verdict=FailureCause(
        failure_class=FailureClass.HARDWARE,
        cause=Cause.DEVICE,
        action=Action.CORDON_REBOOT,
        rule="xid.79",
        message="the GPU has fallen off the bus",
        next_step="reboot it",
        confidence=0.9,
        first_rank=3,
        rank_why="it is process 7 of m1",
        blamed_node="m1",
        blamed_device="GPU-1",
        confirmed=True,
        evidence=(
            EvidenceLine(file="node 1 stderr", number=7, text="CUDA error", rank=3, at_ms=12, kernel=True),
        ),
        cascade=("torch.watchdog",),
    ),
    logs=1,
    members=2,
    missing="the end of the logs of node 0",
)
ATTEMPT = Attempt(
    run_id=5,
    number=2,
    epoch=3,
    cookie="c",
    state=AttemptState.ENDED,
    members=(MEMBER,),
    port=20_001,
    orders=(Order(number=2, kind="GO", data=(("master_addr", "10.0.0.1"), ("master_port", 20_001))),),
    tracking=TRACKING,
    placed_ms=10,
    preparing_ms=11,
    ready_ms=12,
    running_ms=13,
    stopping_ms=14,
    ended_ms=15,
    stop=STOP,
    checkpoint=CHECKPOINT,
    checkpoint_journalled_ms=26,
    failure=FAILURE,
    outcome=Outcome.LOST,
    cause=Cause.NODE,
    pool="h100",
    stall=STALL,
    verdict_until_ms=17,
    judged_ms=16,
    judgement=JUDGEMENT,
)
RUN = Run(
    run_id=5,
    name="n",
    owner="ada",
    project="p",
    workload=Workload(experiment="x", command="true", compute=Compute.of("GPU_2xH100"), run_as="nightly"),
    spec_hash="s",
    idempotency_key="k",
    task_key="main",
    state=RunState.ENDED,
    submitted_ms=1,
    queued_ms=2,
    simulated=True,
    attempts=(ATTEMPT,),
    retries_spent=1,
    download_retries=2,
    recent_faults_ms=(3, 4),
    failures_in_row=3,
    not_before_ms=5,
    avoid_nodes=("m2",),
    last_crash=("00ff", 6),
    text_excuses=2,
    started_ms=7,
    ended_ms=8,
    outcome=Outcome.FAILED,
    cause=Cause.NODE,
    failure=FAILURE,
    source_hash="ab",
    held=True,
    begin_ms=12,
    eligible_ms=11,
    token_id="k1",
    unix_user="ada",
    tracking_off=True,
    version=9,
)
HEALTH = NodeHealth(
    state=HealthState.RESETTING,
    since_ms=5,
    score=8.0,
    hits=(
        Hit(
            event_id="e1",
            rule="xid.79",
            weight=8.0,
            at_ms=4,
            confirmed=True,
            severity=Severity.CRITICAL,
            device=1,
            rule_version=2,
            remedy=Remedy.REBOOT,
            retest=Retest.T3,
            message="the GPU is off the bus",
            evidence=("NVRM: Xid (PCI:0000:1b:00): 79",),
            component=Component.GPU,
        ),
    ),
    rule="xid.79",
    session=2,
    attempt=1,
    remedy=Remedy.REBOOT,
    put_off=1,
    retest=Retest.T3,
    passes=1,
    strikes=1,
    struck_ms=4,
    remedied_ms=(5,),
    past_rules=("xid.48",),
    not_before_ms=6,
    known=("e0",),
    cured_ms=2,
    clean=1,
    waits_for="look",
)

SAMPLES: tuple[e.Event, ...] = (
    e.EpochBegan(epoch=3, version="1.2"),
    e.LeadBegan(epoch=3, version="1.2"),
    e.MachineJoined(machine=MACHINE, nodes=(NODE,)),
    e.MachineLeft(machine="m1"),
    e.NodeCordoned(node="m1", by="op", reason="fan"),
    e.NodeUncordoned(node="m1", by="op"),
    e.NodeDrainOrdered(node="m1", by="op", reason="fan", deadline_ms=7),
    e.MachineConfirmedDead(machine="m1", by="op", reason="burnt"),
    e.NodeHealthChanged(
        node="m1",
        health=HEALTH,
        why="the GPU is off the bus",
        by="agent",
        evidence=("NVRM: Xid (PCI:0000:1b:00): 79",),
        budget="1 of 8 nodes are out already",
        rule="nvml.hang",
    ),
    e.IdleTested(
        node="m1",
        test=TestNote(
            kind=IdleTest.DEEP,
            at_ms=9,
            status=CheckStatus.PASS,
            message="31 checks passed, none failed",
            version="b1",
            took_ms=4,
            values={"compute.gemm": 700.5},
            part="compute.burn",
            parts=("reading", "compute.burn"),
        ),
    ),
    e.FabricTested(
        pool="a",
        sweep=SweepNote(
            number=2,
            at_ms=9,
            tests=10,
            took_ms=4,
            certified=("n1", "n2"),
            bad=("n3",),
            doubtful=("n4",),
            unknown=("n5",),
            spared=("n6",),
            edges=(("n1", "n2"),),
            leaves=("l1",),
            rails=("10.1.3.0/24",),
            why={"n3": "5 of 5 pair tests failed"},
            well=(FabricFault(what=Blamed.LEAF, where="l2"),),
        ),
        begun=(FabricFault(what=Blamed.EDGE, where="n1 - n2"),),
        ended=(FabricFault(what=Blamed.LEAF, where="l2"),),
    ),
    e.BreakerOpened(pool="h100", why="3 of 8 nodes show the same"),
    e.BreakerReset(pool="h100", by="op"),
    e.SlowdownSeen(
        slowdown=Slowdown(
            node="n1",
            supply=Supply.COOLING,
            place="rack r3",
            at_ms=9,
            since_ms=7,
            device=2,
            event_id="b",
            message="slowed down",
            machine="m1",
        )
    ),
    e.FacilityIncidentBegan(
        incident=Incident(
            place="rack r3",
            supply=Supply.POWER,
            began_ms=7,
            nodes=("n1", "n2"),
            why="two of eight",
            ended_ms=11,
        )
    ),
    e.FacilityIncidentEnded(
        incident=Incident(
            place="rack r3",
            supply=Supply.POWER,
            began_ms=7,
            nodes=("n1", "n2"),
            why="two of eight",
            ended_ms=11,
        )
    ),
    e.KeysExpired(before_ms=4),
    e.LeaseDeclared(lease_ms=24_000, longest_ms=3_600_000),
    e.JudgingDeclared(wait_ms=5_000),
    e.RunSubmitted(run=RUN),
    e.RunResumed(run=RUN, by="ada"),
    e.AttemptPlaced(run_id=5, attempt=ATTEMPT, simulated=True),
    e.MemberPreparing(run_id=5, attempt=2, member=1),
    e.MemberReady(
        run_id=5,
        attempt=2,
        member=1,
        report=1,
        address="10.0.0.1",
        prepared=(("code_ms", 3),),
        meeting=MEETING,
    ),
    e.PortReassigned(run_id=5, attempt=2, report=1, port=20_002),
    e.AttemptReleased(run_id=5, attempt=2, address="10.0.0.1", port=20_002),
    e.MemberStarted(run_id=5, attempt=2, member=1, report=2),
    e.CheckpointAcknowledged(run_id=5, attempt=2, report=3, checkpoint=CHECKPOINT),
    e.MemberExited(run_id=5, attempt=2, member=1, report=4, exit=EXIT),
    e.MemberLost(run_id=5, attempt=2, member=1, exit=EXIT),
    e.MemberLogsClosed(run_id=5, attempt=2, member=1, report=5, logs=LOGS),
    e.MemberLogsGivenUp(run_id=5, attempt=2, member=1, reason="too late"),
    e.StopOrdered(run_id=5, attempt=2, stop=STOP),
    e.AttemptStalled(run_id=5, attempt=2, stall=STALL),
    e.AttemptMovedOn(run_id=5, attempt=2),
    e.VerdictAwaited(run_id=5, attempt=2, until_ms=8),
    e.AttemptJudged(run_id=5, attempt=2, judgement=JUDGEMENT),
    e.AttemptEnded(run_id=5, attempt=2, outcome=Outcome.LOST, cause=Cause.NODE, failure=FAILURE),
    e.TrackingChanged(run_id=5, attempt=2, tracking=TRACKING),
    e.RunQueuedAgain(
        run_id=5,
        not_before_ms=9,
        retries_spent=1,
        download_retries=2,
        failures_in_row=3,
        recent_faults_ms=(4,),
        avoid_nodes=("m1",),
        last_crash=("00ff", 5),
        text_excuses=1,
    ),
    e.RunUpdated(
        run_id=5,
        by="ada",
        priority=Priority.CRITICAL,
        project="nlp",
        attempt_timeout_s=60,
        begin_ms=9,
        held=True,
    ),
    e.PolicyDeclared(policy=POLICY, by="ada", source="config", digest="ab12"),
    e.ReservationMade(reservation=RESERVATION),
    e.ReservationEnded(reservation_id=4, by="ada"),
    e.TokenCreated(token=TOKEN),
    e.TokenRevoked(token_id="k1", by="ada"),
    e.RunEnded(run_id=5, outcome=Outcome.FAILED, cause=Cause.NODE, failure=FAILURE),
    e.RunArchived(run_id=5),
    e.RunRemoved(run_id=5, by="ada"),
)


def golden() -> dict[str, list[object]]:
    """Return the golden file's content for this version alone."""
    return {kind: [tree] for kind, tree in map(codec.encode_event, SAMPLES)}


if __name__ == "__main__":
    print(json.dumps(golden(), indent=1, sort_keys=True, ensure_ascii=False))
