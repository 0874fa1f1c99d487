"""Every spelling of an address that leads inside is refused; what an operator allows is open, and no more."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import EgressDenied, SettingsError
from weft.nodes.addresses import METADATA, Policy, read_allowed, read_host, rule_of
from weft.nodes.egress import read_url
from weft.settings import read_setting

OPEN = Policy()

#: Hosts of URLs as attackers write them. All of them must be refused before a connection is opened.
REFUSED = """
127.0.0.1 127.0.0.2 127.255.255.255 127.1 127.0.1 127.0.0.1. 0x7f.1 0x7f.0.0.1 0x7f000001 0X7F000001 0177.0.0.1 0177.1
00177.0.0.1 017700000001 2130706433 2130706433. 4294967295 127.0.0.01 127.0.0.0x1 0 0.0.0.0 0.1.2.3 00 0x0 0x
10.0.0.1 10.255.255.255 012.0.0.1 0xa.0.0.1 167772161 172.16.0.1 172.31.255.255 2886729729 192.168.0.1 192.168.1
0xc0a80001 3232235521 0300.0250.0.1 100.64.0.1 100.127.255.255 100.100.100.200 1681915904
169.254.0.1 169.254.169.254 169.254.169.254. 169.254.170.2 0xa9fea9fe 2852039166 0251.0376.0251.0376 169.254.43518
168.63.129.16 192.0.0.192 192.0.0.1 192.0.2.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 192.88.99.1
224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 1.2.3 1.2.3.4.5 256.1.1.1 1.2.3.256 08.8.8.8 0x8.8.8.8
127。0。0。1 127．0．0．1 127｡0｡0｡1 １２７.0.0.1 ①②⑦.0.0.1 ⑯⑨。②⑤④。⑯⑨｡②⑤④ %31%32%37.0.0.1 127.0.0.1%00.example.com
[::1] [::] [0:0:0:0:0:0:0:1] [0000:0000:0000:0000:0000:0000:0000:0001] [::ffff:127.0.0.1] [::ffff:7f00:1]
[0:0:0:0:0:ffff:127.0.0.1] [::ffff:10.0.0.1] [::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [::127.0.0.1] [::7f00:1]
[::ffff:0:127.0.0.1] [::ffff:0:8.8.8.8] [64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe] [64:ff9b::10.1.2.3] [64:ff9b:1::1]
[2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:0808:0808::1] [2001::1] [2001:0:4136:e378:8000:63bf:3fff:fdd2] [2001:db8::1]
[2001:10::1] [2001:20::1] [3fff::1] [fc00::1] [fd00::1] [fd00:ec2::254] [fd20:ce::254] [fe80::1] [fe80::a9fe:a9fe]
[fe80::1%25eth0] [fe80::1%eth0] [fec0::1] [ff02::1] [ff0e::1] [100::1] [4000::1] [5f00::1] [2a00::5efe:7f00:1]
[::1 ::1] [::1]x [v1.x] localhost..  .localhost a..b -a.com a-.com a_b!.com *.com
""".split()


@pytest.mark.parametrize("host", REFUSED)
def test_a_host_that_leads_inside_or_hides_where_it_leads_is_refused(host: str) -> None:
    with pytest.raises(EgressDenied) as refused:
        meant = read_host(read_url(f"http://{host}/").raw_host.decode())
        assert not isinstance(meant, str), f"{host} would be asked of DNS as {meant}"
        OPEN.judge(meant, 80, [meant])
    assert refused.value.code == "egress_denied"


def test_the_table_has_more_than_a_hundred_forms() -> None:
    assert len(set(REFUSED)) > 100


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "//example.com/",
        "example.com",
        "",
        "http:example.com",
        "http:///path",
        "https://",
        "http://user@example.com/",
        "http://user:pass@example.com/",
        "http://@example.com/",
        "http://example.com@127.0.0.1/",
        "http://127.0.0.1\\@example.com/",
        "http://example.com\\.evil.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:80:80/",
        "http://example.com:８０/",
        "http://example.com:-1/",
        "http://example.com/\r\nX-Evil: 1",
        "http://example.com/a b",
        "http://example.com/\x00",
        "http://exa\tmple.com/",
        " http://example.com/",
        "http://example.com/\u2028",
        "unix:///var/run/docker.sock",
    ],
)
def test_a_url_that_is_not_plainly_http_is_refused(url: str) -> None:
    with pytest.raises(EgressDenied):
        read_url(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://example.com", "example.com"),
        ("HTTPS://EXAMPLE.com.:8443/x?y#z", "example.com"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
        ("http://a_b.example.com/", "a_b.example.com"),
        ("http://8.8.8.8/", "8.8.8.8"),
        ("http://8.8.8.8./", "8.8.8.8"),
        ("http://[2606:4700::1111]:8080/", "2606:4700::1111"),
        ("http://[::ffff:8.8.8.8]/", "8.8.8.8"),
        ("http://1e100.net/", "1e100.net"),
    ],
)
def test_an_ordinary_url_is_read(url: str, host: str) -> None:
    assert read_url(url).raw_host.decode() == host


PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 172.32.0.1 100.128.0.1 2606:4700:4700::1111 2a00:1450:4001::1 64:ff9b::8.8.8.8"


@pytest.mark.parametrize("address", PUBLIC.split())
def test_public_addresses_are_open(address: str) -> None:
    assert OPEN.judge("example.com", 443, [address])


inner = st.one_of(
    *(
        st.ip_addresses(v=4, network=network)
        for network in "10.0.0.0/8 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16 169.254.0.0/16 100.64.0.0/10 0.0.0.0/8".split()
    ),
    st.just(IPv4Address("169.254.169.254")),
)


def part(number: int, base: int) -> str:
    return {8: f"0{number:o}", 10: str(number), 16: f"0x{number:x}"}[base]


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """Any way that inet_aton reads an inner address."""
    number, count = int(draw(inner)), draw(st.integers(1, 4))
    heads = [(number >> shift) & 0xFF for shift in (24, 16, 8)][: count - 1]
    numbers = [*heads, number & ((1 << (8 * (5 - count))) - 1)]
    text = ".".join(part(one, draw(st.sampled_from([8, 10, 16]))) for one in numbers)
    return draw(st.sampled_from([text, text.upper(), text + "."]))


@given(spellings())
def test_no_spelling_of_an_inner_ipv4_address_passes(host: str) -> None:
    with pytest.raises(EgressDenied):
        meant = read_host(read_url(f"http://{host}/").raw_host.decode())
        assert not isinstance(meant, str)
        OPEN.judge(meant, 80, [meant])


@given(inner, st.integers(0, 2**64 - 1), st.booleans())
def test_no_ipv6_address_around_an_inner_ipv4_address_passes(address: IPv4Address, noise: int, exploded: bool) -> None:
    number = int(address)
    wrapped = [
        number | 0xFFFF << 32,  # mapped
        number,  # compatible
        number | 0xFFFF << 48,  # translated
        number | 0x64FF9B << 96,  # NAT64
        number << 80 | 0x2002 << 112 | noise,  # 6to4
        0x20010000 << 96 | noise << 32 | (number ^ 0xFFFFFFFF),  # Teredo
        0x2A00 << 112 | 0x5EFE << 32 | number,  # ISATAP
    ]
    for around in map(IPv6Address, wrapped):
        text = around.exploded if exploded else str(around)
        with pytest.raises(EgressDenied):
            meant = read_host(read_url(f"http://[{text}]/").raw_host.decode())
            assert not isinstance(meant, str)
            OPEN.judge(meant, 80, [meant])


@given(st.ip_addresses())
def test_whatever_is_open_is_global(address: IPv4Address | IPv6Address) -> None:
    if rule_of(address) is None:
        assert address.is_global and not address.is_multicast


def test_an_answer_that_mixes_public_and_inner_addresses_is_refused_whole() -> None:
    with pytest.raises(EgressDenied, match=r"which leads to 10\.0\.0\.5"):
        OPEN.judge("mixed.test", 443, ["93.184.216.34", "10.0.0.5"])


def test_ports_that_are_not_open_are_refused() -> None:
    for port in (22, 25, 6379, 8080):
        with pytest.raises(EgressDenied, match="WEFT_EGRESS_PORTS"):
            OPEN.judge("example.com", port, ["93.184.216.34"])
    wider = Policy.read(
        allow=[], ports=read_setting("WEFT_EGRESS_PORTS", environ={"WEFT_EGRESS_PORTS": "443, 8000-8099"})
    )
    assert wider.judge("example.com", 8080, ["93.184.216.34"])
    with pytest.raises(EgressDenied):
        wider.judge("example.com", 80, ["93.184.216.34"])


@pytest.mark.parametrize(
    ("entry", "host", "port", "address", "passes"),
    [
        ("localhost:8080", "localhost", 8080, "127.0.0.1", True),
        ("localhost:8080", "localhost", 8081, "127.0.0.1", False),
        ("localhost", "localhost", 8081, "::1", True),
        ("localhost", "evil.test", 80, "127.0.0.1", False),
        ("localhost", "127.0.0.1", 80, "127.0.0.1", False),
        ("LocalHost.", "localhost", 80, "127.0.0.1", True),
        ("*.corp.test", "api.corp.test", 80, "10.0.0.1", True),
        ("*.corp.test", "a.b.corp.test", 9000, "10.0.0.1", True),
        ("*.corp.test", "corp.test", 80, "10.0.0.1", False),
        ("*.corp.test", "evilcorp.test", 80, "10.0.0.1", False),
        ("*.corp.test", "corp.test.evil.test", 80, "10.0.0.1", False),
        ("10.0.0.0/8", "any.test", 80, "10.9.9.9", True),
        ("10.0.0.0/8", "any.test", 80, "11.0.0.1", True),
        ("10.0.0.0/8", "any.test", 80, "192.168.0.1", False),
        ("10.0.0.0/8:9000", "any.test", 9000, "10.9.9.9", True),
        ("10.0.0.0/8:9000", "any.test", 80, "10.9.9.9", False),
        ("127.0.0.1", "127.0.0.1", 5000, "127.0.0.1", True),
        ("127.0.0.1", "x.test", 5000, "::ffff:127.0.0.1", True),
        ("127.0.0.1", "x.test", 80, "64:ff9b::127.0.0.1", False),
        ("::1", "localhost", 80, "::1", True),
        ("[::1]:8080", "localhost", 8080, "::1", True),
        ("[fd00::/8]:8080", "x.test", 8080, "fd12::1", True),
        ("fd00::/8", "x.test", 80, "fd12::1", True),
        # Metadata services open for exactly their address only.
        ("169.254.0.0/16", "x.test", 80, "169.254.169.254", False),
        ("169.254.0.0/16", "x.test", 80, "169.254.7.7", True),
        ("fd00::/8", "x.test", 80, "fd00:ec2::254", False),
        ("metadata.test", "metadata.test", 80, "169.254.169.254", False),
        ("0.0.0.0/0", "x.test", 80, "169.254.169.254", False),
        ("169.254.169.254", "x.test", 80, "169.254.169.254", True),
        # Names lift what leads inside, not what leads nowhere good.
        ("x.test", "x.test", 80, "0.0.0.0", False),
        ("x.test", "x.test", 80, "224.0.0.1", False),
        ("0.0.0.0", "x.test", 80, "0.0.0.0", True),
    ],
)
def test_what_an_entry_allows(entry: str, host: str, port: int, address: str, passes: bool) -> None:
    policy = Policy.read(allow=[entry])
    meant = read_host(host)
    if passes:
        assert policy.judge(meant, port, [address])
    else:
        with pytest.raises(EgressDenied):
            policy.judge(meant, port, [address])


@pytest.mark.parametrize(
    "entry",
    "* *.*.test a*.test http://x.test x.test:0 x.test:99999 10.0.0.1/8 10.0.0.0/33 127.1 2130706433 [::1 a/b".split(),
)
def test_an_entry_that_no_request_could_match_is_refused(entry: str) -> None:
    with pytest.raises(SettingsError, match="WEFT_EGRESS_ALLOW"):
        read_allowed(entry)


@pytest.mark.parametrize("text", ["http", "0", "70000", "90-80", "80,,x", "٨٠"])
def test_ports_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="WEFT_EGRESS_PORTS"):
        read_setting("WEFT_EGRESS_PORTS", environ={"WEFT_EGRESS_PORTS": text})


def test_the_allow_list_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EGRESS_ALLOW", "localhost:8080, 10.0.0.0/8")
    policy = Policy.read()
    assert [entry.text for entry in policy.allow] == ["localhost:8080", "10.0.0.0/8"]


def test_a_refusal_says_what_which_rule_and_how_to_allow_it() -> None:
    with pytest.raises(EgressDenied) as refused:
        OPEN.judge("db.corp.test", 443, ["10.1.2.3"])
    assert refused.value.facts == {
        "host": "db.corp.test",
        "port": 443,
        "address": "10.1.2.3",
        "rule": "a private network",
    }
    for word in ("db.corp.test:443", "10.1.2.3", "a private network", "WEFT_EGRESS_ALLOW"):
        assert word in refused.value.message
    assert rule_of(ip_address("169.254.169.254")) is METADATA
