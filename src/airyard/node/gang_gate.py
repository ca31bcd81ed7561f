"""The gate between GO and the command of a member: checks of the gang's nodes with each other, where asked for.

Owns: when the checks are loaded and on which thread they run. Must not know: any check. A member whose pool asks for
none loads nothing and waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airyard.node.machine_events import LaunchFailed

if TYPE_CHECKING:
    from airyard.core.health.clocks import Reading
    from airyard.node.gang_checks import GangChecks
    from airyard.node.meeting import MeetingPlace
    from airyard.node.preparation import Workbench
    from airyard.node.runner_http import Channel


class GangGate:
    """The gate of one member."""

    def __init__(
        self,
        order: Mapping[str, Any],
        node: str,
        node_folder: Path,
        note: Callable[[str], None],
        should_stop: Callable[[], bool],
        channel: Callable[[], Channel] | None = None,
    ) -> None:
        """``channel`` makes a way to the server, to compare clocks by; None: nobody asks it."""
        self._channel = channel
        self._order = order
        self._node = node
        self._node_folder = node_folder
        self._note = note
        self._should_stop = should_stop

    def announced(self, place: MeetingPlace) -> dict[str, Any] | None:
        """Return what READY says of where the member is met, with facts of its node where checks were asked for.

        None for a member that is alone. On a machine that meets no other there are facts only.
        """
        if int(self._order["members"]) < 2:
            return None
        meeting = place.open()
        if not self._order.get("preflight") or (meeting is None and not place.is_alone):
            return meeting
        try:
            told = meeting if meeting is not None else {"addresses": [], "port": 0}
            return {**told, **self._checks().facts(self._order, self._clock())}
        except Exception as error:  # a gang of which one node says nothing is not checked
            self._note(f"preflight: this node says nothing of itself: {type(error).__name__}: {error}")
            return meeting

    def open(
        self, go: Mapping[str, Any], then: Callable[[], None], tell: Callable[[LaunchFailed], None]
    ) -> None:
        """Go on at once where there is nothing to check; else on a thread that may wait, and whose bugs are told."""

        def waiting() -> None:
            try:
                then()
            except (
                Exception
            ) as error:  # on the runner's own thread it would end the runner; here nobody would know
                message = f"the command could not be started: {type(error).__name__}: {error}"
                tell(LaunchFailed(cause="PLATFORM", message=message))

        if go.get("gang_checks"):
            threading.Thread(target=waiting, name="gang", daemon=True).start()
        else:
            then()

    def refusal(
        self, go: Mapping[str, Any], bench: Workbench, environment: Mapping[str, str]
    ) -> LaunchFailed | None:
        """Check, and return why the command must not start; None: it may."""
        if not go.get("gang_checks"):
            return None
        from airyard.node.gang_checks import GangUnfit, limits_of
        from airyard.node.gang_ranks import Part

        asked = self._order.get("preflight") or {}
        python = bench.bin_folder / "python" if bench.bin_folder is not None else None
        part = Part(
            python=python,
            environment=environment,
            before_exec=bench.before_exec,
            limits=limits_of(asked, self._node_folder),
        )
        try:
            self._checks().check(self._order, go, part)
        except GangUnfit as unfit:
            return LaunchFailed(cause=unfit.cause, message=unfit.message, fault=unfit.fault)
        except Exception as error:  # a bug in a check is not known to be anybody's fault: the gang goes on
            self._note(f"preflight: the checks of the gang gave no answer: {type(error).__name__}: {error}")
        return None

    def _clock(self) -> Reading | None:
        from airyard.node.clock_offset import measure

        return measure(self._channel()) if self._channel is not None else None

    def _checks(self) -> GangChecks:
        from airyard.node.gang_checks import GangChecks

        return GangChecks(
            node=self._node,
            node_folder=self._node_folder,
            note=self._note,
            should_stop=self._should_stop,
        )
