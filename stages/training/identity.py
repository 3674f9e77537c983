"""What a training's weights depend on, and which of it another training has otherwise."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from implicit_models.code_digest import (
    NOT_COMPUTING,
    code_digests,
    not_of_problem,
    only_of_scores,
)
from implicit_models.outside_code import outside_digests
from implicit_models.parameters import digest
from implicit_models.problems.table import KINDS
from stages.common import write_json

_FILE = "identity.json"
_NAMED = 10  # files in a message


@dataclass(frozen=True)
class Identity:
    """Everything that a training's weights depend on.

    Attributes
    ----------
    rest
        Digest of the data, of what the training starts from, and of the parameters but the batch's.
    batch_size
        Sequences of a step.
    torch
        Its version.
    code
        Digest of each file that computes: of the library, and of the problem's package elsewhere.
    """

    rest: str
    batch_size: int
    torch: str
    code: Mapping[str, str]

    @classmethod
    def of(
        cls,
        problem: str,
        parameters: Mapping[str, Any],
        data: Any,
        origin: str | None,
        batch_size: int,
    ) -> "Identity":
        """Return the identity of a training by the code and the torch of this process.

        Parameters
        ----------
        problem
            Its kind: the code of others does not count.
        parameters
            Those that the weights depend on.
        data
            Of `TrainingData.identity`.
        origin
            Digest of the state or of the source that the training starts from.
        """
        package = KINDS[problem]
        others = (*only_of_scores(), *not_of_problem(package, "evaluation"))
        code = code_digests(without=(*NOT_COMPUTING, *others)) | outside_digests(package, "data")
        rest = digest(_without_batch(parameters), data, origin)
        return cls(rest, batch_size, torch.__version__, code)

    @property
    def digest(self) -> str:
        """All of it in one digest."""
        return digest(asdict(self))

    def write(self, folder: Path) -> None:
        """Write it into a training's folder of checkpoints."""
        write_json(folder / _FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Identity | None":
        """Read whose checkpoints lie in a folder; None where it does not say."""
        try:
            return cls(**json.loads((folder / _FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def code_changes(self, before: "Identity") -> list[str]:
        """Return what is other code than in an earlier identity, in words."""
        changed = [
            f"{name} (new)" if name not in before.code else name
            for name, digest in self.code.items()
            if before.code.get(name) != digest
        ]
        changed += [f"{name} (gone)" for name in before.code if name not in self.code]
        if len(changed) > _NAMED:
            changed[_NAMED:] = [f"{len(changed) - _NAMED} other files"]
        if before.torch != self.torch:
            changed.append(f"torch ({before.torch} is now {self.torch})")
        return changed


def _without_batch(parameters: Mapping[str, Any]) -> dict[str, Any]:
    plain = parameters["optimisation"].model_dump()
    kept = {key: value for key, value in plain.items() if key not in ("batch_size", "batch_tokens")}
    return {**parameters, "optimisation": kept}
