"""The public names, as a snapshot: a name that goes or comes is a decision, never an accident."""

import re

import pytest

import weft
from weft import Context, Run, RunInfo, RunStatus, Weft, errors
from weft.core.model import Event, LogLine
from weft.errors import BY_CODE, WeftError
from weft.sdk.current import Current
from weft.sdk.flowrun import WorkflowRun
from weft.sdk.run import FoundRun, SyncRun
from weft.sdk.task import AsyncTask, Bound, PlainTask, SyncTask, Task
from weft.sdk.workflow import BoundWorkflow, Workflow


def public(thing: object) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def attributes(source: type) -> list[str]:
    """Returns the names that a class's `__init__` gives its instances, besides those of the class itself."""
    import inspect

    text = inspect.getsource(source.__init__)
    return sorted(set(re.findall(r"self\.([a-z]\w*)\b(?=[^\n]*?=[^=])", text)))


def test_every_error_can_be_imported_from_weft():
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, WeftError)}
    assert {name: getattr(weft, name) for name in classes} == classes
    assert classes.keys() <= set(weft.__all__)


def test_what_can_be_imported_from_weft():
    assert sorted(weft.__all__) == [
        "AlreadyRunning",
        "Approval",
        "ApprovalPage",
        "ArchiveBehind",
        "ArchiveUnavailable",
        "Broken",
        "CheckpointMoved",
        "Conflict",
        "Context",
        "Current",
        "DeadLetter",
        "DefinitionError",
        "Depends",
        "Discard",
        "DurabilityUnmet",
        "EgressDenied",
        "EpochMissing",
        "Event",
        "ExpressionFailed",
        "Fatal",
        "FeedPage",
        "FileRefused",
        "ForeignArchive",
        "ForeignAwait",
        "Graph",
        "HistoryExpired",
        "HistoryLimit",
        "HttpBadResponse",
        "HttpFailed",
        "HttpTimeout",
        "HttpUnreachable",
        "InvalidArguments",
        "InvalidExpression",
        "InvalidGraph",
        "InvalidOption",
        "LetterGroup",
        "LetterPage",
        "LinkRefused",
        "LogLine",
        "NonDeterminism",
        "NotAllowed",
        "NotBuilt",
        "NotExecuted",
        "NotFound",
        "Observation",
        "OutcomeUnknown",
        "OwnershipLost",
        "PartitionLost",
        "PatchLimit",
        "PayloadRefused",
        "PayloadTooLarge",
        "PoisonRow",
        "ReplayReport",
        "ResourceFailed",
        "ResultExpired",
        "Retry",
        "Run",
        "RunCancelled",
        "RunInfo",
        "RunStatus",
        "ScheduleInfo",
        "SchemaRefused",
        "ScriptError",
        "SecretMissing",
        "SessionAlive",
        "SessionLost",
        "SettingsError",
        "Snooze",
        "StaleControls",
        "StaleEpoch",
        "StepFailed",
        "StoreRefused",
        "Unavailable",
        "UserError",
        "Weft",
        "WeftError",
        "WorkFailed",
        "__version__",
        "current",
    ]


