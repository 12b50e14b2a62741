"""MODULE:WORKFLOW finds a workflow, and whatever else it finds is told apart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cano import Workflow
from cano.cli.codes import Exit
from cano.cli.target import workflow_at
from tests.cli.commands import InProcess


@pytest.mark.parametrize("name", ["shop:workflow", "shop:made", "shop:Holder.inside"])
def test_a_workflow_is_found_in_the_current_directory_by_itself_or_through_a_function(shop: Path, name: str) -> None:
    assert isinstance(workflow_at(name), Workflow)
    assert sys.path[0] == str(shop)


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("shop", Exit.USAGE, "no MODULE:WORKFLOW"),
        ("shop:", Exit.USAGE, "no MODULE:WORKFLOW"),
        (":workflow", Exit.USAGE, "no MODULE:WORKFLOW"),
        ("../shop:workflow", Exit.USAGE, "no name of a module"),
        ("shap:workflow", Exit.NOT_FOUND, "no module 'shap'"),
        ("shop.inner:workflow", Exit.NOT_FOUND, "no module 'shop.inner'"),
        ("shop:warkflow", Exit.NOT_FOUND, "module 'shop' has no 'warkflow'"),
        ("shop:number", Exit.USAGE, "shop:number is of type int; give a Workflow"),
        ("shop:needs_arguments", Exit.USAGE, "shop:needs_arguments needs arguments; give a Workflow"),
        ("shop:asynchronous", Exit.USAGE, "shop:asynchronous returned a value of type coroutine; give a Workflow"),
        ("shop:wrong", Exit.USAGE, "this workflow is wrong"),
        ("shop:broken", Exit.FAILED, "calling shop:broken raised RuntimeError"),
        ("shop:new\x1b[31m", Exit.NOT_FOUND, "module 'shop' has no 'new\\x1b[31m'"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_code(shop: Path, cano: InProcess, name: str, code: Exit, told: str) -> None:
    answer = cano("graph", name)
    assert (answer.code, answer.out) == (code, "")
    assert told in answer.err
    assert answer.err.count("\n") == 1
    assert "4711" not in answer.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import a_module_that_is_not_there", "importing bad raised ModuleNotFoundError"),
        ("1 / 0", "importing bad raised ZeroDivisionError"),
        ("int('x')", "importing bad raised ValueError"),
        ("def", "importing bad raised SyntaxError"),
        ("import shop; shop.nothing", "importing bad raised AttributeError"),
    ],
)
def test_a_module_that_raises_is_not_one_that_is_missing(shop: Path, cano: InProcess, text: str, told: str) -> None:
    (shop / "bad.py").write_text(text)
    answer = cano("graph", "bad:workflow")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert told in answer.err


def test_a_traceback_is_shown_to_who_asks_for_it(shop: Path, cano: InProcess) -> None:
    assert "Traceback" not in cano("graph", "shop:broken").err
    answer = cano("graph", "shop:broken", "--traceback")
    assert "Traceback" in answer.err
    assert "RuntimeError: the secret 4711" in answer.err


def test_a_graph_is_what_the_workflow_draws(shop: Path, cano: InProcess) -> None:
    workflow = workflow_at("shop:workflow")
    assert cano("graph", "shop:workflow").out == workflow.to_mermaid().rstrip("\n") + "\n"
    assert cano("graph", "shop:workflow", "--dot").out == workflow.to_dot().rstrip("\n") + "\n"
    answer = cano("graph", "shop:workflow", "--dot", "--json")
    assert answer.json == {"workflow": "shop", "format": "dot", "text": workflow.to_dot()}
