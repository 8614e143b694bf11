"""Sixteen workers, each a process, commit one batch on a real S3 server: one wins, all are told of its batch."""

from __future__ import annotations

from functools import partial

from tests.services.fixtures import open_s3, place
from tests.services.seaweed import Seaweed
from tests.support.races import race


def test_b3_sixteen_workers_race_on_one_batch(s3_env: Seaweed) -> None:
    """``make prove`` does a hundred rounds."""
    assert race(partial(open_s3, place()), workers=16, rounds=4) == []
