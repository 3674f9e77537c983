"""Set tags of entries' runs: ``python -m implicit_models.tracking.tagging < TAGS``.

Standard input is JSON: a list of ``[ENTRY, DIGEST OF ITS PARAMETERS, {TAG: VALUE}]``.
"""

import json
import logging
import sys
from pathlib import Path

from implicit_models.tracking.mlflow import deliver, tag_entries

_logger = logging.getLogger(__name__)


def main() -> int:
    """Send what is tracked here and set the tags; 1, with the reason, where that is impossible."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    tags = {(entry, digest): values for entry, digest, values in json.load(sys.stdin)}
    root = Path(".")
    deliver(root)
    problem = tag_entries(tags, root)
    if problem is not None:
        _logger.error(problem)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
