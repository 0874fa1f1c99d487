"""Which database: the URL as users write it, checked without any I/O and without importing a driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from weft.errors import SettingsError

#: Name of the database that is used when none is named, in the data directory.
DEFAULT_FILE = "archive.sqlite"


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
    def driver_url(self) -> str:
        """The URL of PostgreSQL as SQLAlchemy wants it, with the asynchronous driver named."""
        return "postgresql+asyncpg://" + self.url.partition("://")[2]

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return mask(self.url)


def mask(url: str) -> str:
    """Returns a URL with its password hidden."""
    url = re.sub(r"(?<=[?&])([a-z_]*password)=[^&]*", r"\1=***", url)
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)
