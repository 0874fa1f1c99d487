"""Secrets by handle: a definition names a secret, and its value is read when the request is sent, never earlier.

`{"secret": "API_TOKEN"}` in a *definition* becomes a `Secret` by `mark`, before any template is filled. Only a `Secret` is
resolved: what a template or an input brings in later stays data, so nobody can ask for a secret by sending its name. Values
live in the sender's memory only; `Redactor` takes them out of everything that leaves it.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from weft.errors import DefinitionError, SecretMissing, WeftError
from weft.settings import read_setting

#: Shortest value that counts as a secret, in characters: a shorter one would be found, and masked, everywhere.
MIN_CHARS = 4

#: Longest value, in bytes: a header of more is refused by most servers.
MAX_BYTES = 16 * 1024

#: Longest message of an error, in characters: what servers send may stand in it.
MAX_MESSAGE = 1_000

#: How deep a definition may be nested.
MAX_DEPTH = 200

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_FORM = 'write {"secret": "NAME"} with a name of capital letters, digits and _, and a "prefix" if there is one'


@dataclass(frozen=True)
class Secret:
    """The handle of a secret: its name, and what stands before its value (`Bearer `). It never holds the value."""

    name: str
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            # Not repeated: it may be the secret itself, where somebody took the handle for it.
            raise DefinitionError(f"a secret's name is not one; {_FORM}")
        if not isinstance(self.prefix, str):
            raise DefinitionError(f"the prefix of secret {self.name} is no text; {_FORM}")

    def __str__(self) -> str:
        return f"[secret {self.name}]"


def mark(definition: Any, _depth: int = 0) -> Any:
    """Returns a definition whose `{"secret": "NAME"}` objects are `Secret`s. To be called before templates are filled."""
    if _depth > MAX_DEPTH:
        raise DefinitionError(f"the definition is nested deeper than {MAX_DEPTH} levels")
    if isinstance(definition, Mapping):
        if "secret" in definition and set(definition) <= {"secret", "prefix"}:
            return Secret(definition["secret"], definition.get("prefix", ""))
        return {key: mark(value, _depth + 1) for key, value in definition.items()}
    if isinstance(definition, list | tuple):
        return [mark(value, _depth + 1) for value in definition]
    return definition


class Secrets:
    """Reads secrets: `WEFT_SECRET_<NAME>` in the environment, else the file `<NAME>` in `WEFT_SECRETS_DIR`.

    Each is read anew for each request, so a rotated file serves from the next request on.
    """

    def __init__(self, *, environ: Mapping[str, str] | None = None, directory: str | Path | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._directory = directory

    def read(self, name: str) -> str:
        """Returns a secret's value. Raises `SecretMissing`, which never repeats one."""
        value = self._environ.get(f"WEFT_SECRET_{name}")
        if value is None:
            value = self._read_file(name)
        if len(value) < MIN_CHARS or len(value.encode("utf-8", "replace")) > MAX_BYTES:
            raise SecretMissing(
                f"secret {name} has a value that cannot be used: it has {len(value)} characters, at least {MIN_CHARS} and at"
                f" most {MAX_BYTES} bytes are needed",
                secret=name,
            )
        return value

    def _read_file(self, name: str) -> str:
        directory = read_setting("WEFT_SECRETS_DIR", self._directory, environ=self._environ)
        if directory is None:
            raise SecretMissing(
                f"secret {name} is not there: set WEFT_SECRET_{name}, or WEFT_SECRETS_DIR to a directory with a file {name}",
                secret=name,
            )
        path = Path(directory) / name
        try:
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 3).decode()
        except (OSError, UnicodeDecodeError) as error:
            # From None: a decoding error carries the bytes it could not decode.
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SecretMissing(
                f"secret {name} cannot be read from {path}: {why}; WEFT_SECRET_{name} is not set either", secret=name
            ) from None
        return text.removesuffix("\n").removesuffix("\r")  # editors end a file with a line break


class Redactor:
    """Resolves handles, remembers what it gave out, and takes it out of texts, values and errors."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._values: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._names: dict[str, str] = {}

    def reveal(self, secret: Secret) -> str:
        """Returns what a handle stands for: its prefix and the value."""
        if secret.name not in self._values:
            self._values[secret.name] = self._secrets.read(secret.name)
            self._compile()
        return secret.prefix + self._values[secret.name]

    def fill(self, value: Any) -> Any:
        """Returns a value with every handle in it resolved."""
        return _walk(value, lambda leaf: self.reveal(leaf) if isinstance(leaf, Secret) else leaf, keys=False)

    def text(self, text: str) -> str:
        """Returns a text without the secrets that were given out, in any form they are sent in."""
        return (
            text
            if self._pattern is None
            else self._pattern.sub(lambda found: f"[secret {self._names[found[0]]}]", text)
        )

    def clean(self, value: Any) -> Any:
        """Returns a value without the secrets that were given out: in texts, bytes and the keys of objects."""
        return value if self._pattern is None else _walk(value, self._leaf, keys=True)

    def error(self, error: WeftError) -> WeftError:
        """Returns an error of the same kind that tells no secret. It has no causes: their texts are not ours to vouch for."""
        # Cut behind the redaction only: half of a secret is one, too.
        message = self.text(error.message)
        return type(error)(message[:MAX_MESSAGE] + "…" * (len(message) > MAX_MESSAGE), **self.clean(error.facts))

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, str):
            return self.text(leaf)
        # Latin-1 gives every byte a character and back, so the same pattern finds ASCII forms in bytes.
        return self.text(leaf.decode("latin-1")).encode("latin-1") if isinstance(leaf, bytes) else leaf

    def _compile(self) -> None:
        self._names = {form: name for name, value in self._values.items() for form in _forms(value)}
        # The longest first: one secret may begin like another.
        forms = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, forms)))


def _forms(value: str) -> set[str]:
    """Returns the spellings in which a value may come back: as it is, in URLs, in JSON, in Base64, as UTF-8 read as Latin-1."""
    raw = value.encode("utf-8", "replace")
    forms = {value, value.strip(), raw.decode("latin-1"), quote(value, safe=""), quote(value), quote_plus(value)}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], repr(raw)[2:-1]}
    forms |= {encode(raw).decode().rstrip("=") for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    forms |= {re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in tuple(forms)}
    forms |= {form.replace("/", "\\/") for form in tuple(forms)}
    return {form for form in forms if len(form) >= MIN_CHARS}


def _walk(value: Any, change: Callable[[Any], Any], *, keys: bool) -> Any:
    if isinstance(value, dict):
        return {change(key) if keys else key: _walk(item, change, keys=keys) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, change, keys=keys) for item in value]
    return change(value)
