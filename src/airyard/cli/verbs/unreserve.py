"""``airyard unreserve``: take reservations back."""

from __future__ import annotations

from typing import Any

import click

from airyard.cli.app import App, refusal_of, verb
from airyard.core.errors import AiryardError


class _Number(click.ParamType[int]):
    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            self.fail(
                f"{text!r} is no number of a reservation; `airyard reservations` lists them.", param, ctx
            )
        return int(text)


@verb("unreserve")
@click.argument("numbers", metavar="ID...", nargs=-1, required=True, type=_Number())
def command(app: App, numbers: tuple[int, ...]) -> int:
    """Take reservations back, begun or not: their nodes serve everybody again."""
    gone: list[int] = []
    failed: list[AiryardError] = []
    for number in numbers:
        try:
            app.client.unreserve(number)
            gone.append(number)
        except AiryardError as error:
            if len(numbers) == 1:
                raise
            failed.append(refusal_of(error, number))
    if app.as_json:
        app.console.data({"unreserved": gone, "failed": [failure.as_json() for failure in failed]})
    else:
        for number in gone:
            app.console.text(f"reservation {number} is taken back")
        for failure in failed:
            app.console.error(failure)
    return failed[0].exit_code if failed else 0
