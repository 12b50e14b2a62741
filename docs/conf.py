"""How the documentation is built: `make docs`. Every warning is an error, a link to a name that is not there included.

Nothing is fetched for it. Diagrams are drawn in the browser, by a script that comes over the network; without one their
text is shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import reference_pages  # noqa: E402 - it stands beside this file

project = "cano"
author = "the authors of cano"
html_title = "cano"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_copy_source = False
exclude_patterns = ["**/.*"]

nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!cano\.).*"), (r"py:.*", r"cano\.([\w.]+\.)?\w*T(_co)?")]
"""What is not cano's is not looked up, since that takes a network; and type variables have no place of their own."""
nitpick_ignore = [("py:class", f"cano.{name}") for name in reference_pages.INTERNAL]

myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True

NAVIGATION = {
    "index": {
        "Learn": ["tutorial/index", "models"],
        "Do": ["howto/index", "testing", "scheduling", "resilience", "observing", "operations", "typing"],
        "Understand": [
            "concepts/machine",
            "concepts/windows",
            "concepts/stopping",
            "concepts/undoing",
            "concepts/promises",
            "INVARIANTS",
        ],
        "Compare": ["coming/from-a-loop", "coming/from-rust", "coming/beside"],
        "Look up": ["reference/index", "glossary", "adr/README"],
    },
    "tutorial/index": {"Steps": ["[0-9]*"]},
    "howto/index": {"Questions": ["exactly-once", "deploys", "item-errors", "many-runs", "crash-safety", "a-store"]},
    "adr/README": {"Decisions": ["[0-9]*"]},
}
"""What stands below which page; a page that is not there is left out, and one that is nowhere is an error."""

EXPORTED = reference_pages.write(DOCS / "reference")


class LinkNames(SphinxTransform):
    """Makes a link of every `Name` in a page that is a name of the front door, so that pages need no markup for it."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Called by Sphinx, for each page."""
        for literal in list(self.document.findall(nodes.literal)):
            name = literal.astext().partition("(")[0]
            if name in EXPORTED and not isinstance(literal.parent, nodes.reference | pending_xref):
                link = pending_xref("", refdomain="py", reftype="obj", reftarget=f"cano.{name}", refexplicit=True)
                literal.replace_self(link)
                link += literal


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring of the house into reStructuredText."""
    lines[:] = reference_pages.restructured(lines)


def skip_member(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what is for the engine alone."""
    return True if "Engine use." in (getattr(obj, "__doc__", None) or "") else None


def find_name(app: Sphinx, env: Any, node: pending_xref, content: Any) -> Any:
    """Find a name that a signature takes from the module that defines it: readers know it by the front door."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if name not in EXPORTED or node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", f"cano.{name}", node, content)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Add what stands below a page in the navigation, so that pages are plain Markdown elsewhere."""
    for caption, entries in NAVIGATION.get(page, {}).items():
        there = [entry for entry in entries if "*" in entry or list((DOCS / page).parent.glob(f"{entry}.*"))]
        listed = "\n".join([":hidden:", ":glob:", f":caption: {caption}", *there])
        source[0] += f"\n\n```{{toctree}}\n{listed}\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_transform(LinkNames)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", find_name)
    app.connect("source-read", add_navigation)
