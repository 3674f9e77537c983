"""The colours and dashes of models: told apart, legible, and the same in all figures."""

import dataclasses
from collections import Counter

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from implicit_models.reporting import figures
from implicit_models.reporting.figures.style import COLOURS

# What protanopes and deuteranopes see of linear RGB: Machado, Oliveira and Fernandes 2009, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", table 1, severity 1.0.
VISIONS = {
    "normal": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
XYZ_OF_RGB = np.array(  # sRGB, white of D65
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear_rgb(colours):
    levels = np.array([to_rgb(colour) for colour in colours])
    return np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Return CIE 1976 L*a*b* of linear RGB."""
    shares = rgb @ XYZ_OF_RGB.T / XYZ_OF_RGB.sum(1)
    root = np.where(shares > (6 / 29) ** 3, np.cbrt(shares), shares / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = root.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_told_apart_the_first_four_best(vision):
    seen = lab(np.clip(linear_rgb(COLOURS) @ VISIONS[vision].T, 0, 1))
    distances = np.linalg.norm(seen[:, None] - seen, axis=-1) + 1e9 * np.eye(len(COLOURS))
    assert distances.min() > 20
    assert distances[:4, :4].min() > 45


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_colours_are_legible_on_either_ground(ground):
    with figures.theme(ground):
        paper = mpl.rcParams["figure.facecolor"]
    own, other = linear_rgb(COLOURS) @ XYZ_OF_RGB[1], linear_rgb([paper]) @ XYZ_OF_RGB[1]
    contrasts = (np.maximum(own, other) + 0.05) / (np.minimum(own, other) + 0.05)
    assert contrasts.min() >= 3


def test_seeds_share_the_colour_and_groups_do_not(runs):
    styles = list(figures.run_styles(runs).values())
    assert len({style.colour for style in styles[:3]}) == 1
    assert len({str(style.dash) for style in styles[:3]}) == 3
    assert len({style.colour for style in styles}) == 4


def test_five_seeds_have_a_dash_each(runs):
    first = runs[0]
    seeds = [
        dataclasses.replace(first, name=f"{first.name}_{n}", entry=first.entry.replace(seed=n))
        for n in range(5)
    ]
    styles = figures.run_styles(seeds).values()
    assert len({style.colour for style in styles}) == 1
    assert len({str(style.dash) for style in styles}) == 5


def test_a_run_keeps_its_colour_whatever_else_is_in_the_report(runs):
    everything = figures.run_styles(runs)
    for left_out in ("a5_mamba2_1_layer", "a5_mamba2_4_layers", "a5_lstm"):
        fewer = figures.run_styles([run for run in runs if run.name != left_out])
        models = [name for name in fewer if "_seed" not in name]
        kept = [name for name in models if fewer[name].colour == everything[name].colour]
        assert len(kept) >= len(models) - 1
        assert len({style.colour for style in fewer.values()}) == 3
    assert figures.run_styles([runs[-1], *runs[:-1]]) == everything


def named_anew(runs, names, dataset):
    """Return copies of a run, all of them other models."""
    lstm = runs[-1]
    return [
        dataclasses.replace(
            lstm,
            name=name,
            group=name,
            dataset=dataset,
        )
        for n, name in enumerate(names)
    ]


def test_more_models_than_colours_share_them_evenly_and_have_other_dashes(runs):
    styles = figures.run_styles(named_anew(runs, [f"run_{n}" for n in range(20)], "a5"))
    counts = Counter(style.colour for style in styles.values())
    assert len(counts) == 8 and set(counts.values()) <= {2, 3}
    assert len({(style.colour, str(style.dash)) for style in styles.values()}) == 20


@pytest.mark.parametrize("count", [4, 8])
def test_the_first_colours_come_first(runs, count):
    styles = figures.run_styles(named_anew(runs, [f"run_{n}" for n in range(count)], "a5"))
    assert {style.colour for style in styles.values()} == set(COLOURS[:count])


def test_a_model_has_one_colour_on_all_data_sets(runs):
    models = ["implicit_mamba2", "mamba2", "lstm", "mamba2_neg_eigval", "llama"]
    first, second = (
        figures.run_styles(named_anew(runs, [f"{data}_{model}" for model in models], data))
        for data in ("parity", "cycle_navigation")
    )
    assert list(first.values()) == list(second.values())
    both = [
        run
        for data in ("a5", "s5")
        for run in named_anew(runs, [f"{data}_{model}" for model in models[:4]], data)
    ]
    assert len({style.colour for style in figures.run_styles(both).values()}) == 8
