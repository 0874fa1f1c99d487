"""Store URLs: what each form means, what is refused with which words, and what never shows."""

import asyncio

import pytest

from weft import SettingsError, Weft
from weft.store.connection import Address, Server, mask


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379",
        "redis://localhost:6379/0",
        "redis://[::1]:6379/15",
        "redis://user:pass@localhost:6379/2?client_name=weft",
        "redis://localhost?db=3",
        "rediss://host:6380?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false",
        "unix:///run/valkey.sock",
        "unix:///run/valkey.sock?db=2",
    ],
)
def test_one_server_is_named_as_redis_py_names_it(url, monkeypatch):
    monkeypatch.setattr("weft.store.connection.FILES", ())  # the file need not be there
    address = Address.parse(url)

    assert (address.kind, address.url) == ("standalone", url)
    Server(url).caller()


def test_a_cluster_is_named_by_some_of_its_nodes():
    address = Address.parse("redis+cluster://a:7000,10.0.0.2:7001,[::1]:7002")

    assert address.kind == "cluster"
    assert address.hosts == [("a", 7000), ("10.0.0.2", 7001), ("::1", 7002)]
    assert address.options == {}


def test_a_sentinel_is_named_with_its_service_and_database():
    address = Address.parse("redis+sentinel://a:26379,b:26379/mymaster/3")

    assert (address.kind, address.service) == ("sentinel", "mymaster")
    assert address.hosts == [("a", 26379), ("b", 26379)]
    assert address.options == {"db": 3}


@pytest.mark.parametrize("scheme", ["redis+cluster", "redis+sentinel"])
def test_user_and_password_are_decoded(scheme):
    address = Address.parse(f"{scheme}://us%40er:p%2Fw%3A%40@a:1" + ("/m" if "sentinel" in scheme else ""))

    assert address.options == {"username": "us@er", "password": "p/w:@"}


@pytest.mark.parametrize("scheme", ["rediss+cluster", "rediss+sentinel"])
def test_tls_and_its_options_reach_every_kind(scheme):
    address = Address.parse(
        f"{scheme}://a:1" + ("/m" if "sentinel" in scheme else "") + "?ssl_ca_certs=/ca.pem&ssl_check_hostname=false"
    )

    assert address.options == {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must begin with one of redis://"),
        ("localhost:6379", "must begin with one of"),
        ("http://localhost", "must begin with one of"),
        ("redis:/localhost", "must begin with one of"),
        ("redis://", "must begin with one of"),
        ("redis://:6379", "names no host"),
        ("redis://localhost:port", "'port' is no port"),
        ("redis://localhost:0", "'0' is no port"),
        ("redis://localhost:70000", "'70000' is no port"),
        ("redis://localhost/shop", "the database is a number, not 'shop'"),
        ("redis://localhost/1/2", "the database is a number"),
        ("redis://localhost?db=shop", "db is a number"),
        ("redis://localhost?socket_timeout=1", "no option 'socket_timeout'; known are db"),
        ("redis://localhost?retry_on_timeout=yes", "no option 'retry_on_timeout'"),
        ("redis+cluster://a:1?decode_responses=1", "no option 'decode_responses'"),
        ("redis+cluster://a", "each host needs a port"),
        ("redis+cluster://a:1,b", "each host needs a port"),
        ("redis+cluster://a:1,:2", "names no host"),
        ("redis+cluster://a:x", "'x' is no port"),
        ("redis+cluster://a:1/3", "only database 0"),
        ("redis+cluster://a:1?db=3", "only database 0"),
        ("redis+sentinel://a:1", "names the service"),
        ("redis+sentinel://a:1/", "names the service"),
        ("redis+sentinel://a:1/m/x", "the database is a number, not 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(url, why):
    with pytest.raises(SettingsError, match=why) as caught:
        Address.parse(url)

    assert caught.value.facts["url"] == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost"),
        ("redis://user@localhost", "redis://user@localhost"),
        ("redis://:secret@localhost/1", "redis://:***@localhost/1"),
        ("redis://user:secret@localhost", "redis://user:***@localhost"),
        ("redis://user:sec@ret@localhost", "redis://user:***@localhost"),
        ("redis+sentinel://u:secret@a:1,b:2/m", "redis+sentinel://u:***@a:1,b:2/m"),
        ("unix:///s?username=u&password=secret", "unix:///s?username=u&password=***"),
        ("redis://h?password=secret&db=1", "redis://h?password=***&db=1"),
    ],
)
def test_passwords_never_show(url, shown):
    assert mask(url) == shown


@pytest.mark.parametrize(
    "url", ["redis://user:secret@host:port", "http://u:secret@host", "redis://h?password=secret&x=1"]
)
def test_a_refusal_does_not_tell_the_password(url):
    with pytest.raises(SettingsError) as caught:
        Address.parse(url)

    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.facts)


class Watcher:
    """A sentinel that answers after others had their turn, and may know no master."""

    def __init__(self, knows: bool) -> None:
        self.knows, self.closed = knows, False

    async def sentinel_masters(self) -> dict:
        await asyncio.sleep(0)
        state = {"is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 1}
        return {"m": {**state, "ip": "host", "port": 1}} if self.knows else {}

    async def aclose(self) -> None:
        self.closed = True


async def test_no_sentinel_is_forgotten_when_many_ask_at_the_same_time():
    server = Server("redis+sentinel://a:1,b:2/m")
    server.caller()
    watchers = [Watcher(knows=False), Watcher(knows=True)]
    server._sentinel.sentinels[:] = watchers

    await asyncio.gather(*(server._sentinel.discover_master("m") for _ in range(5)))

    assert set(server._sentinel.sentinels) == set(watchers)
    await server.aclose()
    assert all(watcher.closed for watcher in watchers)


async def test_a_url_is_refused_before_anything_is_connected(monkeypatch):
    monkeypatch.setenv("WEFT_REDIS_URL", "http://u:secret@host")

    with pytest.raises(SettingsError, match=r"http://u:\*\*\*@host"):
        await Weft("x").open()


@pytest.mark.parametrize("scheme", ["rediss", "rediss+cluster", "rediss+sentinel"])
def test_a_file_that_is_not_there_is_named(scheme, tmp_path):
    here, gone = tmp_path / "ca.pem", tmp_path / "gone.pem"
    here.touch()
    place = f"{scheme}://host:1" + ("/m" if "sentinel" in scheme else "")

    Server(f"{place}?ssl_ca_certs={here}")
    with pytest.raises(SettingsError, match=r"ssl_keyfile names .*gone\.pem"):
        Server(f"{place}?ssl_ca_certs={here}&ssl_keyfile={gone}")
