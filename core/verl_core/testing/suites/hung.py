"""What every storage behind a network must do when nobody answers."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ...errors import StorageTimeout
from ...protocols import Storage


class HungStorageSuite:
    """Every call ends at its deadline on a store that does not answer at all.

    Needs the fixture ``hung_storage``: a place with the object ``there``, whose store went silent after it was opened.
    """

    limit_s = 6.0  # within which each call must end; open the storage with a shorter timeout

    @pytest.fixture
    def hung_storage(self) -> Storage:
        raise NotImplementedError("give a fixture `hung_storage`: the place, opened, its store silent since")

    @pytest.mark.parametrize("name", ["put", "create", "put_large", "get", "list", "stat", "delete"])
    def test_a_call_ends_in_a_timeout(self, hung_storage: Storage, name: str) -> None:
        storage = hung_storage
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: storage.put("new", b"1"),
            "create": lambda: storage.put("new", b"1", if_absent=True),
            "put_large": lambda: storage.put("new", bytes(20 << 20)),
            "get": lambda: storage.get("there"),
            "list": lambda: list(storage.list()),
            "stat": lambda: storage.stat("there"),
            "delete": lambda: storage.delete("there"),
        }
        begin = time.monotonic()
        with pytest.raises(StorageTimeout) as caught:
            calls[name]()
        assert time.monotonic() - begin < self.limit_s
        assert storage.uri in caught.value.where
        assert caught.value.remedy
