"""The commands and their arguments: the one file that knows cyclopts."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from cano.cli.codes import INTERRUPTED, MEANINGS, CommandError, Exit, code_of
from cano.cli.drive import Ended, IfExists, Settle, error_described, report, resume_here, run_here, told
from cano.cli.ending import Ending, handlers_put_back
from cano.cli.log import clear_run, list_runs, show_run
from cano.cli.output import complain, kept_for_documents, prepare, say, say_json
from cano.cli.target import workflow_at
from cano.cli.text import printable
from cano.cli.version import version


def _flag(name: str, text: str) -> Parameter:
    return Parameter(name=name, negative="", show_default=False, help=text)


Json = Annotated[bool, _flag("--json", "Print JSON, for programs.")]
Trace = Annotated[bool, _flag("--traceback", "Print the traceback of an error.")]
Log = Annotated[str, Parameter(name="LOG", help="The SQLite file of a SqliteCheckpointStore. It has to exist.")]
Id = Annotated[str, Parameter(name="ID", help="The run's id. After -- it may begin with a hyphen.")]
Target = Annotated[
    str, Parameter(name="MODULE:WORKFLOW", help="As in package.module:name; a Workflow, or a function that returns one.")
]
State = Annotated[str, Parameter(name="STATE", help="Where to begin: an enum member's name, or the string.")]


def call(arguments: Sequence[str], *, for_good: bool = False) -> int:
    """Run one command, and return its exit code. An error is one line on stderr, and with `--json` an object on stdout.

    `for_good` says that the process ends with the command: then signals cannot replace its code any more, and with
    `--json` nothing follows the document. Otherwise signal handlers and stdout are put back.
    """
    prepare()
    with ExitStack() as kept:
        if not for_good:
            kept.enter_context(handlers_put_back())
        try:
            command, bound, *_ = _app().parse_args(list(arguments), exit_on_error=False, print_error=False)
        except CycloptsError as error:
            usage = CommandError(Exit.USAGE, f"{_one_line(error)}; see cano --help")
            return _failed(usage, "--json" in arguments, False, Ending())
        if bound.kwargs.get("json"):
            kept.enter_context(kept_for_documents(for_good=for_good))
        try:
            return int(command(*bound.args, **bound.kwargs) or 0)
        except KeyboardInterrupt:  # in between
            return INTERRUPTED


def _one_line(error: CycloptsError) -> str:
    return " ".join(str(error).split()).removesuffix(".")


def _app() -> App:
    app = App(name="cano", help=_help(), help_format="plaintext", version=version)
    for command in (runs, show, clear, run, resume, graph):
        app.command(command)
    return app


def _help() -> str:
    codes = "\n\n".join(f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items())
    return f"Look into cano's logs, and run and resume workflows.\n\nExit codes:\n\n{codes}"


def runs(log_path: Log, /, *, json: Json = False, traceback: Trace = False) -> int:
    """List the runs of LOG: state, visit, time since they progressed, windows, resumes and last error."""
    return _asked(lambda: list_runs(log_path, as_json=json), json, traceback)


def show(
    log_path: Log,
    workflow_id: Id,
    /,
    *,
    values: Annotated[bool, _flag("--values", "Show cursors, outputs and data, too.")] = False,
    json: Json = False,
    traceback: Trace = False,
) -> int:
    """Show the rows of one run."""
    return _asked(lambda: show_run(log_path, workflow_id, values=values, as_json=json), json, traceback)


def clear(
    log_path: Log,
    workflow_id: Id,
    /,
    *,
    yes: Annotated[bool, _flag("--yes", "Do not ask.")] = False,
    json: Json = False,
    traceback: Trace = False,
) -> int:
    """Forget one run that nobody is working on. It cannot be resumed then, and nothing is compensated."""
    return _asked(lambda: clear_run(log_path, workflow_id, yes=yes, as_json=json), json, traceback)


def run(
    target: Target,
    state: State,
    /,
    *,
    workflow_id: Annotated[str | None, Parameter(name="--id", help="The run's id; by default a fresh one.")] = None,
    data: Annotated[str | None, Parameter(help="JSON for ctx.data, of the type that the workflow declares.")] = None,
    if_exists: Annotated[IfExists, Parameter(help="What to do if the id has an unfinished ")] = "error",
    json: Json = False,
    traceback: Trace = False,
) -> int:
    """Run a workflow from STATE to its end. SIGTERM and SIGINT drain it; a second one aborts the drain, a third kills."""

    def life(settle: Settle) -> Ended:
        return run_here(target, state, workflow_id=workflow_id, data=data, if_exists=if_exists, settle=settle)

    return _driven(life, json, traceback)


def resume(target: Target, workflow_id: Id, /, *, json: Json = False, traceback: Trace = False) -> int:
    """Go on with an unfinished run where its log ends. Signals are as for `run`."""
    return _driven(lambda settle: resume_here(target, workflow_id, settle=settle), json, traceback)


def graph(
    target: Target,
    /,
    *,
    dot: Annotated[bool, _flag("--dot", "For Graphviz; the default is Mermaid.")] = False,
    json: Json = False,
    traceback: Trace = False,
) -> int:
    """Draw a workflow as a Mermaid state diagram."""

    def draw() -> Exit:
        workflow = workflow_at(target)
        drawn = workflow.to_dot() if dot else workflow.to_mermaid()
        if json:
            say_json({"workflow": workflow.name, "format": "dot" if dot else "mermaid", "text": drawn})
        else:
            say(drawn.rstrip("\n"))
        return Exit.DONE

    return _asked(draw, json, traceback)


def _asked(work: Callable[[], Exit | None], json: bool, traceback: bool) -> int:
    ending = Ending()
    try:
        code = work() or Exit.DONE
    except BaseException as error:
        return _failed(error, json, traceback, ending)
    ending.settle(code)
    return code


def _driven(work: Callable[[Settle], Ended], json: bool, traceback: bool) -> int:
    ending = Ending()

    def settle(ended: Ended) -> None:
        ending.settle(ended.code, lambda: _tell(ended, json, traceback))

    ending.arm()
    try:
        ended = work(settle)
    except BaseException as error:
        return _failed(error, json, traceback, ending)
    ending.tell()
    return ended.code


def _tell(ended: Ended, json: bool, traceback: bool) -> None:
    if ended.error is not None and traceback:
        _trace(ended.error)
    report(ended, as_json=json)


def _failed(error: BaseException, json: bool, traceback: bool, ending: Ending) -> int:
    code = code_of(error)

    def words() -> None:
        if traceback:
            _trace(error)
        if json:
            say_json({"error": error_described(error), "exit_code": int(code)})
        complain(printable(f"cano: {told(error)}"))

    ending.settle(code, words)
    ending.tell()
    return code


def _trace(error: BaseException) -> None:
    complain("".join(tracebacks.format_exception(error)).rstrip("\n"))
