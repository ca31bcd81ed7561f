"""Whether a machine's software fits the server's, before it joins a fleet. Pure.

Owns: the rule and its words. Must not know: HTTP, the fleet, how anything is installed.

Airyard may be a release behind the server: that is how a fleet is upgraded. Ray demands that all of a cluster be of
one release, and of one release of Python.
"""

from __future__ import annotations

import airyard
from airyard.adapters import ray_command
from airyard.core.errors import Conflict
from airyard.core.versions import Kinship, kinship, order_of_upgrade

_FITS = (Kinship.SAME, Kinship.OLDER)


def check_versions(name: str, *, version: str, ray: str, python: str) -> None:
    """Refuse what Ray, or the two halves of Airyard, would refuse later and less clearly. Raises: Conflict."""
    mine = {
        "Airyard": airyard.__version__,
        "Ray": ray_command.RAY_VERSION,
        "Python": ray_command.python_version(),
    }
    theirs = {"Airyard": version, "Ray": ray, "Python": python}
    fits = kinship(version, mine["Airyard"]) in _FITS
    differing = [what for what in mine if mine[what] != theirs[what] and not (what == "Airyard" and fits)]
    if not differing:
        return
    said = "; ".join(f"{what} {theirs[what]} there, {mine[what]} here" for what in differing)
    wanted = ", ".join(f"{what} {mine[what]}" for what in differing if what != "Airyard")
    steps = [] if fits else [order_of_upgrade(mine["Airyard"], version, name)]
    if wanted:
        steps.append(f"install the server's versions on {name}: {wanted}")
    raise Conflict(
        f"{name} and the server differ: {said}",
        code="VERSION_MISMATCH",
        fix="; ".join(steps),
        details={"server": mine, "node": theirs},
    )
