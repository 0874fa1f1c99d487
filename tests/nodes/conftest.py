"""What the tests of this room share."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weft.nodes.addresses import Policy
from weft.nodes.egress import Egress


@pytest.fixture
async def inside() -> AsyncIterator[Egress]:
    """An egress that may reach this machine."""
    async with Egress(Policy.read(allow=["127.0.0.0/8", "localhost"])) as egress:
        yield egress


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for secure.test that signs itself, and its key."""
    home = tmp_path_factory.mktemp("tls")
    certificate, key = home / "cert.pem", home / "key.pem"
    try:
        subprocess.run(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=secure.test"
            f" -addext subjectAltName=DNS:secure.test -keyout {key} -out {certificate}".split(),
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate with")
    return certificate, key
