"""What parameters leave out is the model's own, and what cannot be is refused by name."""

import typing

import pytest

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.names import TOKENWISE_SOLVERS
from implicit_models.equilibrium.phase import GRADIENTS, SOLVERS, Phase, SearchSettings
from implicit_models.equilibrium.solvers import BestSoFar, Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.parameters import SearchParameters
from implicit_models.language_models.phases import default_phase, search_modes, search_settings
from implicit_models.parameters import ParameterError
from implicit_models.training.parameters import FreeParameters

OWN = {"tolerance": 0.02, "max_self_iterations": 30, "window": 6, "patience": 4, "damping": 0.7}


class Suited(SearchParameters):
    suitable = {"window": 9, "patience": 12, "max_steps": 10}


def config(**changes) -> ImplicitConfig:
    return ImplicitMamba2Config(**OWN | changes)


def test_the_names_are_those_of_the_engine() -> None:
    hints = typing.get_type_hints(SearchParameters)["solver"], ImplicitConfig.__annotations__
    assert set(typing.get_args(typing.get_args(hints[0])[0])) == set(SOLVERS)
    assert set(typing.get_args(hints[1]["solver"])) == set(SOLVERS)
    gradients = FreeParameters.model_fields["gradient"].annotation
    assert set(typing.get_args(gradients)) == set(GRADIENTS)
    assert set(typing.get_args(hints[1]["gradient"])) == set(GRADIENTS)
    tokenwise = {name for name in SOLVERS if SOLVERS[name](1.0).is_tokenwise}
    assert tokenwise == set(TOKENWISE_SOLVERS)


def test_what_is_left_out_is_the_models_or_what_suits_the_section() -> None:
    own = SearchSettings(damping=0.7, tolerance=0.02, max_steps=30, window=6, patience=4)
    assert search_settings(SearchParameters(), config()) == own
    suited = SearchSettings(damping=0.7, tolerance=0.02, max_steps=10, window=9, patience=10)
    assert search_settings(Suited(), config()) == suited
    given = Suited(damping=0.5, tolerance=0.1, window=3, patience=2, max_steps=5, solver="picard")
    expected = SearchSettings(damping=0.5, tolerance=0.1, max_steps=5, window=3, patience=2)
    assert search_settings(given, config(solver="anderson")) == expected


@pytest.mark.parametrize("trained", [{"solver": "anderson"}, {"best_so_far": True}])
def test_a_model_whose_search_knows_no_window_is_searched_as_a_whole(trained) -> None:
    whole = SearchSettings(damping=0.7, tolerance=0.02, max_steps=512, **trained)
    for parameters in (SearchParameters(), Suited()):
        assert search_settings(parameters, config(**trained)) == whole
        assert search_modes(parameters, config(**trained)) == {"simultaneous": whole.phase()}
    with pytest.raises(ParameterError, match="and window is 4; .* solver picard without best_so_"):
        search_settings(SearchParameters(window=4), config(**trained))


def test_a_whole_search_takes_the_steps_that_are_given() -> None:
    found = search_settings(Suited(window="whole", max_steps=7), config())
    assert found == SearchSettings(damping=0.7, tolerance=0.02, max_steps=7)
    assert search_settings(Suited(window="whole"), config()).max_steps == 512


def test_the_modes_differ_in_their_window_alone() -> None:
    searched = Picard(0.7), ResidualBelow(0.1, 10)
    assert search_modes(Suited(patience=3), config(), tolerance=0.1) == {
        "window": Phase(*searched, None, Window(9, 3)),
        "simultaneous": Phase(*searched, None),
        "sequential": Phase(*searched, None, Window(1, 3)),
    }


def test_a_given_number_of_iterations_is_a_phase_too() -> None:
    found = search_settings(Suited(), config(), tolerance=None, max_steps=0, window=None).phase()
    assert found == Phase(Picard(0.7), FixedSteps(0), None)


TRAINED = {"training_tolerance": 0.1, "training_max_self_iterations": 8}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phantom_steps": 2}, Phase(Picard(0.7), ResidualBelow(0.1, 8), Phantom(2, 0.7))),
        (
            {"solver": "broyden", "best_so_far": True, "phantom_steps": 2},
            Phase(BestSoFar(Broyden(damping=0.7)), ResidualBelow(0.1, 8), Phantom(2, 0.7)),
        ),
        (
            {"gradient": "unrolled", "unrolled_steps": 3, "damping": 1.0},
            Phase(Picard(), ResidualBelow(0.1, 8), Unrolled(3)),
        ),
        (
            {"gradient": "implicit_function", "solver": "anderson"},
            Phase(
                Anderson(damping=0.7),
                ResidualBelow(0.1, 8),
                ImplicitFunction(Anderson(damping=0.7), ResidualBelow(0.1, 8)),
            ),
        ),
    ],
)
def test_a_model_goes_on_in_training_as_it_was_trained(changes, expected) -> None:
    found = default_phase(config(**TRAINED | changes), differentiable=True, num_tokens=5)
    assert found == expected


def test_a_token_and_a_text_are_searched_as_the_model_was_trained() -> None:
    anderson = config(solver="anderson")
    token = default_phase(anderson, differentiable=False, num_tokens=1)
    assert token == Phase(Anderson(damping=0.7), ResidualBelow(0.02, 30), None)
    text = default_phase(anderson, differentiable=False, num_tokens=5)
    assert text == Phase(Anderson(damping=0.7), ResidualBelow(0.02, 512), None)
