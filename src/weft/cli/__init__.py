"""The command line. One file per command group; command bodies import Weft when they run, so that help is quick."""

from __future__ import annotations


def main() -> None:
    """Runs `weft` with the arguments of this process and exits."""
    try:
        from weft.cli.commands import run

        run()
    except KeyboardInterrupt:  # while it was still importing, or writing its last words
        raise SystemExit(130) from None
