"""``[notify]`` of the configuration: read relative to its file, and refused with the name of the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.core.errors import UserError
from airyard.core.notify import FleetNotice
from airyard.server.config import load_config

WHOLE = """
[notify]
allow_private = true
allow_hosts = ["Chat.lan:8065", "10.0.0.5", "[fd00::1]:8443"]
secret_file = "notify.secret"
[[notify.fleet]]
on = ["node_quarantined", "breaker_open"]
to = "http://10.0.0.5/hook"
secret_file = "/etc/fleet.secret"
"""


def load(folder: Path, text: str) -> object:
    (folder / "config.toml").write_text(text)
    return load_config(None, home=folder)


def test_everything_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(WHOLE)
    section = load_config(None, home=tmp_path).notify
    assert section.allow_private
    assert section.allow_hosts == ("chat.lan:8065", "10.0.0.5", "[fd00::1]:8443")
    assert section.secret_file == str(tmp_path / "notify.secret")
    (fleet,) = section.fleet
    assert fleet.on == (FleetNotice.NODE_QUARANTINED, FleetNotice.BREAKER_OPEN)
    assert fleet.secret_file == "/etc/fleet.secret"


def test_without_the_section_nothing_private_is_reached_and_nobody_is_told(tmp_path: Path) -> None:
    section = load_config(None, home=tmp_path).notify
    assert (section.allow_private, section.allow_hosts, section.fleet) == (False, (), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[notify.fleet]]\non = []\nto = "https://a.example"\n', "notify.fleet.0.on"),
        ('[[notify.fleet]]\non = ["node_broken"]\nto = "https://a.example"\n', "notify.fleet.0.on.0"),
        ('[[notify.fleet]]\non = ["breaker_open"]\n', "notify.fleet.0.to"),
        ('[[notify.fleet]]\non = ["breaker_open"]\nto = "mail"\n', "must begin with https://"),
        (
            '[[notify.fleet]]\non = ["breaker_open"]\nto = "https://u:hidden@a.example"\n',
            "no user and no password",
        ),
        ('[notify]\nallow_hosts = ["http://chat.lan/"]\n', "notify.allow_hosts"),
        ("[notify]\nallow_privat = true\n", 'did you mean "allow_private"'),
    ],
)
def test_what_is_wrong_is_told_with_its_key(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        load(tmp_path, text)
    assert words in refused.value.message
    assert "hidden" not in refused.value.message
