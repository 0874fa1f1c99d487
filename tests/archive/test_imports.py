"""Who needs no database imports none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_producers_without_the_level_import_no_sql(app, server):
    code = (
        "import asyncio, sys\nfrom weft import Weft\napp = Weft('x')\n"
        "@app.task\nasync def add(a: int) -> int: return a\n"
        "async def main():\n    async with app:\n"
        "        await (await add.options(delay='1h').enqueue(1)).cancel()\n"
        "asyncio.run(main())\nassert not {'sqlalchemy', 'alembic', 'aiosqlite'} & set(sys.modules)"
    )
    engine = app.engine()
    env = {**os.environ, "WEFT_REDIS_URL": server.url, "WEFT_NAMESPACE": engine.ns.keys.namespace}
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
