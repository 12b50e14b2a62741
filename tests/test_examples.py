"""Every example, run as a newcomer would run it, prints what its docstring says."""

import ast
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from examples import flights_proof as proof

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTING = [path for path in EXAMPLES if path.stem != "__init__" and not path.stem.startswith("flights")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
REWRITE = os.environ.get("CANO_REWRITE_EXAMPLES") == "1"
"""Set to make the docstrings say what the examples print, instead of comparing the two."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def expected_output(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, marker, block = docstring.partition("\nPrints:\n")
    assert marker, f"the docstring of {path.name} has to end with what it prints, under a line 'Prints:'"
    return textwrap.dedent(block) + "\n"


def rewrite_docstring(path: Path, output: str) -> None:
    head, _, rest = path.read_text().partition("\nPrints:\n")
    _, _, code = rest.partition('"""')
    path.write_text(f'{head}\nPrints:\n{textwrap.indent(output, "    ")}"""{code}')


@pytest.mark.parametrize("path", PRINTING, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(path: Path) -> None:
    finished = run("-m", f"examples.{path.stem}")
    assert (finished.returncode, finished.stderr) == (0, "")
    if REWRITE:
        rewrite_docstring(path, finished.stdout)
    assert finished.stdout == expected_output(path)


@pytest.mark.parametrize("name", ["hello_workflow", "crash_and_resume"])
def test_an_example_can_be_run_as_a_file_too(name: str) -> None:
    path = ROOT / "examples" / f"{name}.py"
    finished = run(str(path))
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == expected_output(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_shorter_than_a_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 100


def test_the_demo_is_killed_in_mid_stream_and_proves_that_nothing_is_lost_and_nothing_comes_twice() -> None:
    finished = run("-m", "examples.flights", "--records", "20000", "--seed", "1")
    assert (finished.returncode, finished.stderr) == (0, "")
    found = re.findall(r"SIGKILL with ([\d,]+) flights", finished.stdout)
    kills = [int(count.replace(",", "")) for count in found]
    assert kills
    assert all(0 < count < 20_000 for count in kills)
    proven = "PROOF: all three counts are equal: nothing was lost, nothing came twice"
    assert finished.stdout.splitlines()[-1] == proven


def test_the_data_of_the_demo_is_what_its_readme_says() -> None:
    readme = (proof.FLIGHTS.parent / "README.md").read_text()
    assert f"The {proof.of_file(None).flights:,} flights" in readme
    assert proof.FLIGHTS.stat().st_size < 3_000_000


def test_the_proof_of_the_demo_fails_when_a_flight_is_lost_or_there_twice(tmp_path: Path) -> None:
    database, records = tmp_path / "flights.db", 300
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        proof.create_tables(connection)
        assert run("-m", "examples.flights_job", str(database), str(records)).returncode == 0

        def proven() -> bool:
            counts = {"the file": proof.of_file(records), "the table": proof.of_table(connection)}
            return proof.proven({**counts, "ctx.data": proof.of_data(connection)}, connection)

        assert proven()
        connection.execute("INSERT INTO flight SELECT * FROM flight WHERE number = 7")
        assert not proven(), "one is there twice"
        connection.execute("DELETE FROM flight WHERE number = 7")
        assert not proven(), "one is lost"


def test_a_demo_that_is_stopped_leaves_no_process_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.flights", "--seed", "1"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # and so a process group, to which whatever it starts belongs
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any("SIGKILL" in line for line in demo.stdout), "the job was running"
            demo.terminate()
            assert demo.wait(timeout=30) == 1
            with pytest.raises(ProcessLookupError):
                os.killpg(demo.pid, 0)
        finally:
            demo.kill()
