"""What uv is told by its environment, and what its words mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.node.uv import DiskFull, DownloadFailed, ResolveFailed, failure, uv_environment


def test_settings_of_pip_are_translated_and_nothing_foreign_passes() -> None:
    made = uv_environment(
        {
            "PATH": "/bin",
            "https_proxy": "http://proxy",
            "PIP_FIND_LINKS": "/wheels /more",
            "PIP_INDEX_URL": "http://index/simple",
            "PIP_CERT": "/ca.pem",
            "UV_SYSTEM_PYTHON": "1",
            "VIRTUAL_ENV": "/elsewhere",
            "PYTHONPATH": "/elsewhere",
            "AWS_SECRET_ACCESS_KEY": "secret",
        },
        Path("/cache"),
    )
    assert made["UV_FIND_LINKS"] == "/wheels,/more"
    assert made["UV_DEFAULT_INDEX"] == "http://index/simple"
    assert made["SSL_CERT_FILE"] == "/ca.pem"
    assert made["https_proxy"] == "http://proxy"
    assert made["UV_CACHE_DIR"] == "/cache"
    assert made["UV_PYTHON_DOWNLOADS"] == "never"
    assert not {"VIRTUAL_ENV", "PYTHONPATH", "UV_SYSTEM_PYTHON", "AWS_SECRET_ACCESS_KEY"} & made.keys()


def test_settings_of_uv_win() -> None:
    made = uv_environment(
        {"PIP_FIND_LINKS": "/a", "UV_FIND_LINKS": "/b", "UV_INDEX_URL": "u", "PIP_INDEX_URL": "p"}, Path("/c")
    )
    assert made["UV_FIND_LINKS"] == "/b"
    assert "UV_DEFAULT_INDEX" not in made


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (
            "error: No solution found when resolving dependencies\n  cause: no version of six==99",
            ResolveFailed,
        ),
        ("error: Couldn't parse requirement in `requirements.txt` at position 0", ResolveFailed),
        ("error: Failed to build `slow==1.0`\n  cause: build backend returned an error", ResolveFailed),
        (
            "error: Failed to fetch: http://x/\n  cause: error sending request for url (http://x/)",
            DownloadFailed,
        ),
        ("cause: client error (Connect)\n cause: dns error: failed to lookup address", DownloadFailed),
        ("error: HTTP status server error (503 Service Unavailable)", DownloadFailed),
        ("error: failed to copy file\n  cause: No space left on device (os error 28)", DiskFull),
        ("", ResolveFailed),
    ],
)
def test_words_of_uv_decide_the_kind(said: str, kind: type[Exception]) -> None:
    error = failure(said, 1)
    assert type(error) is kind
    assert said in error.message


def test_killed_uv_may_be_tried_again() -> None:
    assert failure("", -9).retryable
