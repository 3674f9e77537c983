"""`generate`, for all four kinds of model alike."""

import copy
import pickle
import string
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import (
    DynamicCache,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    TextStreamer,
    pipeline,
)
from transformers.generation import BaseStreamer

from implicit_models.equilibrium.phase import bounded_phase
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.modelling import ImplicitForCausalLM
from tests.language_models.kinds import (
    EXPLICIT,
    IMPLICIT,
    KINDS,
    TIGHT,
    VOCABULARY,
    mask_of,
    model_of,
    tokens,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
NEW = 4
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW}


def tight_model(kind: str) -> ImplicitForCausalLM:
    """One with which searches that go different ways agree to 1e-9."""
    return model_of(kind, tolerance=TIGHT)


@torch.no_grad()
def decode_by_full_forward(model: ImplicitForCausalLM, prompt: Tensor, number: int) -> Tensor:
    """Greedy decoding without cache and without `generate`; the best is best by far."""
    text = prompt
    for _ in range(number):
        best = model(text, use_cache=False).logits[:, -1].topk(2)
        assert (best.values[:, 0] - best.values[:, 1] > 1e-6).all()
        text = torch.cat((text, best.indices[:, :1]), dim=1)
    return text


@every_kind
@torch.no_grad()
def test_greedy_is_the_argmax_of_the_full_forward(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(2, 6)
    output = model.generate(
        prompt,
        return_dict_in_generate=True,
        output_logits=True,
        output_hidden_states=True,
        **GREEDY,
    )
    assert torch.equal(output.sequences, decode_by_full_forward(model, prompt, NEW))
    full = model(output.sequences).logits[:, 5:-1]
    logits = torch.stack(output.logits, 1)  # which transformers makes float32
    torch.testing.assert_close(logits, full.float(), rtol=1e-6, atol=1e-6)
    assert len(output.hidden_states) == NEW and len(output.hidden_states[0]) == 3
    assert output.cache.get_seq_length() == 6 + NEW - 1
    assert torch.equal(model.generate(prompt, use_cache=False, **GREEDY), output.sequences)
    embeds = model.get_input_embeddings()(prompt)
    assert torch.equal(model.generate(inputs_embeds=embeds, **GREEDY), output.sequences[:, 6:])
    chunked = model.generate(prompt, prefill_chunk_size=4, **GREEDY)
    assert torch.equal(chunked, output.sequences)


@every_kind
@torch.no_grad()
def test_unequal_prompts_give_what_each_gives_alone(kind: str) -> None:
    model, length = tight_model(kind), 5
    spans = [(2, 5), (0, 5), (5, 5), (4, 5)]  # one is padding alone
    mask = mask_of(spans, length)
    prompts = tokens(4, length) * mask
    together = model.generate(prompts, attention_mask=mask, **GREEDY)
    assert together.shape == (4, length + NEW) and int(together.max()) < VOCABULARY
    slow = model.generate(prompts, attention_mask=mask, use_cache=False, **GREEDY)
    for row, (first, last) in enumerate(spans):
        if first < last:
            alone = model.generate(prompts[row : row + 1, first:], **GREEDY)
            assert torch.equal(together[row, first:], alone[0])
            assert torch.equal(slow[row, first:], alone[0])


@every_kind
@torch.no_grad()
def test_a_beam_search_finds_what_exhaustive_search_finds(kind: str) -> None:
    """With as many beams as there are prefixes nothing is pruned."""
    model, prompt = tight_model(kind), tokens(1, 4)
    first = model(prompt).logits[0, -1].log_softmax(-1)
    words = torch.arange(VOCABULARY)[:, None]
    texts = torch.cat((prompt.expand(VOCABULARY, -1), words), dim=1)
    second = model(texts).logits[:, -1].log_softmax(-1)
    scores, order = (first[:, None] + second).flatten().topk(3)
    found = model.generate(
        prompt,
        num_beams=VOCABULARY,
        num_return_sequences=3,
        max_new_tokens=2,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    expected = torch.stack((order // VOCABULARY, order % VOCABULARY), dim=1)
    assert torch.equal(found.sequences[:, 4:], expected)
    torch.testing.assert_close(found.sequences_scores * 2, scores.float(), rtol=1e-6, atol=1e-6)


@every_kind
@torch.no_grad()
def test_beams_of_a_padded_batch_are_those_of_each_alone(kind: str) -> None:
    model, length = tight_model(kind), 6
    mask = mask_of([(3, 6), (0, 6)], length)
    prompts = tokens(2, length) * mask
    settings = GREEDY | {"num_beams": 3, "num_return_sequences": 2}
    together = model.generate(prompts, attention_mask=mask, **settings)
    slow = model.generate(prompts, attention_mask=mask, use_cache=False, **settings)
    assert torch.equal(together, slow)
    for row, first in enumerate((3, 0)):
        alone = model.generate(prompts[row : row + 1, first:], **settings)
        assert torch.equal(together[2 * row : 2 * row + 2, first:], alone)


@every_kind
def test_sampling_follows_the_seed(kind: str) -> None:
    model, prompt = model_of(kind), tokens(1, 4)
    settings = {"do_sample": True, "pad_token_id": 0, "max_new_tokens": 6, "top_k": 0}
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(model.generate(prompt, num_return_sequences=4, **settings))
    assert drawn[0].shape == (4, 10)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert len({tuple(row.tolist()) for row in drawn[0]}) > 1
    torch.manual_seed(0)
    assert torch.equal(model.generate(prompt.expand(4, -1), **settings), drawn[0])


class AfterThree(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 4 + 3)


class Collecting(BaseStreamer):
    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.has_ended = False

    def put(self, value: Tensor) -> None:
        self.pieces.append(value.flatten().tolist())

    def end(self) -> None:
        self.has_ended = True


@every_kind
def test_stopping_and_streaming(kind: str) -> None:
    model, prompt = model_of(kind), tokens(1, 4)
    plain = model.generate(prompt, **GREEDY)
    stopped = model.generate(
        prompt, stopping_criteria=StoppingCriteriaList([AfterThree()]), **GREEDY
    )
    assert torch.equal(stopped, plain[:, :7])
    end = int(plain[0, 6])
    at = 5 + plain[0, 4:].tolist().index(end)
    assert torch.equal(model.generate(prompt, eos_token_id=end, **GREEDY), plain[:, :at])
    streamer = Collecting()
    model.generate(prompt, streamer=streamer, **GREEDY)
    assert streamer.pieces == [prompt[0].tolist(), *([token] for token in plain[0, 4:].tolist())]
    assert streamer.has_ended


@every_kind
def test_a_row_that_has_ended_changes_no_other(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(3, 4)
    plain = model.generate(prompt, **GREEDY)
    end = int(plain[0, 4])
    found = model.generate(prompt, eos_token_id=end, **GREEDY)
    assert found[0, 4] == end and not found[0, 5:].any()
    for row in (1, 2):
        new = plain[row, 4:].tolist()
        kept = new.index(end) + 1 if end in new else NEW
        assert torch.equal(found[row, 4 : 4 + kept], plain[row, 4 : 4 + kept])


@every_kind
def test_a_second_turn_reads_the_pads_of_the_first_as_text(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(3, 4)
    sampling = GREEDY | {"do_sample": True, "return_dict_in_generate": True}
    torch.manual_seed(0)
    end = int(model.generate(prompt, **sampling).sequences[0, 4])
    torch.manual_seed(0)
    first = model.generate(prompt, eos_token_id=end, **sampling)
    assert first.sequences.shape[1] > 5 and not first.sequences[0, 5:].any()
    text = torch.cat((first.sequences, tokens(3, 2, seed=1)), 1)
    way_out = r"give .* attention_mask=torch.ones_like\(input_ids\)"
    with pytest.raises(ValueError, match=way_out):  # transformers takes the pads for padding
        model.generate(text, cache=first.cache.copy(), **GREEDY)
    mask = torch.ones_like(text)
    found = model.generate(text, cache=first.cache, attention_mask=mask, **GREEDY)
    assert torch.equal(found, model.generate(text, attention_mask=mask, **GREEDY))


# The search while decoding


class Spy:
    """Remembers what each forward pass did."""

    def __init__(self, model: ImplicitForCausalLM) -> None:
        self.outputs: list[Any] = []
        self.handle = model.register_forward_hook(
            lambda module, arguments, output: self.outputs.append(output)
        )

    @property
    def iterations(self) -> list[int]:
        return [int(output.self_iterations.sum()) for output in self.outputs]


def work(model: ImplicitForCausalLM, prompt: Tensor, **settings: Any) -> list[int]:
    spy = Spy(model)
    model.generate(prompt, **GREEDY, **settings)
    spy.handle.remove()
    return spy.iterations


@pytest.mark.parametrize("kind", IMPLICIT)
def test_tolerance_and_iterations_are_arguments(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(1, 6)
    tight, loose = work(model, prompt), work(model, prompt, tolerance=1e-2)
    assert len(tight) == len(loose) == NEW
    assert all(few < many for few, many in zip(loose, tight, strict=True))
    capped = work(model, prompt, max_self_iterations=3)
    assert capped[1:] == [4] * (NEW - 1)  # and the evaluation that gives the output
    model.config.tolerance = 1e-2
    assert work(model, prompt) == loose


@pytest.mark.parametrize("kind", IMPLICIT)
@torch.no_grad()
def test_every_token_iterates_until_it_has_converged(kind: str) -> None:
    """One token at a time, each takes what it takes, and starts anew."""
    model, prompt = tight_model(kind), tokens(1, 6)
    spy = Spy(model)
    text = model.generate(prompt, **(GREEDY | {"max_new_tokens": 8}))
    spy.handle.remove()
    for step, output in enumerate(spy.outputs):
        assert (output.search.residual < TIGHT).all()
        assert output.self_iterations.shape[1] == (6 if step == 0 else 1)
    assert len({*spy.iterations[1:]}) > 1
    cache = model(text[:, :7]).cache
    alone = model(text[:, 7:8], cache=cache)
    assert int(alone.self_iterations) == spy.iterations[2]


@pytest.mark.parametrize("kind", IMPLICIT)
def test_a_prompt_is_read_with_the_sliding_window(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(2, 12)
    settings = GREEDY | {"max_new_tokens": 1}
    spy = Spy(model)
    model.generate(prompt, **settings)
    search = spy.outputs[0].search
    assert search.steps.shape == (2, 12)  # per token; a whole sequence has one number
    assert (search.token_evaluations < 12 * search.depth).all()
    narrow = tight_model(kind)
    narrow.config.window = 1
    spy = Spy(narrow)
    narrow.generate(prompt, **settings)
    assert torch.equal(spy.outputs[0].search.depth, spy.outputs[0].search.steps.sum(1))
    assert (spy.outputs[0].search.depth > search.depth).all()


@pytest.mark.parametrize("kind", EXPLICIT)
def test_an_explicit_model_has_no_search_to_set(kind: str) -> None:
    model, prompt = model_of(kind), tokens(1, 4)
    for name, value in {"tolerance": 0.1, "max_self_iterations": 3}.items():
        with pytest.raises(ValueError, match=f"{name} is given; this explicit model takes None"):
            model.generate(prompt, **{name: value}, **GREEDY)


# The cache


@pytest.mark.parametrize("padded", [False, True])
@every_kind
@torch.no_grad()
def test_one_prompt_many_continuations(kind: str, padded: bool) -> None:
    model, prompt, more = tight_model(kind), tokens(2, 5), tokens(2, 3, seed=1)
    mask = mask_of([(2, 8), (0, 8)] if padded else [(0, 8)] * 2, 8)
    text = torch.cat((prompt, more), dim=1)
    whole = model(text, attention_mask=mask).logits[:, 5:]
    cache = model(prompt, attention_mask=mask[:, :5]).cache
    stored = pickle.loads(pickle.dumps(cache))
    earlier = copy.deepcopy(cache)
    del earlier._num_read  # as earlier versions had them pickled
    earlier = pickle.loads(pickle.dumps(earlier))
    for again in (cache.copy(), copy.deepcopy(cache), stored, earlier, cache):
        start = again.get_seq_length()
        assert start == 5
        other = model(tokens(2, 3, seed=2), cache=again.copy(), attention_mask=mask)
        found = model(more, cache=again, attention_mask=mask)
        assert again.get_seq_length() == 8
        assert other.cache.get_seq_length() == 8
        torch.testing.assert_close(found.logits, whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
@every_kind
@torch.no_grad()
def test_continuations_take_turns(kind: str, padded: bool) -> None:
    model, prompt = tight_model(kind), tokens(2, 4)
    mask = mask_of([(2, 7), (0, 7)] if padded else [(0, 7)] * 2, 7)
    first = model(prompt, attention_mask=mask[:, :4]).cache
    caches = [first, first.copy(), first.copy()]
    more = [tokens(2, 3, seed=seed) for seed in (1, 2, 3)]
    logits: list[list[Tensor]] = [[], [], []]
    for at in range(3):
        for turn in range(3):
            found = model(more[turn][:, at : at + 1], cache=caches[turn])
            logits[turn].append(found.logits)
    for turn in range(3):
        whole = model(torch.cat((prompt, more[turn]), dim=1), attention_mask=mask).logits[:, 4:]
        torch.testing.assert_close(torch.cat(logits[turn], 1), whole, rtol=1e-9, atol=1e-9)


@every_kind
@torch.no_grad()
def test_rows_of_a_cache_are_chosen_and_repeated(kind: str) -> None:
    model, prompt, more = tight_model(kind), tokens(3, 5), tokens(1, 2, seed=1)
    mask = mask_of([(2, 5), (0, 5), (4, 5)], 5)
    whole = model(
        torch.cat((prompt, more.expand(3, -1)), dim=1),
        attention_mask=torch.cat((mask, torch.ones(3, 2, dtype=torch.long)), dim=1),
    ).logits[:, 5:]
    cache = model(prompt, attention_mask=mask).cache
    for method, argument, rows in (
        ("reorder_cache", torch.tensor([2, 0, 0]), [2, 0, 0]),
        ("batch_select_indices", torch.tensor([1]), [1]),
        ("batch_repeat_interleave", 2, [0, 0, 1, 1, 2, 2]),
    ):
        chosen = cache.copy()
        getattr(chosen, method)(argument)
        found = model(more.expand(len(rows), -1), cache=chosen)
        torch.testing.assert_close(found.logits, whole[rows], rtol=1e-9, atol=1e-9)
    cache.reset()
    assert cache.get_seq_length() == 0
    anew = model(prompt[1:], cache=cache).logits
    torch.testing.assert_close(anew, model(prompt[1:]).logits, rtol=1e-9, atol=1e-9)


@every_kind
@torch.no_grad()
def test_a_conversation_goes_on_from_its_cache(kind: str) -> None:
    model, prompt = tight_model(kind), tokens(1, 4)
    cache = CarryCache()
    first = model.generate(prompt, cache=cache, **GREEDY)
    assert cache.get_seq_length() == 4 + NEW - 1
    text = torch.cat((first, tokens(1, 3, seed=1)), dim=1)
    spy = Spy(model)
    found = model.generate(text, cache=cache, **GREEDY)
    assert spy.outputs[0].logits.shape[1] == 1
    spy.handle.remove()
    assert torch.equal(found, decode_by_full_forward(model, text, NEW))
    assert cache.get_seq_length() == text.shape[1] + NEW - 1


@every_kind
def test_a_cache_outlives_inference_mode_and_no_grad(kind: str) -> None:
    model, prompt, more = tight_model(kind), tokens(2, 4), tokens(2, 2, seed=1)
    with torch.inference_mode():
        cache = model(prompt).cache
        whole = model(torch.cat((prompt, more), dim=1)).logits[:, 4:].clone()
    with torch.no_grad():
        found = model(more, cache=cache.copy()).logits
    torch.testing.assert_close(found, whole.clone(), rtol=1e-9, atol=1e-9)
    with torch.inference_mode():
        again = model(more, cache=cache).logits
    torch.testing.assert_close(again.clone(), found, rtol=1e-9, atol=1e-9)


@every_kind
def test_what_the_cache_cannot_do_is_refused(kind: str) -> None:
    model, prompt = model_of(kind), tokens(1, 4)
    with pytest.raises(ValueError, match="cache is a DynamicCache; .* take a CarryCache"):
        model.generate(prompt, cache=DynamicCache(), **GREEDY)
    for name in ("static", "dynamic", "quantized"):
        with pytest.raises(ValueError, match=f"cache_implementation is '{name}'; these models"):
            model.generate(prompt, cache_implementation=name, **GREEDY)
    for helper in ({"assistant_model": model}, {"prompt_lookup_num_tokens": 2}):
        with pytest.raises(ValueError, match="assisted generation is not supported with stateful"):
            model.generate(prompt, **helper, **GREEDY)
    with torch.no_grad():
        cache = model(prompt).cache
    for given in ({"tolerance": 0.1}, {"max_self_iterations": 3}, {"phase": bounded_phase(2)}):
        match = f"{next(iter(given))} is given beside guidance_scale, .* configuration"
        with pytest.raises(ValueError, match=match):
            model.generate(prompt, guidance_scale=1.5, **given, **GREEDY)
    assert model.generate(prompt, guidance_scale=1.5, **GREEDY).shape == (1, 4 + NEW)
    with pytest.raises(ValueError, match="cannot be cut back; keep a copy"):
        cache.crop(2)
    with pytest.raises(ValueError, match="output_attentions is True; these models keep no"):
        model.generate(prompt, output_attentions=True, return_dict_in_generate=True, **GREEDY)
    if not cache.tensors():
        with pytest.raises(ValueError, match="grows with every token, has no tensors and cannot"):
            cache.resumed(cache.tensors())
    with pytest.raises(ValueError, match="cache holds 1 sequences; the input has 3"):
        model(tokens(3, 2), cache=cache)
    with pytest.raises(ValueError, match="not used by the model: .'tolerence'"):
        model.generate(prompt, tolerence=0.1, **GREEDY)


# Text


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(3, VOCABULARY)}
    words |= {"<pad>": 0, "<end>": 1, "<unknown>": 2}
    inner = Tokenizer(WordLevel(words, unk_token="<unknown>"))  # type: ignore[call-arg]
    inner.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unknown>",
        padding_side="left",
    )


@every_kind
def test_the_text_generation_pipeline(kind: str, tmp_path: Any) -> None:
    model, words = model_of(kind, dtype=torch.float32), tokenizer()
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    writer = pipeline("text-generation", model=str(tmp_path), device="cpu")
    assert type(writer.model) is type(model)
    settings = {"max_new_tokens": 4, "do_sample": False, "return_full_text": False}
    prompts = ["w7 w3 w9 w20", "w5", "w4 w30 w12"]
    single = [writer(prompt, **settings)[0]["generated_text"] for prompt in prompts]
    for prompt, text in zip(prompts, single, strict=True):
        ids = words(prompt, return_tensors="pt").input_ids
        new = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=1, pad_token_id=0)
        assert text.strip() == words.decode(new[0, ids.shape[1] :], skip_special_tokens=True)
    batched = [each[0]["generated_text"] for each in writer(prompts, batch_size=3, **settings)]
    assert batched == single


def letters() -> Tokenizer:
    """A tokenizer with a letter for each token."""
    known = {letter: index for index, letter in enumerate(string.ascii_letters[:VOCABULARY])}
    found = Tokenizer(BPE(known, []))
    found.decoder = Fuse()
    return found


@every_kind
def test_a_string_stops_it(kind: str) -> None:
    model, prompt = model_of(kind), tokens(1, 5)
    words = PreTrainedTokenizerFast(tokenizer_object=letters())
    settings = GREEDY | {"max_new_tokens": 8}
    whole = model.generate(prompt, **settings)[0, 5:]
    third = words.decode(whole[2])
    stopped = model.generate(prompt, stop_strings=[third], tokenizer=words, **settings)[0, 5:]
    first = next(index for index, each in enumerate(whole) if words.decode(each) == third)
    assert stopped.tolist() == whole[: first + 1].tolist()


def test_a_text_streamer_prints_what_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    model, words = model_of("llama-implicit"), tokenizer()
    prompt = tokens(1, 4)
    found = model.generate(prompt, streamer=TextStreamer(words, skip_prompt=True), **GREEDY)
    assert capsys.readouterr().out.split() == words.decode(found[0, 4:]).split()
