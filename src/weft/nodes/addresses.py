"""Which addresses a request may be sent to. Pure: a host, a port and an address go in, a verdict comes out.

Public addresses on the usual ports are open. Everything that leads inside (loopback, private networks, the metadata
services of clouds, …) is refused in every spelling, until an operator allows it by `WEFT_EGRESS_ALLOW`. An address inside
another one is judged as what the kernel or a gateway would make of it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from weft.errors import EgressDenied, SettingsError
from weft.settings import read_setting

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Lift(Enum):
    """What an operator must write to lift a rule."""

    HOST = "the host's name, its address or a network"
    NETWORK = "its address or a network"
    #: A network that somebody opens for its services must not open the keys of the machine with it.
    EXACT = "exactly this address"


@dataclass(frozen=True)
class Rule:
    """Why an address is refused."""

    name: str
    lift: Lift


METADATA = Rule("a metadata service of a cloud", Lift.EXACT)
LOOPBACK = Rule("loopback", Lift.HOST)
PRIVATE = Rule("a private network", Lift.HOST)
SHARED = Rule("shared address space (carrier-grade NAT)", Lift.HOST)
LINK_LOCAL = Rule("link-local", Lift.HOST)
UNSPECIFIED = Rule("the unspecified address, which leads to this machine", Lift.NETWORK)
MULTICAST = Rule("multicast", Lift.NETWORK)
RESERVED = Rule("a reserved range", Lift.NETWORK)
TUNNEL = Rule("an IPv4 address wrapped in an IPv6 address", Lift.NETWORK)
PORT = Rule("a port that is not open", Lift.HOST)

#: Where clouds hand out credentials. Some of these are public addresses or lie inside ranges that people do allow.
_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, Google, DigitalOcean, Hetzner, OpenStack, …
        "169.254.170.2",  # AWS ECS
        "169.254.170.23",  # AWS EKS
        "169.254.169.123",  # AWS time
        "169.254.0.23",  # Tencent
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's host
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",  # AWS
        "fd00:ec2::23",  # AWS EKS
        "fd20:ce::254",  # Google
        "fe80::a9fe:a9fe",  # OpenStack
    )
)

#: First match wins, so the special case stands above the range it lies in. After IANA's registries.
_RULES: tuple[tuple[Network, Rule], ...] = tuple(
    (ip_network(text), rule)
    for text, rule in (
        ("0.0.0.0/8", UNSPECIFIED),
        ("10.0.0.0/8", PRIVATE),
        ("100.64.0.0/10", SHARED),
        ("127.0.0.0/8", LOOPBACK),
        ("169.254.0.0/16", LINK_LOCAL),
        ("172.16.0.0/12", PRIVATE),
        ("192.0.0.0/24", RESERVED),
        ("192.0.2.0/24", RESERVED),
        ("192.88.99.0/24", RESERVED),
        ("192.168.0.0/16", PRIVATE),
        ("198.18.0.0/15", RESERVED),
        ("198.51.100.0/24", RESERVED),
        ("203.0.113.0/24", RESERVED),
        ("224.0.0.0/4", MULTICAST),
        ("240.0.0.0/4", RESERVED),
        ("::/128", UNSPECIFIED),
        ("::1/128", LOOPBACK),
        ("::/96", TUNNEL),  # IPv4-compatible
        ("::ffff:0:0:0/96", TUNNEL),  # IPv4-translated
        ("2001::/32", TUNNEL),  # Teredo
        ("2002::/16", TUNNEL),  # 6to4
        ("64:ff9b:1::/48", PRIVATE),  # NAT64 with a prefix of one's own
        ("fc00::/7", PRIVATE),
        ("fe80::/10", LINK_LOCAL),
        ("fec0::/10", PRIVATE),
        ("ff00::/8", MULTICAST),
        ("2001::/23", RESERVED),
        ("2001:db8::/32", RESERVED),
        ("3fff::/20", RESERVED),
    )
)

#: The only IPv6 range that is handed out to the public so far.
_GLOBAL_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
#: The middle of ISATAP addresses: the last 32 bits are an IPv4 address.
_ISATAP = (0x00005EFE, 0x02005EFE)


def plain(address: Address) -> Address:
    """Returns an IPv4 address for one that is mapped into IPv6: the kernel connects by IPv4, so it is judged as that."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def rule_of(address: Address) -> Rule | None:
    """Returns the rule that closes an address, or None for a public one."""
    address = plain(address)
    # Without its zone: a name for a card of this machine changes nothing about where the address leads.
    bare = IPv6Address(int(address)) if isinstance(address, IPv6Address) else address
    if bare in _METADATA:
        return METADATA
    if isinstance(bare, IPv6Address):
        inner = IPv4Address(int(bare) & 0xFFFFFFFF)
        if bare in _NAT64:
            return rule_of(inner)  # networks without IPv4 reach public addresses this way
        if (int(bare) >> 32) & 0xFFFFFFFF in _ISATAP and rule_of(inner):
            return TUNNEL
    for network, rule in _RULES:
        if bare in network:
            return rule
    if isinstance(bare, IPv6Address) and bare not in _GLOBAL_V6:
        return RESERVED
    # What a newer Python knows about ranges that this table does not.
    return None if bare.is_global else RESERVED


_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def read_host(host: str) -> str | Address:
    """Returns an address, or a name in lower case without a trailing dot.

    Raises `EgressDenied` for what is neither, and for addresses in spellings that libraries read differently
    (`127.1`, `0x7f.1`, `0177.0.0.1`, `2130706433`): whoever means an address can write it plainly.
    """
    name = host.lower().removesuffix(".")
    if ":" in name:
        try:
            return plain(IPv6Address(name))
        except ValueError:
            raise denied_host(host, "it is no IPv6 address") from None
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return IPv4Address(name)
        except ValueError:
            raise denied_host(host, _odd_spelling(name)) from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise denied_host(host, "it is no name that DNS knows")
    return name


