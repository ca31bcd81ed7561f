"""How webhooks are signed, tried again and given up."""

from __future__ import annotations

import pytest

from airyard.core.webhooks import (
    FIRST_PAUSE_MS,
    GIVE_UP_AFTER_MS,
    LONGEST_PAUSE_MS,
    Verdict,
    headers_of,
    next_try_ms,
    pause_ms,
    signing_key,
    verdict_of,
)


def test_the_signature_is_that_of_the_standard_s_own_example() -> None:
    headers = headers_of(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        b'{"test": 2432232314}',
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_without_a_secret_nothing_is_signed() -> None:
    assert set(headers_of("msg_1", 1, b"", None)) == {"webhook-id", "webhook-timestamp"}


@pytest.mark.parametrize(
    ("secret", "key"), [("whsec_YWJj", b"abc"), ("plain", b"plain"), ("whsec_no base64", b"whsec_no base64")]
)
def test_the_key_that_a_secret_stands_for(secret: str, key: bytes) -> None:
    assert signing_key(secret) == key


def test_pauses_double_up_to_an_hour_and_half_of_each_is_chance() -> None:
    longest = [pause_ms(tries, 1.0) for tries in range(1, 30)]
    assert longest[:4] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS, 8 * FIRST_PAUSE_MS]
    assert longest[-1] == LONGEST_PAUSE_MS
    assert [pause_ms(tries, 0.0) * 2 for tries in range(1, 30)] == longest


def test_a_message_is_given_up_after_a_day_but_tried_once_by_who_comes_later() -> None:
    made_ms = 1_000_000
    assert next_try_ms(made_ms, made_ms, 1, 1.0) == made_ms + FIRST_PAUSE_MS
    assert next_try_ms(made_ms, made_ms + GIVE_UP_AFTER_MS, 1, 0.0) is None
    now_ms, tries = made_ms, 0
    while (due_ms := next_try_ms(made_ms, now_ms, tries := tries + 1, 1.0)) is not None:
        now_ms = due_ms
    assert now_ms < made_ms + GIVE_UP_AFTER_MS
    assert 25 < tries < 45, "some dozens of tries in a day"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.DELIVERED), (204, Verdict.DELIVERED),
        (301, Verdict.NEVER), (307, Verdict.NEVER),
        (400, Verdict.NEVER), (404, Verdict.NEVER), (410, Verdict.NEVER),
        (408, Verdict.AGAIN), (425, Verdict.AGAIN), (429, Verdict.AGAIN),
        (500, Verdict.AGAIN), (503, Verdict.AGAIN),
    ],
)  # fmt: skip
def test_what_an_answer_means(status: int, verdict: Verdict) -> None:
    assert verdict_of(status) is verdict
