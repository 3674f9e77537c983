"""Sentences about formal languages."""

import statistics
from collections.abc import Iterator

from scripts.results_tables import runs_of
from tests.results_prose.values import WORDS, Model, each, held, model, part, span

PRESETS = "formal_languages regular_languages_seeds"
SPARSE = "test_ignoring_98_percent"


def implicit(language: str) -> Model:
    return _model("implicit Mamba2, 1 layer", language)


def explicit(language: str) -> Model:
    return _model("explicit Mamba2, 1 layer", language)


def negative(language: str) -> Model:
    return _model("explicit Mamba2, 1 layer, eigenvalues in [-1, 1]", language)


def lstm(language: str) -> Model:
    return _model("torch's LSTM, 1 layer", language)


KINDS = (implicit, explicit, negative, lstm)


def _model(label: str, language: str) -> Model:
    return model(PRESETS, label, language)


def _is_solved(one: Model) -> bool:
    """Return whether more than half of the seeds have 99 % or more, in every test."""
    tests = (each for each in one.runs[0]["scores"] if each.startswith("test"))
    return all(held(one.scores(test)) > len(one.runs) / 2 for test in tests)


def in_short() -> Iterator[str]:
    names = {run["dataset"] for run in runs_of(PRESETS.split())}
    ours, recurrent = (
        {name for name in names if _is_solved(kind(name))} for kind in (implicit, lstm)
    )
    assert ours < recurrent and recurrent - ours == {"modular_arithmetic"}
    yield "it solves all that the implicit model does, and modular arithmetic as well"
    for name in ("bracketed_arithmetic", "reverse_string", "variable_trace"):
        scores = [s for kind in KINDS for s in kind(name).scores("test")]
        assert held(scores) == 0, name
    yield "Beyond the lengths trained on, by no model here: brackets, reversal, and"
    yield "keeps [parity](#formal-languages), with one seed of five"


def cups() -> Iterator[str]:
    ours, layer = implicit("swapped_cups"), explicit("swapped_cups")
    yield f"{span(ours.scores('test'), 1)} % of its answers are right"
    yield f"({WORDS[held(ours.scores('test'))]} have more than 99 %)"
    yield f"{part(layer.flops, ours.flops)} of the FLOPs"
    yield f"{layer.parameters / ours.parameters:.1f} times the parameters".removeprefix("0")
    yield f"has {span(layer.scores('test'))} % (five seeds; {span(layer.scores('validation'))} at"
    assert min(lstm("swapped_cups").scores("test")) == 100
    yield f"in {part(lstm('swapped_cups').flops, ours.flops)} of the implicit model's FLOPs"


def traces() -> Iterator[str]:
    ours, other = implicit("variable_trace"), lstm("variable_trace")
    yield f"({each(ours.scores('validation'))} % in validation)"
    yield f"({each(ours.scores('test'))} %)"
    yield f"The LSTM has {span(other.scores('validation'))} % in validation, and "
    yield f"and {span(other.scores('test'))} % on longer ones"


def regular() -> Iterator[str]:
    scores = [
        score
        for language in ("parity", "even_pairs", "cycle_navigation")
        for score in implicit(language).scores("test")
    ]
    assert held(scores) == len(scores) == 15 and sum(score < 100 for score in scores) == 1
    yield f"one of the fifteen makes an error in the test ({min(scores):.1f} % right)"
    layer = [explicit(name) for name in ("parity", "cycle_navigation", "modular_arithmetic")]
    first, second, last = (span(one.scores("validation")) for one in layer)
    right = f"{first}, {second} and {last} %"
    yield f"On parity, circle and arithmetic it has {right} at the lengths trained on"


def flip_flops() -> Iterator[str]:
    ours, other = implicit("flip_flop"), lstm("flip_flop")
    validation, sparse = ours.scores("validation"), ours.scores(SPARSE)
    yield f"by {WORDS[held(sparse)]} seeds of five"
    lost = [test for learned, test in zip(validation, sparse, strict=True) if learned >= 99 > test]
    assert len(lost) == 1
    yield f"One loses the sparse ones ({lost[0]:.1f} %)"
    yield f"one has not learned it ({min(validation):.0f} % in validation)"
    yield f"with {WORDS[held(other.scores(SPARSE))]} of five"
    yield f"(the fifth has {min(other.scores(SPARSE)):.1f} % of the sparse ones)"
    yield f"but for the sparse ones ({explicit('flip_flop').scores(SPARSE)[0]:.0f} %)"


def arithmetic() -> Iterator[str]:
    ours = implicit("modular_arithmetic")
    yield f"{span(ours.scores('validation'), 1)} % in validation"
    yield f"On longer strings {span(ours.scores('test'))} % are right"


def stack() -> Iterator[str]:
    reversal = [kind("reverse_string") for kind in KINDS]
    yield f"({span([score for one in reversal for score in one.scores('test')], 1)} %"
    known = [lstm(name).scores("validation") for name in ("bracketed_arithmetic", "reverse_string")]
    yield f"at the lengths trained on: {each([score for (score,) in known])} %"


def undoing() -> Iterator[str]:
    ours, other = implicit("undo_flip_flop"), lstm("undo_flip_flop")
    yield f"keeps the sparse ones ({span(other.scores(SPARSE), 1)} % with 98 % ignored"
    yield f"({span(ours.scores(SPARSE), 1)} %)"


def eigenvalues() -> Iterator[str]:
    cups, undo = "swapped_cups", "undo_flip_flop"
    *lost, kept = sorted(negative("parity").scores("validation"))
    assert [held(negative("parity").scores(name)) for name in ("validation", "test")] == [1, 1]
    assert kept == 100 and len(lost) == 4
    yield f"with one seed of five** ({max(negative('parity').scores('test')):.1f} % in the test)"
    yield f"learn nothing of it ({span(lost)} % in validation)"
    worse = [
        statistics.median(explicit(cups).scores(name)) - negative(cups).scores(name)[0]
        for name in ("validation", "test")
    ]
    better = negative(undo).scores(SPARSE)[0] - explicit(undo).scores(SPARSE)[0]
    yield f"cups are {span(worse)} points worse than without"
    yield f"undoing with 98 % ignored {better:.0f} better"


def readme() -> Iterator[str]:
    yield f"{span(implicit('swapped_cups').scores('test'), 1)} % right with each of five seeds"
    yield f"an explicit layer has {span(explicit('swapped_cups').scores('test'))} %"
    kept = [implicit(name).scores("test") for name in ("parity", "cycle_navigation")]
    ((count, seeds),) = {(held(scores), len(scores)) for scores in kept}
    yield f"({count} of {seeds} seeds each"
    followed = ("parity", "cycle_navigation", "swapped_cups", "modular_arithmetic")
    assert min(min(lstm(name).scores("test")) for name in followed) >= 99
