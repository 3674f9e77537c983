import copy
import functools

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MambaConfig, MambaForCausalLM

from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.equilibrium.window import Window
from implicit_models.evaluation import scoring
from implicit_models.evaluation.contraction import token_radii
from implicit_models.evaluation.residual_trace import trace_residual
from implicit_models.evaluation.scoring import (
    IGNORED,
    TextError,
    can_share_prefixes,
    expand,
    prefix,
    score,
)
from implicit_models.families.reader import reader_of
from implicit_models.language_models.source_names import SourceError
from tests.evaluation.readable import (
    KINDS,
    TIGHT,
    brute_force,
    gpt2,
    llama,
    make,
    phase_of,
    random_tokens,
    rounding,
)
from tests.language_models.models import VOCABULARY

LENGTH = 10
TOKENS = random_tokens(3, LENGTH + 1)
INPUTS, LABELS = TOKENS[:, :-1], TOKENS[:, 1:]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return make(kind)


@pytest.fixture(scope="module")
def close(kind):
    return functools.partial(np.testing.assert_allclose, rtol=rounding(kind))


@pytest.fixture(scope="module")
def expected(model):
    return np.array(
        [[brute_force(model, row[: t + 1], row[t + 1]) for t in range(LENGTH)] for row in TOKENS]
    )


def test_scores_are_those_of_the_models_own_logits(model, expected, close):
    found = score(model, INPUTS, LABELS, phase=phase_of(model))
    close(found.nll, expected)


def test_the_most_likely_label_is_greedy(model):
    arguments = {} if phase_of(model) is None else {"phase": phase_of(model)}
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(INPUTS), use_cache=False, **arguments).logits
    best = logits.argmax(-1).numpy()
    half = np.where(np.arange(LENGTH) % 2, best, (best + 1) % VOCABULARY)
    found = score(model, INPUTS, half, phase=phase_of(model))
    assert (found.is_greedy == (np.arange(LENGTH) % 2 == 1)).all()
    assert (found.most_likely == best).all()


@pytest.mark.parametrize("piece_length", [1, 4, 9, 100])
def test_pieces_give_what_the_whole_gives(model, expected, close, piece_length):
    found = score(model, INPUTS, LABELS, phase=phase_of(model), piece_length=piece_length)
    close(found.nll, expected)


@pytest.mark.parametrize("piece_length", [None, 4])
def test_padding_changes_nothing_and_has_no_score(model, expected, close, piece_length):
    lengths = np.array([LENGTH, 3, 6])
    inside = np.arange(LENGTH) < lengths[:, None]
    padded = np.where(inside, INPUTS, 0)
    found = score(
        model, padded, LABELS, phase=phase_of(model), lengths=lengths, piece_length=piece_length
    )
    close(found.nll[inside], expected[inside])
    assert np.isnan(found.nll[~inside]).all()
    assert not found.is_greedy[~inside].any()
    assert (found.most_likely[~inside] == IGNORED).all()
    if found.self_iterations is not None:
        assert (found.self_iterations[inside] > 0).all()
        assert not found.self_iterations[~inside].any()
        assert found.search.num_tokens.tolist() == lengths.tolist()
        assert len(found.search.converged) == lengths.sum()


def test_an_ignored_label_has_no_score_and_no_logits(model, expected, close):
    wanted = np.zeros(LABELS.shape, dtype=bool)
    wanted[0, 3] = wanted[2, 9] = True
    found = score(model, INPUTS, np.where(wanted, LABELS, IGNORED), phase=phase_of(model))
    close(found.nll[wanted], expected[wanted])
    assert np.isnan(found.nll[~wanted]).all()


