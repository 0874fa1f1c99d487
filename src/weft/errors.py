"""Every error Weft raises, declared once: class, stable code, HTTP status and whether trying again can help.

The class docstring's first line is the default message. Lua scripts, HTTP and the command line all name
errors by `code`; `BY_CODE` is the one table that maps a code back to its class. This room refuses to
hide causes: third-party errors are translated at the edge of the room that met them, with `from`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class WeftError(Exception):
    """Something in Weft went wrong."""

    code: ClassVar[str] = "weft_error"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, /, **facts: Any) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.facts = facts
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(cls: type[WeftError], message: str, facts: dict[str, Any]) -> WeftError:
    return cls(message, **facts)


# --- the caller's fault: 4xx, never retried -------------------------------------------------------


class UserError(WeftError):
    """The request cannot be carried out as it was made."""

    code = "user_error"
    http_status = 400


class DefinitionError(UserError):
    """A task, graph or workflow is declared in a way that cannot work."""

    code = "bad_definition"
    http_status = 422


class InvalidGraph(DefinitionError):
    """A graph definition has problems."""

    code = "invalid_graph"


class NotBuilt(DefinitionError):
    """This option is part of the public contract but not built yet."""

    code = "not_built"
    http_status = 501


class InvalidExpression(DefinitionError):
    """An expression or template cannot be read."""

    code = "invalid_expression"


class InvalidArguments(UserError):
    """The arguments do not fit the signature."""

    code = "invalid_arguments"
    http_status = 422


class InvalidOption(UserError):
    """An option has a value that makes no sense."""

    code = "invalid_option"
    http_status = 422


class PayloadRefused(UserError):
    """A value cannot be stored: it is not finite, not valid text, or of a type Weft does not carry."""

    code = "payload_refused"
    http_status = 422


class FileRefused(UserError):
    """A file is no exported run, or is damaged."""

    code = "file_refused"
    http_status = 422


class PayloadTooLarge(PayloadRefused):
    """A value is larger than the payload limit."""

    code = "payload_too_large"
    http_status = 413


class NotFound(UserError):
    """There is no such run."""

    code = "not_found"
    http_status = 404


class ResultExpired(UserError):
    """The run finished, but its result is no longer kept."""

    code = "result_expired"
    http_status = 410


class HistoryExpired(UserError):
    """Part of this run's history has been trimmed from the log."""

    code = "history_expired"
    http_status = 410


class Conflict(UserError):
    """The same idempotency key was used before with other arguments."""

    code = "conflict"
    http_status = 409


class AlreadyRunning(Conflict):
    """A workflow with this id is running."""

    code = "already_running"


class ForeignAwait(UserError):
    """A workflow awaits something that no restart survives."""

    code = "foreign_await"
    http_status = 422


class NonDeterminism(UserError):
    """The code of a workflow does not fit what it did before."""

    code = "non_determinism"
    http_status = 409


class HistoryLimit(UserError):
    """The journal of a workflow has grown to its limit."""

    code = "history_limit"
    http_status = 409


class PatchLimit(UserError):
    """A step wants to change more of a run than steps may."""

    code = "patch_limit"
    http_status = 409


class NotAllowed(UserError):
    """This person may not do that."""

    code = "not_allowed"
    http_status = 403


class LinkRefused(UserError):
    """A link is not ours, was changed, or has expired."""

    code = "link_refused"
    http_status = 403


class SettingsError(UserError):
    """A setting has a value that cannot be used."""

    code = "bad_setting"
    http_status = 422


class EgressDenied(UserError):
    """A request to this address is refused: it leads to where requests must not go."""

    code = "egress_denied"
    http_status = 403


class SecretMissing(UserError):
    """A secret that a request names is not there, or cannot be used."""

    code = "secret_missing"
    http_status = 422


# --- this process no longer owns what it was changing: drop the result and carry on ---------------


class OwnershipLost(WeftError):
    """The token, session or epoch this process held belongs to another now."""

    code = "ownership_lost"
    http_status = 409


class SessionLost(OwnershipLost):
    """This worker's session was declared dead and its steps were given to others."""

    code = "session_lost"


class SessionAlive(OwnershipLost):
    """The session is alive, so its steps are not to be taken."""

    code = "session_alive"


class StaleEpoch(OwnershipLost):
    """The partition has moved to a newer epoch."""

    code = "stale_epoch"


class StaleControls(OwnershipLost):
    """An operator has paused, limited or struck something since this process looked."""

    code = "stale_controls"