def _odd_spelling(name: str) -> str:
    try:
        meant = f" (some read {socket.inet_ntoa(socket.inet_aton(name))})"
    except (OSError, ValueError):
        meant = ""
    return f"it ends in a number, but is no address in four decimal parts{meant}"


def denied_host(host: str, why: str) -> EgressDenied:
    """Makes the error for a host that is not even resolved."""
    return EgressDenied(
        f"requests to host {host!r} are refused: {why}; write a name, or the address in its usual form",
        host=host,
        rule="spelling",
    )


@dataclass(frozen=True)
class Allowed:
    """One entry of `WEFT_EGRESS_ALLOW`: a name, the names below one, or a network; on one port or on all."""

    text: str
    name: str = ""
    network: Network | None = None
    port: int | None = None

    def lifts(self, rule: Rule, host: str | Address, port: int, address: Address) -> bool:
        """Tells whether this entry opens an address that a rule closes."""
        if self.port is not None and self.port != port:
            return False
        if self.network is None:
            below = self.name.startswith("*.") and isinstance(host, str) and host.endswith(self.name[1:])
            return rule.lift is Lift.HOST and (below or self.name == host)
        if address not in self.network:
            return False
        return rule.lift is not Lift.EXACT or self.network.num_addresses == 1


_NETWORK_AND_PORT = re.compile(r"\[([^\]]+)\](?::([0-9]{1,5}))?|([0-9./]+)(?::([0-9]{1,5}))?")
_NAME_AND_PORT = re.compile(r"((?:\*\.)?[^\s:*/]+)(?::([0-9]{1,5}))?")


def read_allowed(text: str) -> Allowed:
    """Reads one entry. Raises `SettingsError` for what no request could ever match."""
    try:
        if text.count(":") > 1 and "[" not in text:
            return Allowed(text, network=ip_network(text))
        if found := _NETWORK_AND_PORT.fullmatch(text):
            return Allowed(text, network=ip_network(found[1] or found[3]), port=_port(found[2] or found[4]))
        if found := _NAME_AND_PORT.fullmatch(text.lower()):
            name = read_host(found[1].removeprefix("*."))
            if isinstance(name, str):
                return Allowed(text, name=found[1].removesuffix("."), port=_port(found[2]))
        raise ValueError("it is neither a name nor a network")
    except (ValueError, EgressDenied) as error:
        forms = "api.example.com, *.example.com, localhost:8080, 10.0.0.0/8, 127.0.0.1:9000 or [::1]:8080"
        raise SettingsError(
            f"WEFT_EGRESS_ALLOW: {text[:100]!r} cannot be used: {error}; write {forms}", setting="WEFT_EGRESS_ALLOW"
        ) from error


def _port(text: str | None) -> int | None:
    if text is not None and not 1 <= int(text) <= 65535:
        raise ValueError("ports go from 1 to 65535")
    return None if text is None else int(text)


@dataclass(frozen=True)
class Policy:
    """What this process may reach: public addresses on `ports`, and what is allowed besides."""

    allow: tuple[Allowed, ...] = ()
    ports: tuple[range, ...] = (range(80, 81), range(443, 444))

    @classmethod
    def read(cls, allow: Iterable[str] | None = None, ports: Sequence[range] | None = None) -> Policy:
        """Makes the policy of what is given, else of the settings."""
        entries = read_setting("WEFT_EGRESS_ALLOW", None if allow is None else list(allow)) or []
        return cls(tuple(map(read_allowed, entries)), tuple(read_setting("WEFT_EGRESS_PORTS", ports)))

    def judge(self, host: str | Address, port: int, addresses: Sequence[str | Address]) -> list[Address]:
        """Returns the addresses of a host when *all* of them may be reached; raises `EgressDenied` otherwise.

        All, because an answer that mixes public and inner addresses is how a name is made to lead inside.
        """
        judged: list[Address] = []
        for given in addresses:
            try:
                address = plain(ip_address(given))
            except ValueError:
                raise denied_host(str(host), "it was resolved to something that is no address") from None
            self._check(host, port, address)
            if address not in judged:
                judged.append(address)
        return judged

    def _check(self, host: str | Address, port: int, address: Address) -> None:
        closed = None if any(port in span for span in self.ports) else PORT
        for rule in (rule_of(address), closed):
            if rule is not None and not any(entry.lifts(rule, host, port, address) for entry in self.allow):
                raise _denied(rule, host, port, address)


def _denied(rule: Rule, host: str | Address, port: int, address: Address) -> EgressDenied:
    where = f"{host}:{port}" if isinstance(host, str) else _spell(address, port)
    leads = f", which leads to {address}," if isinstance(host, str) else ""
    wanted = _spell(address, port) if rule.lift is not Lift.HOST or not isinstance(host, str) else f"{host}:{port}"
    also = f", or the port to WEFT_EGRESS_PORTS (now closed: {port})" if rule is PORT else ""
    return EgressDenied(
        f"requests to {where}{leads} are refused: {port if rule is PORT else address} is {rule.name}; if it is meant, add"
        f" {wanted} to WEFT_EGRESS_ALLOW ({rule.lift.value} opens it){also}",
        host=str(host),
        port=port,
        address=str(address),
        rule=rule.name,
    )


def _spell(address: Address, port: int) -> str:
    return f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"