def test_logits_are_made_a_few_at_a_time(model, expected, close, monkeypatch):
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 4 * VOCABULARY)
    assert not reader_of(model).makes_all_logits
    sizes, head = [], model.get_output_embeddings()
    hook = head and head.register_forward_hook(lambda _, states, __: sizes.append(states[0]))
    found = score(model, INPUTS, LABELS, phase=phase_of(model))
    if hook is not None:  # an LSTM's head is its embedding
        hook.remove()
        numbers = [states.numel() // states.shape[-1] for states in sizes]
        assert sum(numbers) == LABELS.size and max(numbers) == 4
    close(found.nll, expected)


def test_no_more_than_a_piece_is_read_at_once(model):
    reader, seen = type(reader_of(model)), []
    read = reader.read

    def spying(self, tokens, **arguments):
        seen.append(tokens.shape)
        return read(self, tokens, **arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "read", spying)
        score(model, INPUTS, LABELS, phase=phase_of(model), piece_length=4)
    assert seen == [(3, 4), (3, 4), (3, 2)]


@pytest.mark.parametrize("piece_length", [None, 2])
def test_several_texts_go_on_from_one_prefix(model, expected, close, piece_length):
    shared = prefix(model, INPUTS[:, :5], phase_of(model), piece_length=piece_length)
    assert can_share_prefixes(model)
    rows = np.array([2, 0, 0, 1])
    following = INPUTS[rows, 5:].copy()
    following[1, 3:] = 0  # another continuation of the same text
    for _ in range(2):  # going on does not use a prefix up
        found = score(
            model,
            following,
            LABELS[rows, 5:],
            phase=phase_of(model),
            cache=expand(shared, rows),
            piece_length=piece_length,
        )
        close(found.nll[[0, 2, 3]], expected[[2, 0, 1], 5:])
        close(found.nll[1, :3], expected[0, 5:8])


def test_search_is_summed_over_pieces():
    model = make("implicit mamba2")
    whole = score(model, INPUTS, LABELS, phase=TIGHT)
    assert whole.search.num_tokens.tolist() == [LENGTH] * 3
    assert (whole.search.token_evaluations >= whole.self_iterations.sum(1)).all()
    assert whole.search.converged.all() and len(whole.search.residual) == 3 * LENGTH
    pieces = score(model, INPUTS, LABELS, phase=TIGHT, piece_length=4)
    singly = [
        score(
            model,
            INPUTS[:, a:b],
            LABELS[:, a:b],
            phase=TIGHT,
            cache=None if a == 0 else prefix(model, INPUTS[:, :a], TIGHT, piece_length=4),
        ).search
        for a, b in ((0, 4), (4, 8), (8, 10))
    ]
    # The first piece goes on to another, and so waits for the patience at its end as well.
    later = sum(each.self_iterations for each in singly[1:])
    assert ((pieces.search.self_iterations - later) >= singly[0].self_iterations).all()
    assert pieces.search.num_tokens.tolist() == [LENGTH] * 3
    assert len(pieces.search.converged) == 3 * LENGTH


@pytest.mark.parametrize("name", ["implicit mamba2", "implicit llama"])
def test_a_model_in_bfloat16_is_read(name):
    exact, model = make(name).float(), make(name).bfloat16()
    phase = search_phase(0.05, 30, damping=0.8, window=Window(4, 1))
    found, near = (score(each, INPUTS, LABELS, phase=phase) for each in (model, exact))
    np.testing.assert_allclose(found.nll, near.nll, rtol=0.1, atol=0.1)
    assert found.search.residual.dtype == np.float64 and found.search.converged.mean() > 0.5
    radii = token_radii(model, INPUTS, phase=phase, batch_size=2)
    assert radii.dtype == np.float64 and np.isfinite(radii).all()
    trace = trace_residual(model, INPUTS[0], phase)
    assert trace.dtype == np.float32 and trace.shape[1] == LENGTH


def test_fixed_self_iterations_are_counted():
    model = make("implicit llama")
    phase = Phase(Picard(), FixedSteps(3), None)
    found = score(model, INPUTS, LABELS, phase=phase)
    assert (found.self_iterations == 4).all()
    assert found.search.token_evaluations.tolist() == [4 * LENGTH] * 3
    assert found.search.evaluations_per_token.tolist() == [4.0] * 3
    assert not found.search.converged.any()


def _gemma(cap):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = Gemma2Config(
        vocab_size=VOCABULARY, final_logit_softcapping=cap, sliding_window=4, **sizes, **heads
    )
    torch.manual_seed(0)
    return Gemma2ForCausalLM(config).double().eval()


@pytest.mark.parametrize(("cap", "all_logits"), [(0.5, True), (30.0, True), (None, False)])
def test_a_head_with_something_after_it_is_not_taken_apart(cap, all_logits, monkeypatch):
    model = _gemma(cap)
    assert reader_of(model).makes_all_logits is all_logits
    expected = [brute_force(model, TOKENS[0, : t + 1], TOKENS[0, t + 1]) for t in range(LENGTH)]
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 2 * VOCABULARY)  # reads it in smaller pieces
    found = score(model, INPUTS[:1], LABELS[:1], phase=None)
    np.testing.assert_allclose(found.nll[0], expected, rtol=1e-7)


