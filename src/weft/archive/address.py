"""Which database: the URL as users write it, checked without any I/O and without importing a driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from weft.errors import SettingsError

#: Name of the database that is used when none is named, in the data directory.
DEFAULT_FILE = "archive.sqlite"
#: Parameters of a URL that are said to the driver, not to the server, and are numbers.
NUMBERS = ("connect_timeout", "prepared_statement_cache_size", "statement_cache_size")
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
#: Parameters that libpq knows and the driver does not: it would take them for settings of the server, which refuses them.
UNSERVED = (
    "channel_binding fallback_application_name gssdelegation gssencmode hostaddr keepalives keepalives_count"
    " keepalives_idle keepalives_interval load_balance_hosts replication require_auth requirepeer sslcertmode"
    " sslcompression sslcrldir sslsni tcp_user_timeout"
).split()


@dataclass(frozen=True)
class Address:
    """A database's URL, taken apart."""

    url: str
    #: The file of an SQLite database; None for PostgreSQL.
    path: Path | None
    #: The data directory it stands in, when no database was named.
    data: Path | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Takes a URL apart; raises SettingsError for one that cannot be used."""
        if not isinstance(url, str):
            raise SettingsError(f"database_url takes a text, not a {type(url).__name__}", setting="WEFT_DATABASE_URL")
        scheme, _, rest = url.partition("://")
        if scheme == "sqlite":
            name = rest.removeprefix("/")
            if not rest.startswith("/") or not name or name == ":memory:" or "?" in name:
                raise SettingsError(
                    f"database_url {url!r} names no file: write sqlite:///archive.sqlite (beside you) or"
                    " sqlite:////var/lib/weft/archive.sqlite (four slashes: from the root)",
                    setting="WEFT_DATABASE_URL",
                )
            return cls(url, Path(name).absolute())
        if scheme in ("postgresql", "postgres") and (urlsplit(url).path.strip("/") or "host=" in url):
            _check_parameters(url)
            return cls(url, None)
        raise SettingsError(
            f"database_url {mask(url)!r} cannot be used: postgresql://user:password@host/database or sqlite:///file",
            setting="WEFT_DATABASE_URL",
        )

    @classmethod
    def default(cls, data: Path) -> Address:
        """Returns the database of a data directory."""
        data = data.expanduser().absolute()
        return cls(f"sqlite:///{data / DEFAULT_FILE}", data / DEFAULT_FILE, data)

    @property
    def environ(self) -> dict[str, str]:
        """The settings by which another process finds it; a directory may have a name that no URL can hold."""
        if self.data is not None:
            return {"WEFT_DATABASE_URL": "", "WEFT_DATA": str(self.data)}
        whole = f"sqlite:///{self.path}" if self.path is not None and "?" not in str(self.path) else self.url
        return {"WEFT_DATABASE_URL": whole}

    @property
    def driver_options(self) -> dict[str, str | float]:
        """What the driver of PostgreSQL is told: the URL as it reads it, and what it does not read there."""
        place, _, query = _quoted(self.url).partition("?")
        given = parse_qsl(query)
        told = [(name, value) for name, value in given if name not in (*NUMBERS, "ssl", "host")]
        # As `ssl` it is known to those who come from SQLAlchemy; several hosts too, each with a name of its own.
        told += [("sslmode", value) for name, value in given if name == "ssl"]
        if hosts := [value for name, value in given if name == "host"]:
            told.append(("host", ",".join(hosts)))
        numbers = {name: int(value) for name, value in given if name in NUMBERS}
        options: dict[str, str | float] = {"dsn": place + (f"?{urlencode(told)}" if told else "")}
        if seconds := numbers.pop("connect_timeout", 0):
            options["timeout"] = float(seconds)
        return options | numbers

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return mask(self.url)


def _quoted(url: str) -> str:
    """Returns a URL whose password may be read as a part of a URL: people write them as they are."""
    scheme, _, rest = url.partition("://")
    found = re.match(r"([^:/?#@]*):(.*)@([^@/]*/.*)", rest, re.DOTALL)
    if found is None:
        return url
    name, password, place = found.groups()
    return f"{scheme}://{name}:{quote(unquote(password), safe='')}@{place}"


def _check_parameters(url: str) -> None:
    """Refuses what would be told to nobody, or to a server that does not know it."""
    parts = urlsplit(_quoted(url))
    wrong = ""
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in UNSERVED:
            wrong = f"the driver (asyncpg) does not know {name}: leave it out"
        elif not value:
            wrong = f"{name} has no value"
        elif name in ("ssl", "sslmode") and value not in SSL_MODES:
            wrong = f"{name} is one of {', '.join(SSL_MODES)}, not {value!r}"
        elif name in NUMBERS and not value.isdecimal():
            wrong = f"{name} takes a number, not {value!r}"
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = re.search(r":([^:\]]+)$", host)
        if port is not None and not port[1].isdecimal():
            wrong = f"its port is no number: {port[1]!r}"
    if wrong:
        raise SettingsError(f"database_url {mask(url)!r} cannot be used: {wrong}", setting="WEFT_DATABASE_URL")


def mask(url: str) -> str:
    """Returns a URL with its password hidden."""
    url = re.sub(r"(?<=[?&])([a-z_]*password)=[^&]*", r"\1=***", url)
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
