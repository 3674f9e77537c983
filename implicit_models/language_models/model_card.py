"""The card that is written beside a model's weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

CARD = "README.md"
_MARK = "<!-- Of implicit_models; without this line, saving leaves the file as it is. -->"
_EARLIER = "parameters, a tied head counted once."  # ends a line of cards without the mark
_SEARCH = (
    *("tolerance", "max_self_iterations", "window", "patience"),
    *("solver", "best_so_far", "damping", "start"),
)
_TRAINING = (
    "training_phase",
    "bounded_self_iterations",
    "bounded_phantom_steps",
    "training_tolerance",
    "training_max_self_iterations",
    "gradient",
    "phantom_steps",
    "unrolled_steps",
)
_NOT_SIZES = {
    *_SEARCH,
    *_TRAINING,
    "architectures",
    "dtype",
    "id2label",
    "implicit",
    "label2id",
    "provenance",
    "transformers_version",
    "use_cache",
}


def write_card(
    model: PreTrainedModel, directory: Path, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a model's card into its folder; a README.md that is not ours stays."""
    directory.mkdir(parents=True, exist_ok=True)
    card = directory / CARD
    if card.exists() and not _is_ours(card.read_text(encoding="utf-8", errors="replace")):
        return
    card.write_text(model_card(model, provenance), encoding="utf-8")


def model_card(model: PreTrainedModel, provenance: Mapping[str, Any] | None = None) -> str:
    """Return the card: sizes, how the fixed point is searched, and how the model was made.

    Parameters
    ----------
    provenance
        Tables by title, such as of its training and its MLflow run. None takes the
        configuration's.
    """
    config = model.config
    is_ours = type(model).__module__.startswith("implicit_models.")
    implicit = getattr(config, "implicit", False)
    kind = "implicit" if implicit else "explicit"
    front = ["---", "library_name: transformers", "pipeline_tag: text-generation"]
    front += ["tags:", f"- {kind}-language-model", f"- {config.model_type}", "---"]
    count = sum(parameter.numel() for parameter in model.parameters())
    text = [*front, "", _MARK, "", f"# {type(model).__name__}, {kind}", ""]
    text.append(f"{count:,} parameters; a tied head is counted once.")
    text += ["", "```python"]
    text += ["import implicit_models  # has the model's class"] if is_ours else []
    text += ["from transformers import AutoModelForCausalLM", ""]
    text += ['model = AutoModelForCausalLM.from_pretrained("FOLDER")', "```", ""]

    values = config.to_diff_dict()
    text += _table("Sizes", {key: values[key] for key in values if key not in _NOT_SIZES})
    if implicit:
        text += _table("Search of the fixed point", {key: getattr(config, key) for key in _SEARCH})
        text += _table("If it is trained further", {key: getattr(config, key) for key in _TRAINING})
    made = getattr(config, "provenance", None) if provenance is None else provenance
    for title, content in (made or {}).items():
        text += _table(title, content if isinstance(content, Mapping) else {title: content})
    return "\n".join(text)


def _is_ours(text: str) -> bool:
    return _MARK in text or any(line.endswith(_EARLIER) for line in text.splitlines())


def _table(title: str, values: Mapping[str, Any]) -> list[str]:
    rows = [f"| {key} | {value} |" for key, value in _flat(values)]
    return [f"## {title[:1].upper()}{title[1:]}", "", "| | |", "|---|---|", *rows, ""]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return everything that is set, nested keys with dots."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