@pytest.mark.parametrize("name", weft.__all__)
def test_every_public_name_is_there(name):
    assert getattr(weft, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Wept"):
        weft.Wept  # noqa: B018


def test_the_app():
    assert public(Weft) == [
        "after_task",
        "before_task",
        "close",
        "cron",
        "database",
        "definitions",
        "embedded",
        "engine",
        "find_shape",
        "find_task",
        "graph",
        "load",
        "on_error",
        "on_shutdown",
        "on_startup",
        "open",
        "release",
        "revive",
        "task",
        "testing",
        "url",
        "worker",
        "workflow",
    ]
    assert attributes(Weft) == [
        "approvals",
        "audit",
        "controls",
        "crons",
        "dlq",
        "graphs",
        "hooks",
        "name",
        "portal",
        "queues",
        "retention",
        "runs",
        "schedules",
        "shutdown",
        "startup",
        "status",
        "tasks",
        "workers",
        "workflows",
    ]
    assert public(type(Weft("x").runs)) == ["change", "count", "export", "get", "import_", "list", "sync"]
    verbs = ["limit", "list", "pause", "resume", "strike", "unlimit", "unstrike"]
    assert public(type(Weft("x").controls)) == sorted([*verbs, "sync"])
    assert public(type(Weft("x").controls.sync)) == verbs
    verbs = ["count", "find", "get", "groups", "investigate", "list", "purge", "replay", "replay_many"]
    assert public(type(Weft("x").dlq)) == [*verbs, "sync"]
    assert public(type(Weft("x").dlq.sync)) == verbs
    verbs = ["archived", "backfill", "create", "delete", "get", "list", "next", "pause", "resume", "trigger"]
    assert public(type(Weft("x").schedules)) == sorted([*verbs, "sync"])
    assert public(type(Weft("x").schedules.sync)) == verbs
    verbs = ["children", "feed", "history", "latest", "publish"]
    assert public(type(Weft("x").status)) == sorted([*verbs, "sync"])
    assert public(type(Weft("x").status.sync)) == verbs


@pytest.mark.parametrize("kind", [Task, AsyncTask, PlainTask])
def test_a_task(kind):
    assert public(kind) == ["delay", "enqueue", "enqueue_many", "options", "run", "sync"]


def test_a_task_with_options():
    assert public(Bound) == ["enqueue", "enqueue_many", "options", "sync"]
    assert public(SyncTask) == ["enqueue", "enqueue_many"]


@pytest.mark.parametrize("kind", [Run, FoundRun])
def test_a_run(kind):
    assert public(kind) == [
        "cancel",
        "events",
        "explain",
        "history",
        "info",
        "logs",
        "reschedule",
        "result",
        "status",
        "sync",
    ]
    assert {"deduplicated", "id"} <= set(vars(Weft("x").runs.get("r0-0000000000000000000000")))


def test_a_workflow_and_its_run():
    assert public(Workflow) == ["find", "misfit", "options", "program", "retrace", "run", "send", "start", "sync"]
    assert public(BoundWorkflow) == ["options", "start", "sync"]
    assert set(public(WorkflowRun)) - set(public(Run)) == {
        "resolve", "retry", "signal", "state", "timeline", "tree", "update"
    }  # fmt: skip
    assert set(public(WorkflowRun(Weft("x"), "r0-0000000000000000000000", bytes).sync)) - set(public(SyncRun)) == {
        "deduplicated",
        "id",
        "resolve",
        "retry",
        "signal",
        "state",
        "timeline",
        "tree",
        "update",
    }


def test_a_context():
    assert public(Context) == [
        "approve",
        "call",
        "changed",
        "child",
        "continue_as_new",
        "gather",
        "history_length",
        "is_closed",
        "log",
        "map",
        "now",
        "on_failure",
        "on_update",
        "options",
        "race",
        "random",
        "receive",
        "run_id",
        "set_state",
        "shield",
        "signal",
        "sleep",
        "step",
        "tags",
        "undo_all",
        "updates_done",
        "uuid",
    ]


def test_a_run_without_a_loop():
    assert public(SyncRun) == [
        "cancel",
        "events",
        "explain",
        "history",
        "info",
        "logs",
        "reschedule",
        "result",
        "status",
        "sync",
    ]


def test_what_a_step_knows():
    assert public(Current) == [
        "attempt",
        "batch",
        "delivery",
        "effect_key",
        "fence",
        "heartbeat",
        "log",
        "progress",
        "run_id",
        "step",
        "tags",
        "task",
    ]


def test_what_is_read_of_a_run():
    assert RunInfo.__struct_fields__ == (
        "id",
        "name",
        "kind",
        "status",
        "queue",
        "priority",
        "attempt",
        "delivery",
        "created_at",
        "started_at",
        "finished_at",
        "due_at",
        "deadline_at",
        "progress",
        "message",
        "error",
        "tags",
        "durability",
        "idempotency_key",
        "crashes",
        "worker",
        "state",
        "replay_of",
        "replayed_as",
        "parent",
        "version",
        "gap",
    )
    assert Event.__struct_fields__ == ("run_id", "seq", "type", "at", "step", "data")
    assert LogLine.__struct_fields__ == ("at", "level", "message", "fields", "attempt", "dropped", "step")
    assert list(RunStatus) == ["queued", "running", "waiting", "paused", "completed", "failed", "cancelled"]


def test_error_codes_are_stable_and_each_names_one_class():
    assert sorted(BY_CODE) == [
        "already_running",
        "archive_behind",
        "archive_unavailable",
        "bad_definition",
        "bad_setting",
        "broken",
        "checkpoint_moved",
        "conflict",
        "durability_unmet",
        "egress_denied",
        "epoch_missing",
        "expression_failed",
        "file_refused",
        "foreign_archive",
        "foreign_await",
        "history_expired",
        "history_limit",
        "http_bad_response",
        "http_failed",
        "http_timeout",
        "http_unreachable",
        "invalid_arguments",
        "invalid_expression",
        "invalid_graph",
        "invalid_option",
        "link_refused",
        "non_determinism",
        "not_allowed",
        "not_built",
        "not_executed",
        "not_found",
        "outcome_unknown",
        "ownership_lost",
        "partition_lost",
        "patch_limit",
        "payload_refused",
        "payload_too_large",
        "poison_row",
        "resource_failed",
        "result_expired",
        "run_cancelled",
        "schema_refused",
        "script_error",
        "secret_missing",
        "session_alive",
        "session_lost",
        "stale_controls",
        "stale_epoch",
        "step_failed",
        "store_refused",
        "unavailable",
        "user_error",
        "weft_error",
        "work_failed",
    ]
    assert all(issubclass(cls, WeftError) and cls.code == code for code, cls in BY_CODE.items())
