"""The command line. One file per command group; command bodies import Weft when they run, so that help is quick."""

from __future__ import annotations


def main() -> None:
    """Runs `weft` with the arguments of this process and exits."""
    from weft.cli.commands import run

    run()
