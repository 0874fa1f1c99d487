"""What `weft worker` and `weft dev` say when they start: who they are, what they serve, where it is kept."""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.cli.output import say

if TYPE_CHECKING:
    from weft.cli.target import Place
    from weft.engine.health import Store
    from weft.sdk.app import Weft
    from weft.sdk.task import Task
    from weft.worker.worker import Worker

#: What `key=value` examples are made of, by the parameter's type; the nth number is 2, 3, 4 …
_SAMPLES = {int: ["2", "3", "4", "5"], float: ["1.5", "2.5"], str: ["Ada", "Grace"], bool: ["true", "false"]}


def print_banner(command: str, facts: Sequence[tuple[str, str | Sequence[str]]]) -> None:
    """Prints a heading and aligned facts; a fact with several values takes a line for each."""
    say(f"weft {__version__} {command}")
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        lines = [value] if isinstance(value, str) else list(value)
        for i, line in enumerate(lines):
            say(f"  {name if i == 0 else '':<{width}}  {line}")


def describe(app: Weft, place: Place, store: Store, worker: Worker, *, processes: int) -> dict[str, object]:
    """Returns what the banner tells, for programs; the store as `weft doctor` tells it."""
    return {
        "version": __version__,
        "pid": os.getpid(),
        "app": app.name,
        "target": place.target,
        "tasks": task_names(app),
        "workflows": sorted({workflow.name for workflow in app.workflows.values()}),
        "graphs": sorted(app.graphs),
        "queues": list(worker.queues),
        "concurrency": worker.concurrency,
        "processes": processes,
        "store": store,
        "namespace": app.engine().ns.keys.namespace,
    }


def store_facts(store: Store) -> list[tuple[str, str | Sequence[str]]]:
    """Tells the store, how safe things are there, and the directory when it is the embedded one."""
    name = f"{(store.flavour or '').capitalize()} {store.version}"
    facts: list[tuple[str, str | Sequence[str]]] = [
        ("store", f"{store.url} ({'embedded ' if store.embedded else ''}{name})"),
        ("durability", store.durability or "unknown"),
    ]
    if store.directory:
        facts.append(("data", store.directory))
    return facts


def task_names(app: Weft) -> list[str]:
    """Returns the names under which tasks are known, without their aliases."""
    return sorted({task.name for task in app.tasks.values()})


def own_tasks(app: Weft) -> list[str]:
    """Returns the names of tasks that people start themselves: not those that are nodes of a graph."""
    return [name for name in task_names(app) if name.rpartition(".")[0] not in app.graphs]


def workflow_facts(app: Weft) -> list[tuple[str, str | Sequence[str]]]:
    """Tells the workflows of an app, if it has some, without their aliases."""
    names = sorted({workflow.name for workflow in app.workflows.values()})
    return [("workflows", ", ".join(names))] if names else []


def graph_facts(app: Weft, *, short: bool = False) -> list[tuple[str, str | Sequence[str]]]:
    """Tells the graphs of an app, if it has some: their names, or each with its version and how many nodes it has."""
    if not app.graphs:
        return []
    if short:
        return [("graphs", ", ".join(sorted(app.graphs)))]
    lines = []
    for name, graph in sorted(app.graphs.items()):
        problems, n = graph.problems(), graph.n_nodes
        head = f"{name} {graph.version}" if graph.version else name
        wrong = f", not valid: {problems[0].message}" if problems else ""
        lines.append(f"{head}  {n} {'node' if n == 1 else 'nodes'}{wrong}")
    return [("graphs", lines)]


def tell_unserved(app: Weft, queues: Sequence[str]) -> None:
    """Says which tasks go to queues that this worker does not serve: a common surprise."""
    for queue, names in sorted(queues_of(app).items()):
        if queue not in queues:
            say(f"  note: {', '.join(sorted(names))} go to queue {queue!r}, which this worker does not serve (-q)")


def queues_of(app: Weft) -> dict[str, set[str]]:
    """Returns all queues that an app's tasks, workflows and nodes go to, each with their names."""
    found: dict[str, set[str]] = {}
    nodes = {f"{name}.{id}": queue for name, graph in app.graphs.items() for id, queue in graph.queues.items()}
    for task in app.tasks.values():
        if task.name not in nodes:
            found.setdefault(task.spec.queue, set()).add(task.name)
    for workflow in app.workflows.values():
        found.setdefault(workflow.spec.queue, set()).add(workflow.name)
    for name, queue in nodes.items():
        found.setdefault(queue, set()).add(name)
    return found


def example_command(app: Weft, place: Place) -> str:
    """Returns a command that works as it stands: it enqueues a task whose arguments can be made up, or runs a graph."""
    # Another terminal knows what pyproject.toml says, but not what was typed or exported in this one.
    option = [] if place.root else ["--app", place.target]
    for name in own_tasks(app):
        task = app.tasks[name]
        arguments = _example_arguments(task)
        if arguments is not None:
            return shlex.join([*_invocation(), "enqueue", *option, task.name, *arguments, "--watch"])
    for name in app.graphs:
        return shlex.join([*_invocation(), "run", *option, name, "--watch"])
    return shlex.join([*_invocation(), "enqueue", "--help"])


def _example_arguments(task: Task[Any, Any]) -> list[str] | None:
    from weft.cli.arguments import hints_of

    hints, used, arguments = hints_of(task), dict.fromkeys(_SAMPLES, 0), []
    for parameter in inspect.signature(task.fn).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        hint = hints.get(parameter.name)
        if hint not in _SAMPLES:
            return None
        values = _SAMPLES[hint]
        arguments.append(f"{parameter.name}={values[used[hint] % len(values)]}")
        used[hint] += 1
    return arguments


def _invocation() -> list[str]:
    """Returns how to call this program again from the current directory."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        name = Path(sys.executable).name
        return [name if shutil.which(name) == sys.executable else sys.executable, "-m", "weft"]
    found = shutil.which(program.name)
    if found and Path(found).resolve() == program.resolve():
        return [program.name]
    relative = program.absolute()
    return [str(relative.relative_to(Path.cwd()) if relative.is_relative_to(Path.cwd()) else relative)]
