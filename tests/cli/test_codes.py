"""An exit code for every error, and one meaning for each code."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CanoError,
    CheckpointConflictError,
    CheckpointStoreError,
    CompensationFailedError,
    ConfigurationError,
    CursorError,
    RetryExhaustedError,
    RunFencedError,
    RunOwnedError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
    WorkflowVersionMismatchError,
)
from cano.cli import codes
from cano.cli.codes import MEANINGS, CommandError, Exit, code_of
from tests.cli.commands import ROOT

IN_A_STATE = [
    (WorkflowCancelledError, Exit.CANCELLED),
    (WorkflowTimeoutError, Exit.TIMED_OUT),
    (RunFencedError, Exit.OWNED),
    (CheckpointConflictError, Exit.EXISTS),
    (CheckpointStoreError, Exit.FAILED),
    (ConfigurationError, Exit.FAILED),
    (TaskExecutionError, Exit.FAILED),
    (CursorError, Exit.FAILED),
    (WorkflowError, Exit.FAILED),
    (AttemptTimeoutError, Exit.FAILED),
    (RetryExhaustedError, Exit.FAILED),
    (CompensationFailedError, Exit.FAILED),
]
BEFORE = [
    (WorkflowCancelledError, Exit.CANCELLED),
    (RunOwnedError, Exit.OWNED),
    (WorkflowVersionMismatchError, Exit.REFUSED),
    (CheckpointStoreError, Exit.REFUSED),
    (CursorError, Exit.REFUSED),
    (WorkflowError, Exit.REFUSED),
    (TaskExecutionError, Exit.REFUSED),
    (ConfigurationError, Exit.USAGE),
]


@pytest.mark.parametrize(("kind", "code"), IN_A_STATE)
def test_an_error_in_a_state_tells_of_the_run(kind: type[CanoError], code: Exit) -> None:
    error = kind("it")
    error.locate("READ", 1, ["READ"])
    assert code_of(error) is code


@pytest.mark.parametrize(("kind", "code"), BEFORE)
def test_an_error_before_the_first_state_tells_of_the_log_or_the_definition(kind: type[CanoError], code: Exit) -> None:
    assert code_of(kind("it")) is code


def test_any_other_error_is_a_failure() -> None:
    assert code_of(ValueError()) is Exit.FAILED
    assert code_of(CommandError(Exit.NOT_FOUND, "it")) is Exit.NOT_FOUND
    assert code_of(GeneratorExit()) is Exit.FAILED


@pytest.mark.parametrize(("code", "own"), [(None, 0), (0, 0), (9, 9), (256, 0), (-1, 255), (True, 1), ("text", 1), ([], 1)])
def test_an_exit_of_the_users_keeps_the_code_that_python_would_give_it(code: Any, own: int) -> None:
    assert code_of(SystemExit(code)) == own
    assert code_of(KeyboardInterrupt()) == 130


def table(text: str, pattern: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, text, flags=re.MULTILINE)]


def test_every_code_is_in_the_help_in_the_module_and_on_the_page() -> None:
    numbers = [int(code) for code in Exit]
    assert numbers == list(range(9))
    assert list(MEANINGS) == list(Exit)
    assert table(codes.__doc__ or "", r"^    (\d)  \w") == numbers
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert table(page, r"^\| (\d) \|") == numbers
