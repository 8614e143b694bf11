"""A secret that was read leaves the process in no error, log record or traceback, however it is written there."""

from __future__ import annotations

import json
import logging
import pickle  # noqa: TID251 - only to see what an error looks like on its way between processes
import subprocess
import sys
from urllib.parse import quote

import orjson
import pytest
from verl_core import masking
from verl_core.errors import ConfigError, PreflightError, WorkerError
from verl_core.masking import learn, learn_environment, masked
from verl_core.recovery.supervisor import fault_of

SECRET = 'pl"nt/ed\\sécret+1'


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test teaches is forgotten behind it."""
    monkeypatch.setattr(masking, "_known", set())
    monkeypatch.setattr(masking, "_forms", None)


@pytest.mark.parametrize(
    "text",
    [
        f"refused: {SECRET}",
        f"refused: {SECRET!r}",
        json.dumps({"key": SECRET}),
        orjson.dumps({"key": SECRET}).decode(),
        f"https://host/path?x={quote(SECRET, safe='')}&y=1",
        f"two of them: {SECRET}{SECRET}",
    ],
)
def test_a_learned_secret_is_masked_however_it_is_written(text: str) -> None:
    learn([SECRET])
    hidden = masked(text)
    assert "***" in hidden
    assert not any(part in hidden for part in ("pl", "nted", "cret", "%2Fed"))


def test_passwords_of_urls_and_headers_are_masked_though_nobody_named_them() -> None:
    assert masked("get https://me:hunter2@host/x?key=abc&n=1 failed") == "get https://me:***@host/x?key=***&n=1 failed"
    assert masked("'Authorization': 'Bearer abc.def'") == "'Authorization': 'Bearer ***'"
    assert masked("${oc.env:A} https://u:${oc.env:B}@h") == "${oc.env:A} https://u:${oc.env:B}@h"


def test_the_password_in_a_url_is_masked_on_its_own_too() -> None:
    learn(["https://me:hunter2-long@host/"])
    assert masked("login of me with hunter2-long failed") == "login of me with *** failed"


def test_a_short_secret_is_masked_only_where_it_stands_alone() -> None:
    learn(["abcd", "no"])
    assert masked("abcd xabcd (abcd) no") == "*** xabcd (***) no"


def test_a_secret_that_is_part_of_another_leaves_no_rest() -> None:
    learn(["longer-secret", "longer-secret-still"])
    assert masked("longer-secret-still") == "***"


def test_variables_that_sound_secret_are_masked_though_no_config_refers_to_them() -> None:
    learn_environment({"HF_TOKEN": "hf_0123456789", "HOME": "/home/somebody", "MY_SECRET": "true"})
    assert masked("hf_0123456789 /home/somebody true") == "*** /home/somebody true"


def test_no_error_holds_it_also_behind_a_process() -> None:
    learn([SECRET])
    error = ConfigError(f"bad {SECRET}", where=f"file {SECRET}", remedy=f"not {SECRET}")
    both = PreflightError([error, error])
    for shown in (error, both, pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(both))):  # noqa: S301
        assert SECRET not in f"{shown}{shown!r}{shown.args}"
    assert SECRET not in fault_of(RuntimeError(SECRET), "rollout", 1, ()).evidence
    assert fault_of(RuntimeError(), "train", 1, ()).evidence == "RuntimeError: RuntimeError"
    assert fault_of(WorkerError("gone"), "train", 1, ()).evidence == "WorkerError: gone"


def test_no_log_record_holds_it(caplog: pytest.LogCaptureFixture) -> None:
    learn([SECRET])
    other = logging.getLogger("somebody.else")
    with caplog.at_level(logging.DEBUG):
        other.debug("sent %s to %d hosts", SECRET, 3)
        try:
            raise RuntimeError(SECRET)
        except RuntimeError:
            other.exception("failed")
    assert "sent *** to 3 hosts" in caplog.text
    assert "RuntimeError: ***" in caplog.text
    assert SECRET not in caplog.text


def test_a_record_whose_arguments_do_not_fit_is_left_to_its_handler() -> None:
    learn([SECRET])
    record = logging.getLogRecordFactory()("x", logging.INFO, "file", 1, "%d", ("no number",), None)
    assert record.msg == "%d"


def test_no_traceback_holds_it_in_any_thread() -> None:
    program = f"""
import threading
from verl_core.masking import guard_tracebacks, learn
learn([{SECRET!r}])
guard_tracebacks()
def fail(): raise RuntimeError({SECRET!r})
thread = threading.Thread(target=fail); thread.start(); thread.join()
fail()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: ") == 2
    assert SECRET not in done.stderr
