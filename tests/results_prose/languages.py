"""Sentences about formal languages."""

from collections.abc import Iterator

from scripts.results_tables import runs_of
from tests.results_prose.told_last import repeated
from tests.results_prose.values import WORDS, Model, each, held, model, part, span

PRESETS = "formal_languages regular_languages"
SPARSE = "test_ignoring_98_percent"
TOLD, FOLLOWED = "test_asking_25_percent", "test_asking_0_percent"


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
    assert ours < recurrent and recurrent - ours == {"modular_arithmetic", "swapped_cups"}
    yield "it solves all that the implicit model does, and modular arithmetic and [swapped cups]"
    lost = ("bracketed_arithmetic", "test"), ("reverse_string", "test"), ("variable_trace", TOLD)
    for name, test in lost:
        scores = [s for kind in KINDS for s in kind(name).scores(test)]
        assert held(scores) == 0, name
    yield "Beyond the lengths trained on, by no model here: brackets, reversal, and"
    parity = negative("parity")
    learned = _learned(parity)
    assert held(parity.scores("test")) == 0
    yield f"learns [parity](#formal-languages) with {WORDS[len(learned)]} seeds of five, and has "
    yield f"{span(learned)} % of it in longer strings"


def cups() -> Iterator[str]:
    ours, layer, other = (kind("swapped_cups") for kind in (implicit, explicit, lstm))
    assert {len(one.runs) for one in (ours, layer, other)} == {5}
    yield f"it has {each(ours.scores(FOLLOWED))} % of the answers right"
    yield f"An explicit layer has {span(layer.scores(FOLLOWED))} %, as a guess has"
    assert max(layer.scores(FOLLOWED)) < 27  # what the most frequent answer has at most
    yield f"The LSTM {span(other.scores(FOLLOWED), 1)} %"
    yield f"{part(layer.flops, ours.flops)} of the FLOPs"
    yield f"{layer.parameters / ours.parameters:.1f} times the parameters".removeprefix("0")
    yield f"in {part(other.flops, ours.flops)} of the implicit model's FLOPs"


def told_cups() -> Iterator[str]:
    ours, layer = implicit("swapped_cups"), explicit("swapped_cups")
    test, learned = (
        [round(repeated("swapped_cups", split, swaps)) for swaps in (0, 1, 2, 3, 8)]
        for split in (TOLD, "validation")
    )
    yield f"right in {test[0]} % of these answers ({learned[0]} at the lengths trained on)"
    yield f"in {test[1]}, {test[2]} and {test[3]} % ({learned[1]}, {learned[2]} and {learned[3]})"
    right = f"{span(layer.scores(TOLD))} ({span(layer.scores('validation'))} at the lengths"
    yield f"the explicit layer has {right}"
    yield f"the implicit model has {span(ours.scores(TOLD), 1)} %, as who follows eight ({test[4]})"


def traces() -> Iterator[str]:
    ours, other = implicit("variable_trace"), lstm("variable_trace")
    guesses = [score for kind in KINDS for score in kind("variable_trace").scores(FOLLOWED)]
    assert len(guesses) == 20
    yield f"all guess ({span(guesses)} % with any model and seed)"
    yield f"({each(ours.scores('validation'))} % in validation)"
    yield f"({each(ours.scores(TOLD))} %)"
    yield f"The LSTM has {span(other.scores('validation'))} % in validation, and "
    yield f"and {span(other.scores(TOLD))} % on longer ones"
    told = [repeated("variable_trace", split) for split in ("validation", TOLD)]
    yield f"has {told[0]:.0f} % right in validation and {told[1]:.0f} on longer ones"
    assert [score > told[0] + 5 for score in ours.scores("validation")] == [1, 0, 0, 1, 0]
    better = [s for s in ours.scores(TOLD) + other.scores(TOLD) if s > told[1]]
    assert better == [max(ours.scores(TOLD))]


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
    yield f"but for the sparse ones ({span(explicit('flip_flop').scores(SPARSE), 1)} %)"


def arithmetic() -> Iterator[str]:
    ours = implicit("modular_arithmetic")
    yield f"{span(ours.scores('validation'), 1)} % in validation"
    yield f"On longer strings {span(ours.scores('test'))} % are right"


def stack() -> Iterator[str]:
    reversal = [kind("reverse_string") for kind in KINDS]
    yield f"({span([score for one in reversal for score in one.scores('test')], 1)} %"
    known = [lstm(name).scores("validation") for name in ("bracketed_arithmetic", "reverse_string")]
    yield f"at the lengths trained on: {' and '.join(span(scores) for scores in known)} %"


def undoing() -> Iterator[str]:
    ours, other = implicit("undo_flip_flop"), lstm("undo_flip_flop")
    yield f"keeps the sparse ones ({span(other.scores(SPARSE), 1)} % with 98 % ignored"
    yield f"({span(ours.scores(SPARSE), 1)} %)"


def eigenvalues() -> Iterator[str]:
    parity, flip_flop, cups = map(negative, ("parity", "flip_flop", "swapped_cups"))
    learned, sparse = _learned(parity), flip_flop.scores(SPARSE)
    assert [len(one.runs) for one in (parity, flip_flop, cups)] == [5, 5, 5]
    yield f"learn parity with {WORDS[len(learned)]} seeds of five**, and have {span(learned, 1)} %"
    yield f"the fifth learns nothing ({min(parity.scores('validation')):.0f} % in validation)"
    yield f"with {WORDS[held(sparse)]} seed of five ({each(sparse, 1)} %), and all of the others"
    assert min(flip_flop.scores("test_ignoring_10_percent")) == 100
    yield f"Of cups they have {span(cups.scores(FOLLOWED))} % where the end alone asks, as often as"
    assert max(cups.scores(FOLLOWED)) < 27
    traces = sorted(negative("variable_trace").scores("validation"))
    yield f"of traces two seeds learn a little ({each(traces[3:])} % in validation)"
    yield f"three nothing ({span(traces[:3])} %)"
    for language in ("cycle_navigation", "modular_arithmetic", "bracketed_arithmetic"):
        assert max(negative(language).scores("test")) < 30, language
    for language, score in (("even_pairs", 60), ("reverse_string", 55)):
        assert max(negative(language).scores("test")) < score, language
    for language in ("bracketed_arithmetic", "reverse_string", "undo_flip_flop"):
        yield f"{negative(language).scores('validation')[0]:.1f}"
    yield f"of the sparse ones {negative('undo_flip_flop').scores(SPARSE)[0]:.1f} and"
    yield f"against its validation ({negative('cycle_navigation').scores('validation')[0]:.1f}, and"


def _learned(one: Model) -> list[float]:
    """Return what the seeds that learn a language have in the test."""
    pairs = zip(one.scores("validation"), one.scores("test"), strict=True)
    return [test for validation, test in pairs if validation >= 99]


def readme() -> Iterator[str]:
    kept = [implicit(name).scores("test") for name in ("parity", "cycle_navigation")]
    ((count, seeds),) = {(held(scores), len(scores)) for scores in kept}
    yield f"({count} of {seeds} seeds each"
    followed = ("parity", "cycle_navigation", "modular_arithmetic")
    assert min(min(lstm(name).scores("test")) for name in followed) >= 99
    assert min(lstm("swapped_cups").scores(FOLLOWED)) >= 99
    yield f"an implicit layer has {span(implicit('swapped_cups').scores(FOLLOWED))} % of the"
    yield f"an explicit one {span(explicit('swapped_cups').scores(FOLLOWED))} %, as a guess has"
