"""Snippets in Markdown, and how they are run. What a fence is:

    python     a fragment: all fragments of a page are one program, in their order
    python     whose first line is `# name.py`: a file of that name, written when its turn comes
    console    commands after `$`, run in their turn, with what they print below them; `...` stands for anything
    text       directly after a fragment: what that fragment prints; or mermaid, if it prints a `to_mermaid()`
    python or console, with `<!-- not run: why -->` on the line above: shown only

Each page has a directory of its own; the pages of a directory whose names begin with a number share one, in their order.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n+)?```(?P<language>[\w{}:-]*)[^\n]*\n(?P<body>.*?)^```$", flags=re.MULTILINE | re.DOTALL
)
NAMED = re.compile(r"# ([\w./-]+\.py)$")
MARK = "\x1e"


@dataclass
class Snippet:
    """One fence: where its body is in the page, and what it has to be now that it was run."""

    language: str
    body: str
    start: int
    why_not: str | None
    found: str | None = None

    @property
    def file(self) -> str | None:
        named = NAMED.match(self.body.partition("\n")[0]) if self.language == "python" else None
        return named[1] if named else None

    @property
    def fragment(self) -> bool:
        return self.language == "python" and self.file is None and self.why_not is None


@dataclass
class Page:
    """A page and its snippets."""

    path: Path
    text: str = ""
    snippets: list[Snippet] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.path.read_text(encoding="utf-8")
        for match in FENCE.finditer(self.text):
            self.snippets.append(Snippet(match["language"], match["body"], match.start("body"), match["why"]))

    def run(self, directory: Path) -> None:
        """Run everything; what came out is in `found` of the snippets that show output."""
        for snippet in self.snippets:
            if snippet.why_not is not None:
                continue
            if snippet.file is not None:
                (directory / snippet.file).write_text(snippet.body, encoding="utf-8")
            elif snippet.language == "console":
                snippet.found = session(snippet.body, directory)
        self._run_fragments(directory)

    def _run_fragments(self, directory: Path) -> None:
        fragments = [snippet for snippet in self.snippets if snippet.fragment]
        if not fragments:
            return
        program = directory / "page.py"
        mark = f"\nprint({MARK!r}, end='', flush=True)\n"
        program.write_text(mark.join(snippet.body for snippet in fragments), encoding="utf-8")
        printed = execute([sys.executable, program.name], directory)
        if printed.returncode or printed.stderr:
            raise AssertionError(f"{self.path.name}: exit {printed.returncode}\n{printed.stdout}\n{printed.stderr}")
        outputs = printed.stdout.split(MARK)
        for fragment, output in zip(fragments, outputs, strict=True):
            shown = self._after(fragment)
            if shown is not None:
                shown.found = output

    def _after(self, fragment: Snippet) -> Snippet | None:
        place = self.snippets.index(fragment) + 1
        following = self.snippets[place] if place < len(self.snippets) else None
        if following is None or following.language not in ("text", "mermaid"):
            return None
        drawn = following.language == "text" or "to_mermaid()" in fragment.body
        return following if drawn else None

    def rewritten(self) -> str:
        """The page with what was found in the place of what is shown, but for fences that say `...`."""
        text = self.text
        for snippet in reversed(self.snippets):
            if snippet.found is not None and not matches(snippet.body, snippet.found) and "..." not in snippet.body:
                end = snippet.start + len(snippet.body)
                text = text[: snippet.start] + snippet.found + text[end:]
        return text


def matches(shown: str, found: str) -> bool:
    """Whether what is shown is what was found; `...` stands for anything."""
    pattern = r"[\s\S]*?".join(re.escape(part) for part in shown.rstrip().split("..."))
    return re.fullmatch(pattern, found.rstrip()) is not None


def session(shown: str, directory: Path) -> str:
    """Run the commands of a console, and return it with what they print now."""
    lines = []
    for line in shown.splitlines():
        if line.startswith("$ "):
            lines += [line, *command(line[2:], directory)]
    return "\n".join(lines) + "\n"


def command(line: str, directory: Path) -> list[str]:
    """Run `NAME=value python ...` and return the lines it prints, and how it was killed, as a shell would say."""
    words = shlex.split(line)
    settings: dict[str, str] = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    if words[0] != "python":
        raise AssertionError(f"only python can be run here: {line}")
    if words[1:3] == ["-m", "pytest"]:
        settings["PYTHONWARNINGS"] = "default"  # pytest has its own rules, and its plugins their own warnings
    finished = execute([sys.executable, *words[1:]], directory, settings)
    killed = ["Killed"] if finished.returncode == -signal.SIGKILL else []
    return [*(finished.stdout + finished.stderr).splitlines(), *killed]


def execute(words: list[str], directory: Path, settings: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        words,
        cwd=directory,
        env={**environment, **(settings or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def chapters(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Pages by what they share a directory with: numbered ones with their siblings, others with nobody."""
    found: dict[str, list[Path]] = {}
    for path in sorted(paths):
        numbered = path.name[0].isdigit()
        found.setdefault(str((path.parent if numbered else path).relative_to(ROOT)), []).append(path)
    return found
