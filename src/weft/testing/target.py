"""Finds the app that tests are about: `module:app`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft.errors import UserError

if TYPE_CHECKING:
    from weft.sdk.app import Weft


def load_app(target: str) -> Weft:
    """Imports an app; without a variable's name it is `app`."""
    from weft.sdk.app import Weft

    module, _, name = target.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name or "app")
    except (ImportError, AttributeError) as error:
        raise UserError(f"{target}: there is no such app: {error}") from error
    if not isinstance(found, Weft):
        raise UserError(f"{target} is a {type(found).__name__}, not a Weft app")
    return found
