"""`weft runs export|import`: a run as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli import output
from weft.cli import target as targets
from weft.cli.runs import RunId, group

if TYPE_CHECKING:
    from weft.sdk.app import Weft


@group.command("export")
def export(
    id: RunId,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to; stdout by default.", envvar="WEFT_RUNS_EXPORT_OUTPUT"
        ),
    ] = None,
    app: targets.AppOption = None,
) -> None:
    """Write an ended run into one file: history, payloads, definition. Secrets are redacted.

    What stands under a name like password, token or api_key is redacted, and every value of a secret that this process can
    read (WEFT_SECRET_…, WEFT_SECRETS_DIR). Exit code 5 when the run has not ended or is not archived yet.
    """
    import sys

    data = targets.with_app(targets.load_app_or_bare(app), lambda app: app.runs.export(id))
    if out is None:
        sys.stdout.buffer.write(data + b"\n")
    else:
        try:
            out.write_bytes(data + b"\n")
        except OSError as error:
            raise typer.BadParameter(f"{out} cannot be written: {error.strerror}", param_hint="--output") from None
        output.say(f"{len(data)} bytes in {out}")


@group.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - reads stdin.")],
    app: targets.AppOption = None,
    json: output.Json = False,
) -> None:
    """Store an exported run in this archive, under its id. Prints the id; `weft workflows check --run ID` replays a workflow.

    A file that is damaged, or none, is refused, and an id that is there is a conflict (exit code 5): then nothing is stored.
    """

    import sys

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="FILE") from None

    async def store(app: Weft) -> str:
        return (await app.runs.import_(data)).id

    id = targets.with_app(targets.load_app_or_bare(app), store)
    output.print_json({"id": id, "run_id": id}) if json else print(id)