def mamba(scale: float):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "state_size": 8, "num_hidden_layers": 2}
    return MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, initializer_range=scale, **sizes))


def test_a_cache_that_loses_a_little_is_not_trusted():
    assert not reader_of(mamba(0.15).eval()).remembers


def test_a_model_whose_weights_have_changed_is_tried_out_again():
    model = mamba(1e-4).eval()
    assert reader_of(model).remembers
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(20):
        model(torch.arange(8)[None]).logits.logsumexp(-1).sum().backward()
        optimizer.step()
    assert not reader_of(copy.deepcopy(model)).remembers
    assert not reader_of(model).remembers


def test_a_model_that_forgets_is_read_whole(monkeypatch):
    class Forgetful(type(llama())):
        def forward(self, input_ids, cache=None, **arguments):
            return super().forward(input_ids, **arguments)

    model = Forgetful(llama().config).double().eval()
    assert not can_share_prefixes(model)
    expected = [brute_force(model, TOKENS[0, : t + 1], TOKENS[0, t + 1]) for t in range(LENGTH)]
    found = score(model, INPUTS[:1], LABELS[:1], phase=None, piece_length=4)
    np.testing.assert_allclose(found.nll[0], expected, rtol=1e-8)
    with pytest.raises(TextError, match="remembers no prefix"):
        prefix(model, INPUTS, None)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
@pytest.mark.parametrize("kind", ["implicit mamba2", "transformers llama", "lstm"])
def test_another_vocabulary_is_named(kind, token):
    model, wrong = make(kind), TOKENS.copy()
    wrong[1, 4] = token
    message = rf"the token {token}, and the model knows those from 0 to {VOCABULARY - 1}"
    with pytest.raises(TextError, match=message):
        score(model, wrong[:, :-1], LABELS, phase=phase_of(model))
    with pytest.raises(TextError, match=message):
        score(model, INPUTS, wrong[:, 1:], phase=phase_of(model))


def test_what_cannot_be_read_says_so():
    model = gpt2(n_positions=6).eval()
    with pytest.raises(SourceError, match="of 6 positions cannot read 10 tokens"):
        score(model, INPUTS, LABELS, phase=None)
    with pytest.raises(SourceError, match="of 6 positions cannot read 8 tokens"):
        score(model, INPUTS, LABELS, phase=None, piece_length=4)
    with pytest.raises(TextError, match="no token"):
        score(model, INPUTS[:, :0], LABELS[:, :0], phase=None)
    with pytest.raises(ValueError, match="seeks no fixed point"):
        score(model, INPUTS, LABELS, phase=TIGHT)
    with pytest.raises(TextError, match=r"of one length; found lengths \[3, 6, 8\]"):
        prefix(model, INPUTS[:, :8], None, lengths=np.array([8, 3, 6]))
    shared = prefix(model, INPUTS[:, :2], None)
    with pytest.raises(TextError, match="of 3 texts, and there are 1: expand it"):
        score(model, INPUTS[:1], LABELS[:1], phase=None, cache=shared)


@pytest.mark.parametrize("kind", ["implicit mamba2", "implicit llama", "explicit mamba2"])
def test_our_prefixes_may_be_of_unequal_lengths(kind):
    model, lengths = make(kind), np.array([5, 2, 4])
    phase = phase_of(model)
    shared = prefix(model, INPUTS[:, :5], phase, lengths=lengths)
    rows = np.array([0, 1, 2])
    following = np.stack([INPUTS[row, n : n + 4] for row, n in enumerate(lengths)])
    labels = np.stack([LABELS[row, n : n + 4] for row, n in enumerate(lengths)])
    found = score(model, following, labels, phase=phase, cache=expand(shared, rows))
    whole = score(model, INPUTS, LABELS, phase=phase).nll
    expected = np.stack([whole[row, n : n + 4] for row, n in enumerate(lengths)])
    np.testing.assert_allclose(found.nll, expected, rtol=1e-7)
