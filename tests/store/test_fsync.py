"""Whether a decision is on disk: told only by a server that can tell, and only when it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from servers import ServerProcess
from weft.store import approvals
from weft.store.approvals import is_fsynced
from weft.store.connection import Server
from weft.store.namespace import Namespace


async def can_tell(ns: Namespace) -> bool:
    about = await ns.info("server")
    version = about.get("valkey_version") or about["redis_version"]
    return tuple(map(int, version.split(".")[:2])) >= (7, 2)


async def test_what_a_server_flushes_is_on_disk_where_it_can_tell(ns: Namespace, p: int) -> None:
    assert await is_fsynced(ns, p) is await can_tell(ns)


@pytest.mark.parametrize("config", [{"appendonly": "no"}, {"appendfsync": "no"}])
async def test_what_a_server_does_not_flush_is_not_said_to_be_on_disk(
    launch: Callable[..., ServerProcess], monkeypatch: pytest.MonkeyPatch, config: dict[str, str]
) -> None:
    monkeypatch.setattr(approvals, "FSYNC_MS", 100)
    ns = Namespace(Server(launch(config=config).url), "n")
    await ns.open()
    assert not any([await is_fsynced(ns, 0) for _ in range(3)])
    await ns.close()
