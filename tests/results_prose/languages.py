"""Sentences about formal languages."""

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
    parity = negative("parity")
    learned = _learned(parity)
    assert held(parity.scores("test")) == 0
    yield f"learns [parity](#formal-languages) with {WORDS[len(learned)]} seeds of five, and has "
    yield f"{span(learned)} % of it in longer strings"


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
    parity, flip_flop, cups = map(negative, ("parity", "flip_flop", "swapped_cups"))
    learned, sparse = _learned(parity), flip_flop.scores(SPARSE)
    assert [len(one.runs) for one in (parity, flip_flop, cups)] == [5, 5, 5]
    yield f"learn parity with {WORDS[len(learned)]} seeds of five**, and have {span(learned, 1)} %"
    yield f"the fifth learns nothing ({min(parity.scores('validation')):.0f} % in validation)"
    yield f"with {WORDS[held(sparse)]} seed of five ({each(sparse, 1)} %), and all of the others"
    assert min(flip_flop.scores("test_ignoring_10_percent")) == 100
    yield f"Of cups they have {span(cups.scores('test'))} % in the test, no more than"
    assert max(cups.scores("test")) <= max(explicit("swapped_cups").scores("test"))
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
    yield f"{span(implicit('swapped_cups').scores('test'), 1)} % right with each of five seeds"
    yield f"an explicit layer has {span(explicit('swapped_cups').scores('test'))} %"
    kept = [implicit(name).scores("test") for name in ("parity", "cycle_navigation")]
    ((count, seeds),) = {(held(scores), len(scores)) for scores in kept}
    yield f"({count} of {seeds} seeds each"
    followed = ("parity", "cycle_navigation", "swapped_cups", "modular_arithmetic")
    assert min(min(lstm(name).scores("test")) for name in followed) >= 99
