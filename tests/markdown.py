"""Python that stands in the documentation."""

import re
from pathlib import Path


def python_blocks(page: Path) -> list[str]:
    """Return all blocks of a page, from top to bottom."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
