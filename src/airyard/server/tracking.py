"""Puts tracking together: an embedded MLflow, a remote one, or none.

Owns: which parts each choice needs and their start and stop. Must not know: runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request

from airyard.adapters.mlflow_endpoint import MlflowEndpoint, endpoint_of_uri
from airyard.adapters.mlflow_rest import MlflowTracker
from airyard.adapters.mlflow_server import EmbeddedMlflow
from airyard.adapters.tracking_off import NullTracker
from airyard.adapters.tracking_replay import Resolve, SpoolReplayer
from airyard.adapters.tracking_spool import Spools
from airyard.adapters.tracking_worker import TrackingWorker
from airyard.ports.tracker import Tracker
from airyard.server.context import Principal
from airyard.server.mlflow_people import PersonScope
from airyard.server.mlflow_policy import AttemptScope
from airyard.server.mlflow_proxy import MlflowProxy, router

OFF = "off"
EMBEDDED = "embedded"


class TrackingParts:
    """The tracker, its worker, and the way to MLflow under ``/mlflow``."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.off = uri == OFF
        self._embedded: EmbeddedMlflow | None = None
        self._spools: Spools | None = None
        self._replayer: SpoolReplayer | None = None
        self._proxy: MlflowProxy[Principal] | None = None
        self._endpoint: MlflowEndpoint | None = None
        self.tracker: Tracker = NullTracker()
        if not self.off:
            self._open(uri, folder)
        self.worker = TrackingWorker(self.tracker)

    def _open(self, uri: str, folder: Path) -> None:
        if uri == EMBEDDED:
            self._embedded = EmbeddedMlflow(folder, folder.parent / "mlflow.log", on_up=self._on_up)
            self._endpoint = self._embedded.endpoint
            self.tracker = MlflowTracker(self._endpoint, supervised_state=self._embedded.state)
        else:
            self._endpoint = endpoint_of_uri(uri, os.environ)
            self.tracker = MlflowTracker(self._endpoint)
        self._spools = Spools(folder / "spool")
        self._replayer = SpoolReplayer(self._spools, self._endpoint)

    def _on_up(self) -> None:
        self.worker.retry_now()
        if self._replayer is not None:
            self._replayer.poke()

    def start(self, resolve: Resolve) -> None:
        """Start the embedded MLflow (not waited for), the worker and the replay of spooled writes.

        ``resolve`` finds the real run of an attempt that was not open when its user code began to write to it.
        """
        if self._embedded is not None:
            self._embedded.start()
        self.worker.start()
        if self._replayer is not None:
            self._replayer.start(resolve)

    def stop(self) -> None:
        """Finish what can be finished in seconds, then stop everything."""
        self.worker.stop()
        if self._replayer is not None:
            self._replayer.stop()
        if self._embedded is not None:
            self._embedded.stop()
        if self._spools is not None:
            self._spools.close()

    def routes(
        self,
        authorise: Callable[[Request], Principal],
        scope_of: Callable[[Principal], AttemptScope | None],
        person_of: Callable[[Principal], PersonScope | None],
        measured: Callable[[Principal, int | None], None],
    ) -> APIRouter | None:
        """Return the proxy's routes, or None when tracking is off. Call inside the event loop's process."""
        if self._endpoint is None or self._spools is None:
            return None
        self._proxy = MlflowProxy(
            upstream=self._endpoint,
            authorise=authorise,
            scope_of=scope_of,
            person_of=person_of,
            measured=measured,
            spools=self._spools,
        )
        return router(self._proxy)

    async def aclose(self) -> None:
        """Close what lives in the event loop."""
        if self._proxy is not None:
            await self._proxy.aclose()
