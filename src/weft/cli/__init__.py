"""The command line. One file per command group; command bodies import Weft when they run, so that help is quick."""

from __future__ import annotations

import os


def main() -> None:
    """Runs `weft` with the arguments of this process and exits."""
    _open_standard_streams()
    try:
        from weft.cli.commands import run

        run()
    except KeyboardInterrupt:  # while it was still importing, or writing its last words
        raise SystemExit(130) from None


def _open_standard_streams() -> None:
    """Puts something where stdin, stdout and stderr were closed, as `>&-` and some supervisors do.

    The next files and sockets would get their numbers, and whatever is printed would go into them.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, since those below are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
