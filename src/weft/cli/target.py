"""Finds the app a command is about, loads it, and runs work on it.

TARGET is `module:app`; without one WEFT_APP counts, then `[tool.weft] app` in the nearest pyproject.toml.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from weft.errors import SettingsError, WeftError

if TYPE_CHECKING:
    from weft.sdk.app import Weft

T = TypeVar("T")

HELP = "Where the app is, as module:app."
Target = Annotated[str | None, typer.Argument(metavar="TARGET", help=HELP, envvar="WEFT_APP", show_default=False)]
AppOption = Annotated[str | None, typer.Option("--app", metavar="TARGET", help=HELP, envvar="WEFT_APP")]


class TargetBroken(WeftError):
    """The module of the app raises when it is imported."""

    code = "target_broken"


@dataclass(frozen=True)
class Place:
    """Where an app is: its target, and who said so."""

    target: str
    source: str
    root: Path | None = None


def find_target(given: str | None) -> Place | None:
    """Returns where the app is, or None when nothing says so."""
    if given:
        # The command line fills in WEFT_APP where no target is typed.
        return Place(given, "WEFT_APP" if given == os.environ.get("WEFT_APP") else "the command line")
    for directory in (Path.cwd(), *Path.cwd().parents):
        if (file := directory / "pyproject.toml").is_file():
            return _from_pyproject(file)
    return None


def _from_pyproject(file: Path) -> Place | None:
    import tomllib

    try:
        tools = tomllib.loads(file.read_text()).get("tool", {})
    except (OSError, ValueError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from error
    table = tools.get("weft", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict) or table.keys() - {"app"}:
        wrong = ", ".join(sorted(table.keys() - {"app"})) if isinstance(table, dict) else repr(table)
        raise SettingsError(
            f'[tool.weft] in {file} has nothing but app = "module:app", and there is {wrong}: other settings are environment'
            " variables, such as WEFT_QUEUES"
        )
    named = table.get("app")
    return Place(str(named), f"[tool.weft] in {file}", file.parent) if named else None


def aside() -> AbstractContextManager[object]:
    """Sends what the user's own code prints to stderr: stdout is for data, which others read."""
    return redirect_stdout(sys.stderr)


def load_app(given: str | None, *, runs: bool = False) -> tuple[Weft, Place]:
    """Returns the app and where it was found; raises when there is none. `runs`: its code runs here, and prints as it likes."""
    place = find_target(given)
    if place is None:
        raise SettingsError(
            'no app is named: give it as module:app, set WEFT_APP, or write [tool.weft] app = "module:app" in'
            " pyproject.toml"
        )
    with nullcontext() if runs else aside():
        return load(place), place


def load_app_or_bare(given: str | None) -> Weft:
    """Returns the app that is named, or one without tasks on the store of the settings when none is."""
    place = find_target(given)
    if place is not None:
        with aside():
            return load(place)
    from weft.sdk.app import Weft

    return Weft("weft")


def load(place: Place) -> Weft:
    """Imports the app. The current directory, and that of the pyproject.toml that named it, can be imported from.

    The embedded store of an app that a pyproject.toml above names is the one beside that file: another one, in a folder below,
    would take runs that no worker ever sees.
    """
    from weft.sdk.app import Weft

    if place.root is not None and place.root != Path.cwd() and not os.environ.get("WEFT_DATA"):
        os.environ["WEFT_DATA"] = str(place.root / ".weft")
    for directory in (place.root, Path.cwd()):
        if directory is not None and str(directory) not in sys.path:
            sys.path.insert(0, str(directory))
    module_name, colon, attribute = place.target.partition(":")
    if not colon or not module_name or not attribute or "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".") or "module"
        raise SettingsError(
            f"{place.target!r} ({place.source}) is not of the form module:app, such as {dotted}:{attribute or 'app'}"
        )
    found: object = _import(module_name, place)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Weft):
        module = sys.modules[module_name]
        apps = [name for name, value in vars(module).items() if isinstance(value, Weft)]
        hint = f"; it holds {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else ""
        what = "is not there" if found is None else f"is a {type(found).__name__}, not a Weft app"
        raise SettingsError(f"{place.target} ({place.source}): {attribute} {what} in {module.__file__}{hint}")
    return found


def _import(name: str, place: Place) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise SettingsError(
                f"there is no module {error.name!r} ({place.target} by {place.source}); looked in"
                f" {', '.join(map(str, dict.fromkeys((Path.cwd(), place.root or Path.cwd()))))} and the Python path"
            ) from error
        raise _broken(name, error) from error
    except WeftError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> TargetBroken:
    """Tells where user code failed: its own frames, not those of the import machinery or of Weft."""
    import traceback

    own = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    shown = [f for f in frames if not f.filename.startswith((own, "<frozen")) and "importlib" not in f.filename]
    lines = [*traceback.format_list(shown), *traceback.format_exception_only(error)]
    return TargetBroken(f"importing {name} failed:\n{''.join(lines).rstrip()}")


def with_app(app: Weft, work: Callable[[Weft], Awaitable[T]], *, opens: bool = True) -> T:
    """Opens the app's store, runs some work on it, closes it. Work that only needs the archive need not open it."""
    import asyncio

    from weft import telemetry
    from weft.settings import read_setting

    telemetry.configure(read_setting("WEFT_LOG_LEVEL") if os.environ.get("WEFT_LOG_LEVEL") else "warning")

    async def body() -> T:
        from weft.engine.engine import acting_by

        acting_by.set("cli:")
        if opens:
            async with app:
                return await work(app)
        try:
            return await work(app)
        finally:
            await app.close()

    try:
        return asyncio.run(body())
    except KeyboardInterrupt:
        sys.exit(130)
