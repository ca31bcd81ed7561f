"""``[notify]`` of the configuration: who is told of the yard, and where messages of runs may go.

Owns: the section, its checks and defaults. Must not know: how messages are made and sent.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from airyard.core.notify import FleetNotice, check_address

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[1-9][0-9]{0,4})?")


class FleetNotifySection(BaseModel):
    """Where messages about the yard go. Its operator wrote the address: it may lie anywhere."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: Annotated[tuple[FleetNotice, ...], Field(min_length=1)]
    to: Annotated[str, AfterValidator(check_address)]
    secret_file: str | None = None
    """A file of its owner's alone; relative to the configuration file. Without it messages are not signed."""


class NotifySection(BaseModel):
    """Messages about runs and about the yard."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow_private: bool = False
    """Whether users' messages may go to addresses of private networks; never to this machine or link-local ones."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts (``NAME`` or ``NAME:PORT``) to which they may go whatever their address is."""
    secret_file: str | None = None
    """Signs messages of runs that name no secret of their own; as above."""
    fleet: tuple[FleetNotifySection, ...] = ()

    @field_validator("allow_hosts")
    @classmethod
    def _hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        lower = tuple(one.lower() for one in value)
        wrong = [one for one in lower if not _HOST.fullmatch(one)]
        if wrong:
            raise ValueError(
                f"{', '.join(wrong)}: write a host as in an address, with :PORT to allow only that one"
            )
        return lower

    def beside(self, folder: Path) -> NotifySection:
        """Return the section with the paths that a file in ``folder`` names."""
        return self.model_copy(
            update={
                "secret_file": _beside(folder, self.secret_file),
                "fleet": tuple(
                    one.model_copy(update={"secret_file": _beside(folder, one.secret_file)})
                    for one in self.fleet
                ),
            }
        )


def _beside(folder: Path, name: str | None) -> str | None:
    return None if name is None else str(folder / Path(name).expanduser())
