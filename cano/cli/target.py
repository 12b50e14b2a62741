"""MODULE:WORKFLOW, as it is typed, to a workflow."""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
import sys
from typing import Any

from cano.cli.codes import CommandError, Exit
from cano.errors import CanoError
from cano.workflow.plan import label_of
from cano.workflow.workflow import Workflow

_ITS_OWN = (CanoError, SystemExit, KeyboardInterrupt)
"""What has an exit code of its own."""


def workflow_at(name: str) -> Workflow[Any, Any]:
    """The workflow called `package.module:attribute`, or what a function of that name returns, called without arguments.

    Modules of the current directory are found, as with `python -m`, unless Python was started with `-P`.

    Raises:
        CommandError: it is not there, is no workflow, or its module or function raised.
        CanoError: raised by the module or function, such as a ConfigurationError of the definition.
        SystemExit, KeyboardInterrupt: likewise.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise CommandError(Exit.USAGE, f"{name!r} is no MODULE:WORKFLOW, such as package.module:workflow")
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found = _attribute(_module(module_name), module_name, attribute)
    if isinstance(found, Workflow):
        return found
    return _called(found, name)


def _module(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise CommandError(Exit.USAGE, f"{name!r} is no name of a module")
    try:
        return pkgutil.resolve_name(f"{name}:")
    except _ITS_OWN:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CommandError(Exit.NOT_FOUND, f"no module {name!r} in the current directory or on Python's path") from error
        raise _raised(f"importing {name}", error) from error
    except BaseException as error:
        raise _raised(f"importing {name}", error) from error


def _attribute(module: Any, module_name: str, attribute: str) -> Any:
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise CommandError(Exit.NOT_FOUND, f"module {module_name!r} has no {attribute!r}") from error


def _called(factory: Any, name: str) -> Workflow[Any, Any]:
    wanted = "give a Workflow, or a function without arguments that returns one"
    if not callable(factory):
        raise CommandError(Exit.USAGE, f"{name} is of type {type(factory).__name__}; {wanted}")
    try:
        inspect.signature(factory).bind()
    except TypeError:
        raise CommandError(Exit.USAGE, f"{name} needs arguments; {wanted}") from None
    except ValueError:  # no signature to be had
        pass
    try:
        made = factory()
    except _ITS_OWN:
        raise
    except BaseException as error:
        raise _raised(f"calling {name}", error) from error
    if not isinstance(made, Workflow):
        if inspect.iscoroutine(made):
            made.close()
        raise CommandError(Exit.USAGE, f"{name} returned a value of type {type(made).__name__}; {wanted}")
    return made


def _raised(what: str, error: BaseException) -> CommandError:
    return CommandError(Exit.FAILED, f"{what} raised {type(error).__name__}; --traceback shows where")


def state_called(workflow: Workflow[Any, Any], label: str) -> Any:
    """The state that a log would name so.

    Raises:
        CommandError: there is none.
    """
    states = {label_of(state): state for state in workflow.registered_states | workflow.exit_states}
    if label not in states:
        raise CommandError(Exit.USAGE, f"no state {label!r}; the workflow has {', '.join(sorted(states)) or 'none'}")
    return states[label]
