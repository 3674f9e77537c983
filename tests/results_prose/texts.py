"""Sentences about text and stories."""

import statistics
from collections.abc import Iterator
from itertools import chain

from scripts.measured import of_preset
from tests.results_prose.values import WORDS, apart, each, mean, model, span, welch, wins

ONE, TWO = "Mamba2, 1 layer", "Mamba2, 2 layers"
SAME = ", training FLOPs of the implicit one"
_COMPARED = ("i1", "e1", "same")
_STORIES = "catbabi_seeds catbabi"


def in_short() -> Iterator[str]:
    labels = (f"explicit {TWO}{SAME}", f"implicit {TWO}", f"explicit {TWO}")
    perplexities = [model("text_small", label).perplexities()[0] for label in labels]
    assert perplexities == sorted(perplexities)
    for preset in ("catbabi_files", _STORIES):
        implicit, words, flops = (statistics.mean(catbabi(preset)[k].scores()) for k in _COMPARED)
        assert words < implicit < flops
    found = {
        label: model("text_miniature", f"{kind} {family}, 4 layers{more}").perplexities()
        for family, search in (("Mamba2", "24+4"), ("Llama", "32+4"))
        for label, kind, more in (
            (f"{family} implicit", "implicit", f", 80 % bounded, free ({search})"),
            (f"{family} words", "explicit", ""),
            (f"{family} flops", "explicit", SAME),
        )
    }
    for family in ("Mamba2", "Llama"):
        assert max(found[f"{family} flops"]) < min(found[f"{family} implicit"])
    assert max(found["Mamba2 words"]) < min(found["Mamba2 implicit"])
    yield "after as many words implicit models are ahead in some cases and behind in others"
    yield "after as many FLOPs explicit ones are ahead"


def bounded_share() -> Iterator[str]:
    shares = [
        model("bounded_share", f"implicit {ONE}, {share} % bounded, free (16+4)")
        for share in (70, 80, 90)
    ]
    means = [statistics.mean(each.scores()) for each in shares]
    assert round(2 * apart(means)) == 1
    yield "half a point of the answers between two seeds each is no result"
    cost = shares[0].flops / shares[-1].flops
    yield f"With 70 % bounded a training costs {cost:.1f} times the FLOPs of one with 90 %"


def small() -> Iterator[str]:
    ours, other = model("text_small", f"implicit {TWO}"), model("text_small", f"explicit {TWO}")
    ahead = 1 - ours.perplexities()[0] / other.perplexities()[0]
    yield f"is {100 * ahead:.0f} % of the perplexity ahead"
    yield f"at {ours.flops / other.flops:.1f} times its FLOPs"


def sizes() -> Iterator[str]:
    found = {run["name"]: run for run in of_preset("text_sizes")}
    ahead: dict[str, list[float]] = {}
    more: dict[str, list[float]] = {}
    flops: dict[str, list[float]] = {}
    for family in ("llama", "mamba2"):
        pairs = [
            (found[f"{family}_{width}_implicit"], found[f"{family}_{width}"])
            for width in (48, 96, 192)
        ]
        ahead[family] = [100 * (1 - a["scores"] / b["scores"]) for a, b in pairs]
        more[family] = [100 * (a["num_parameters"] / b["num_parameters"] - 1) for a, b in pairs]
        flops[family] = [a["training_flops"] / b["training_flops"] for a, b in pairs]
    first, second, last = (f"{percent:.0f}" for percent in ahead["llama"])
    yield f"by {first} and {second} % of the perplexity; at the largest by {last} %"
    assert all(round(percent / 10) == 1 for percent in more["llama"])
    yield f"a tenth more parameters, and {span(flops['llama'], 1)} times the training FLOPs"
    assert {round(percent) for percent in ahead["mamba2"]} == {-1}
    yield "is not**: 1 % behind at each size"
    yield f"with {span(more['mamba2'])} % more parameters"
    yield f"{span(flops['mamba2'], 1)} times the training FLOPs"


def miniature() -> Iterator[str]:
    def found(family: str, search: str = ""):
        kind = f"implicit {family}, 4 layers, 80 % bounded, free ({search})"
        label = kind if search else f"explicit {family}, 4 layers"
        return model("text_miniature", label).perplexities()

    sizes = [run["num_parameters"] / 1e6 for run in of_preset("text_miniature")]
    yield f"{span(sizes, 1)} million parameters"
    behind = [
        ours - other
        for search in ("24+4", "4+1")
        for ours, other in zip(found("Mamba2", search), found("Mamba2"), strict=True)
    ]
    yield f"by {span(behind)} points of perplexity"
    gains = [
        bounded - free
        for bounded, free in zip(found("Mamba2", "4+1"), found("Mamba2", "24+4"), strict=True)
    ]
    assert min(gains) > 0 and max(gains) < 0.5
    yield "gains less than half a point on (4+1)"
    losses = [
        free - bounded
        for bounded, free in zip(found("Llama", "4+1"), found("Llama", "32+4"), strict=True)
    ]
    assert sorted(round(loss) for loss in losses) == [1, 2]
    yield "which is a point or two worse for it"


