"""The page about breakers and limits does what it says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "resilience.md"


def test_the_snippets_of_the_page_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n\n".join(blocks), names)

    async def main() -> None:
        await names["pay"](1)
        await names["ask"]()
        await names["ask_provider"]()

    asyncio.run(main())
    assert names["payments"].counts.successes == 1
    assert names["requests"].capacity - names["requests"].available == 4
    assert names["tokens"].snapshot().used == 600 * 4