class CheckpointMoved(OwnershipLost):
    """Another archiver has archived this part of the log."""

    code = "checkpoint_moved"


# --- the world's fault: try again with backoff ----------------------------------------------------


class Unavailable(WeftError):
    """A server Weft needs does not answer."""

    code = "unavailable"
    http_status = 503
    retryable = True


class EpochMissing(Unavailable):
    """The partition has no epoch: the store was wiped or never opened."""

    code = "epoch_missing"


class PartitionLost(Unavailable):
    """The store lost what it held, and it is not rebuilt from the archive yet."""

    code = "partition_lost"


class NotExecuted(Unavailable):
    """The store refused the command before running it."""

    code = "not_executed"


class OutcomeUnknown(Unavailable):
    """The connection broke while a command was under way: it may or may not have been applied."""

    code = "outcome_unknown"


class DurabilityUnmet(Unavailable):
    """The store does not keep a run as safely as was asked for."""

    code = "durability_unmet"


class ArchiveUnavailable(Unavailable):
    """The cold store does not serve."""

    code = "archive_unavailable"


class ArchiveBehind(Unavailable):
    """New runs are not taken for now: the cold store is too far behind, or the store has little memory left."""

    code = "archive_behind"

    @property
    def retry_after_ms(self) -> int:
        """How long to wait before trying again: what has to be stored first takes at least that long."""
        return int(self.facts.get("retry_after_ms", 5_000))


class HttpUnreachable(Unavailable):
    """A server that a request goes to could not be reached, or broke off."""

    code = "http_unreachable"


class HttpTimeout(HttpUnreachable):
    """A request took longer than it may; whether the server acted on it is not known."""

    code = "http_timeout"


# --- the user's work failed: stored, survives the wire, comes back as itself ----------------------


class WorkFailed(WeftError):
    """The work itself failed."""

    code = "work_failed"


class StepFailed(WorkFailed):
    """A step failed for good."""

    code = "step_failed"

    @property
    def type(self) -> str:
        """The class name of the original exception."""
        return str(self.facts.get("type", "Exception"))

    @property
    def traceback(self) -> str:
        """The original traceback, as text."""
        return str(self.facts.get("traceback", ""))

    @property
    def causes(self) -> list[dict[str, str]]:
        """The chain of causes, nearest first: `{"type", "message"}` each."""
        return list(self.facts.get("causes", ()))


class ResourceFailed(WorkFailed):
    """A resource that a task depends on could not be opened."""

    code = "resource_failed"


class ExpressionFailed(WorkFailed):
    """An expression has no result for the values it was given."""

    code = "expression_failed"

    @property
    def reason(self) -> str:
        """Why, in one stable word: `missing_field`, `unknown_name`, `wrong_type`, `too_costly`, …"""
        return str(self.facts.get("reason", ""))


class HttpFailed(WorkFailed):
    """A request was answered with a status that was not expected."""

    code = "http_failed"

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.facts.get("status", 0))

    @property
    def retry_after_ms(self) -> int | None:
        """How long the server asks to be left alone; None when it does not."""
        after = self.facts.get("retry_after_ms")
        return None if after is None else int(after)


class HttpBadResponse(WorkFailed):
    """A request was answered with something that cannot be taken: too large, or not what it says it is."""

    code = "http_bad_response"


class RunCancelled(WeftError):
    """The run was cancelled."""

    code = "run_cancelled"
    http_status = 409


# --- our fault, or damage: park, alert, never guess -----------------------------------------------


class Broken(WeftError):
    """State was found that Weft cannot have written; nothing was changed."""

    code = "broken"


class ScriptError(Broken):
    """A Lua script failed while it ran."""

    code = "script_error"


class StoreRefused(Broken):
    """The server is configured in a way that loses work; Weft does not start on it."""

    code = "store_refused"


class PoisonRow(Broken):
    """A row cannot be stored in the cold store."""

    code = "poison_row"


class SchemaRefused(Broken):
    """The cold store has a schema that this Weft does not know."""

    code = "schema_refused"


class ForeignArchive(Broken):
    """The log is archived to another database."""

    code = "foreign_archive"


def _all_classes(cls: type[WeftError]) -> list[type[WeftError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _all_classes(child))]


#: code -> class, for everything that crosses a wire (Lua replies, HTTP bodies, CLI exit codes).
BY_CODE: dict[str, type[WeftError]] = {cls.code: cls for cls in _all_classes(WeftError)}