def catbabi(preset: str) -> dict[str, object]:
    kinds = {"i": "implicit", "e": "explicit"}
    found = {
        f"{letter}{layers}": model(preset, f"{kind} {called}")
        for letter, kind in kinds.items()
        for layers, called in ((1, ONE), (2, TWO))
    }
    return found | {
        "same": model(preset, f"explicit {ONE}{SAME}"),
        "lstm": model(preset, "torch's LSTM, 1 layer"),
    }


def babi() -> Iterator[str]:
    m = catbabi("catbabi_files")
    one, layer, same, lstm = m["i1"], m["e1"], m["same"], m["lstm"]
    scores = one.scores()
    yield f"on {wins(one, layer)} of 19 tasks** ({mean(scores)} against {mean(layer.scores())} %"
    yield f"than two explicit ones ({mean(m['e2'].scores())} %)"
    yield f"for {one.flops / layer.flops:.1f} and {one.flops / m['e2'].flops:.1f} times their FLOPs"
    assert sum(score < min(layer.scores()) for score in scores) == 1
    yield f"Its seeds lie {apart(scores):.0f} points apart, one of them below every seed"
    yield f"(Welch's t of the seeds: {welch(scores, layer.scores())})"
    yield f"{mean(same.scores())} against {mean(scores)} %, higher on {wins(same, one)} of 19 tasks"
    assert 1 < apart(same.scores()) < 2
    yield "its seeds lie within 2 points"
    yield f"(Welch's t: {welch(scores, same.scores())})"
    yield f"{span(one.task(5))} % with the implicit seeds, {span(same.task(5))} % with the explicit"
    yield f"({each(layer.task(5))} %)"
    assert max(one.task(5)) < 80
    assert sum(share > 80 for share in chain(m["i2"].task(5), m["e2"].task(5))) == 1
    yield "two layers of either kind in one of six"
    two = m["i2"]
    yield f"({mean(two.scores())} %), at {two.flops / one.flops:.1f} times its FLOPs"
    yield f"The LSTM has {mean(lstm.scores())} %"
    yield f"for {lstm.flops / layer.flops:.1f} times its FLOPs"
    assert apart(lstm.scores()) < 1
    yield f"its seeds lie within a point, and it has {mean(lstm.task(5), 0)} % of task 5"


def alike() -> Iterator[str]:
    real, ours = catbabi("catbabi_files"), catbabi(_STORIES)
    differences, correlations = [], []
    for name, found in real.items():
        files = found.tasks()
        generated = {task: ours[name].tasks()[task] for task in files}
        means = [statistics.mean(tasks.values()) for tasks in (files, generated)]
        differences.append(apart(means))
        correlations.append(statistics.correlation(*(list(t.values()) for t in (files, generated))))
    yield f"within {max(differences):.1f} points over the {len(files)} tasks of both"
    yield f"r = {span(correlations, 3)}".replace("0.", ".")


def generated() -> Iterator[str]:
    m = catbabi(_STORIES)
    one, two, layer, layers, same = (m[name] for name in ("i1", "i2", "e1", "e2", "same"))
    yield f"one explicit layer ({span(layer.task(5))} %) also on as many FLOPs"
    yield f"({mean(same.task(5), 0)} %), by one implicit layer in {each(one.task(5))} %"
    scores = one.scores()
    against = f"{mean(scores)} against {mean(layer.scores())} %"
    yield f"one explicit layer on {wins(one, layer)} of 20 tasks ({against}"
    yield f"than two explicit ones on {wins(one, layers)}"
    close = [task for task, share in one.tasks().items() if 0 < share - same.tasks()[task] < 0.1]
    yield (
        f"on as many FLOPs on {wins(one, same)} of 20 ({WORDS[len(close)]} of them by less than"
        f" a tenth), {statistics.mean(same.scores()) - statistics.mean(scores):.1f} points behind"
    )
    yield f"Its seeds lie {apart(scores):.0f} points apart"
    yield f"the seeds: {welch(scores, layer.scores())} and {welch(scores, same.scores())}"
    yield (
        f"on {wins(two, layers)} of 20 tasks, {mean(two.scores())} against "
        f"{mean(layers.scores())} %, within noise as well ({welch(two.scores(), layers.scores())})"
    )
