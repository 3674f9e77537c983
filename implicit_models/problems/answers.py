"""What a kind of problem gives to stages: data to train on, and what was found of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from implicit_models.evaluation.sweep import SweepResult
    from implicit_models.language_models.labelled import Continuation, Sequences


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingData:
    """Sequences to train on and to validate with.

    Attributes
    ----------
    train, validation
        Token ids, and labels, which are ids as well; -100 in a signed dtype where nothing is asked.
    vocabulary_size
        Number of ids, of tokens and of answers together: each is below it.
    label_alignment
        Of the models that learn from them.
    identity
        What decides their content, as plain values.
    folder
        Where it lies, in a folder for each split.
    verify
        Compares all of it with its checksums.
    check_model
        Sees that a model that is trained on, a folder or a hub id, fits them, or raises a
        ValueError.
    save_beside
        Writes into a model's folder what the model needs to be used, such as a tokenizer.
    continuation
        How training sequences go on from one another where the carry is passed; None: they cannot.
    end_of_text
        The token at which a model that writes has come to an end; None where there is none.
    """

    train: "Sequences"
    validation: "Sequences"
    vocabulary_size: int
    label_alignment: Literal["next_token", "aligned"]
    identity: Any
    folder: Path
    verify: Callable[[], None]
    check_model: Callable[[Path], None] = lambda _: None
    save_beside: Callable[[Path], None] = lambda _: None
    continuation: "Continuation | None" = None
    end_of_text: int | None = None

    def files(self) -> list[Path]:
        """Return the files that are trained on and validated with."""
        found = (self.folder / split for split in ("train", "validation"))
        return sorted(path for each in found for path in each.rglob("*") if path.is_file())


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What the evaluation of a model found.

    Attributes
    ----------
    metrics
        The content of the file of results.
    headline
        The few of them that fit a table of experiments.
    files
        Further files by name: mappings, or rows.
    score
        What final models of one data set are ranked by: its name in the headline, with dots, its
        value, and whether higher is better. None where they are not.
    discard
        Removes what was kept for an interruption, once everything is written.
    """

    metrics: dict[str, Any]
    headline: dict[str, Any]
    files: Mapping[str, Any]
    score: tuple[str, float, bool] | None = None
    discard: Callable[[], None] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What a sweep found.

    Attributes
    ----------
    score
        Which of the scores of a point is the one to plot.
    discard
        As in `Evaluated`.
    """

    result: "SweepResult"
    score: str
    discard: Callable[[], None] = lambda: None
