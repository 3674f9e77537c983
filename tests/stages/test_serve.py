"""A model of text is served, and what cannot be served is refused before anything listens."""

import asyncio
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from implicit_models import LSTMConfig, LSTMLanguageModel
from implicit_models.language_models.source_names import SourceError
from implicit_models.parameters import ParameterError
from implicit_models.problems.text.data.byte_tokenizer import byte_tokenizer
from stages import completions, generate, serve
from tests.language_models.kinds import VOCABULARY, model_of

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDE"
PROMPT, NEW = "hello", 6


def save(
    folder: Path, model: Any, with_tokenizer: bool = True, end_of_text: str | None = None
) -> str:
    model.save_pretrained(folder)
    if with_tokenizer:
        inner = Tokenizer(BPE({letter: index for index, letter in enumerate(ALPHABET)}, []))
        inner.decoder = decoders.Fuse()
        words = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end_of_text)
        words.save_pretrained(folder)
    return str(folder)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        return bound.getsockname()[1]


def answer_of(url: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if request is None else json.dumps(request).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.loads(answer.read())


def wait_for(url: str, server: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            answer_of(url)
        except (OSError, urllib.error.URLError):
            time.sleep(0.2)
        else:
            return
    server.kill()
    pytest.fail(f"no server: {server.communicate()[1]}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba2-implicit", "llama-explicit"])
def test_a_served_model_continues_as_generate_does(kind: str, tmp_path: Path) -> None:
    assert len(ALPHABET) == VOCABULARY
    model = model_of(kind, dtype=torch.float32)
    folder = save(tmp_path, model)
    port = free_port()
    command = [sys.executable, "-m", "stages.serve", folder, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            wait_for(f"http://localhost:{port}/health", server)
            url = f"http://localhost:{port}/v1/completions"
            request = {"model": folder, "prompt": PROMPT, "max_tokens": NEW, "temperature": 0}
            served = answer_of(url, request)["choices"][0]["text"]
        finally:
            server.kill()
            server.communicate()
    ids = torch.tensor([[ALPHABET.index(letter) for letter in PROMPT]])
    made = model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    assert served == "".join(ALPHABET[each] for each in made[0, len(PROMPT) :])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = save(tmp_path_factory.mktemp("served"), model_of("llama-implicit"))
    return TestClient(serve.application("mine", *serve.load(folder)))


@pytest.fixture(scope="module")
def address(client: TestClient) -> Iterator[str]:
    """The same application on a port: its clients can go, and come together."""
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        server = uvicorn.Server(uvicorn.Config(client.app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://localhost:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


def completed(client: TestClient, **asked: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"max_tokens": NEW, "temperature": 0} | asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(client: TestClient, **asked: Any) -> str:
    (choice,) = completed(client, **asked)["choices"]
    return choice["text"]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"prompt": ""}, "prompt = '' has no token; allowed is one or more"),
        ({"prompt": ["a", ""]}, "prompt = '' has no token; allowed is one or more"),
        ({"prompt": "!"}, "prompt = '!' has no token; allowed is one or more"),
        ({"prompt": []}, "prompt = [] has no prompt; allowed is one or more"),
        ({"prompt": [[1], []]}, "prompt = () has no token; allowed is one or more"),
        ({"prompt": [3, 31]}, "prompt has the token 31; allowed are numbers from 0 to 30"),
        ({"prompt": [-1]}, "prompt has the token -1; allowed are numbers from 0 to 30"),
        ({"prompt": [True]}, "prompt = [True] is not allowed; allowed is str | list[str] | list["),
        ({"prompt": ["a", 1]}, "prompt = ['a', 1] is not allowed; allowed is str | list[str] |"),
        ({"prompt": None}, "prompt = None is not allowed; allowed is str | list[str] | list[int]"),
        ({}, "prompt is missing; allowed is str | list[str] | list[int] | list[list[int]]"),
        ({"prompt": {"a": "a" * 9999}}, "aaa ... aaa"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens = 0 is not allowed; allowed is int | null"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens = True is not allowed"),
        ({"prompt": "a", "temperature": -1}, "temperature = -1 is not allowed; allowed is float"),
        ({"prompt": "a", "temperature": "1"}, "temperature = '1' is not allowed"),
        ({"prompt": "a", "top_p": 1.5}, "top_p = 1.5 is not allowed; allowed is float | null, at"),
        ({"prompt": "a", "seed": 2**63}, "seed = 9223372036854775808 is not allowed"),
        ({"prompt": "a", "stop": ""}, "stop = '' is not allowed; allowed is str | list[str] | nu"),
        ({"prompt": "a", "stop": [1]}, "stop = [1] is not allowed; allowed is str | list[str] |"),
        ({"prompt": "a", "stream": "yes"}, "stream = 'yes' is not allowed; allowed is bool"),
        ({"prompt": "a", "n": 2}, "n = 2 is not allowed; allowed is int | null, one of 1"),
        ({"prompt": "a", "echo": True}, "echo = True is not allowed"),
        ({"prompt": "a", "logprobs": 1}, "logprobs = 1 is not allowed; allowed is null"),
        ({"prompt": "a", "suffix": "b"}, "suffix = 'b' is not allowed; allowed is null"),
        ({"prompt": "a", "presence_penalty": 1}, "presence_penalty = 1 is not allowed"),
        ({"prompt": "a", "top_k": 1}, "top_k = 1 is not a known setting; the closest valid key is"),
        (
            {"prompt": "a", "model": "yours"},
            "model = 'yours' is not served here; allowed is 'm",
        ),
    ],
)
def test_a_wrong_request_is_told(client: TestClient, request_: Any, said: str) -> None:
    answer = client.post("/v1/completions", json=request_)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"NaN", b'{"prompt": "a", "temperature": NaN}', b"[" * 9999),
        *(b"\xff", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'),
        *(b'{"prompt": "a", "seed": ' + b"9" * 9999 + b"}", b"prompt=a"),
    ],
)
def test_what_is_no_request_is_told(client: TestClient, body: bytes) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    answer = client.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 400 and "allowed is" in answer.json()["error"]["message"]


def test_a_form_of_another_page_is_refused(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post(
            "/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 400
        assert f"Content-Type = '{kind}' is not allowed" in answer.json()["error"]["message"]


def test_no_other_model_can_be_asked_for_and_none_unloaded(client: TestClient) -> None:
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["mine"]
    for path in ("/load_model", "/reset", "/v1/chat/completions"):
        assert client.post(path, json={"model": "openai-community/gpt2"}).status_code == 404


@pytest.mark.parametrize("temperature", [0, 1])
def test_each_prompt_of_a_list_is_answered_as_if_alone(
    client: TestClient, temperature: int
) -> None:
    texts = ["hello", "a", "world"]
    tokens = [[ALPHABET.index(letter) for letter in text] for text in texts]
    chosen = {"temperature": temperature, "seed": 3}
    alone = [text_of(client, prompt=text, **chosen) for text in texts]
    assert len(set(alone)) == 3
    assert [text_of(client, prompt=each, **chosen) for each in tokens] == alone
    for prompt in (texts, tokens):
        answer = completed(client, prompt=prompt, **chosen)
        assert [each["text"] for each in answer["choices"]] == alone
        assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
        assert {each["finish_reason"] for each in answer["choices"]} == {"length"}
        assert answer["usage"] == {
            "prompt_tokens": 11,
            "completion_tokens": 3 * NEW,
            "total_tokens": 11 + 3 * NEW,
        }


def test_openais_client_reads_the_answers(client: TestClient, address: str) -> None:
    prompts = ["hello", "a"]
    whole = completed(client, prompt=prompts)
    chosen: dict[str, Any] = {"model": "mine", "prompt": prompts, "temperature": 0}
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as theirs:
        made = theirs.completions.create(**chosen, max_tokens=NEW)
        assert [each.text for each in made.choices] == [each["text"] for each in whole["choices"]]
        assert made.usage is not None and made.usage.total_tokens == 6 + 2 * NEW
        usage = {"include_usage": True}
        *parts, last = theirs.completions.create(
            **chosen, max_tokens=NEW, stream=True, stream_options=usage
        )
        for index, choice in enumerate(made.choices):
            added = [each.choices[0] for each in parts if each.choices[0].index == index]
            assert "".join(each.text for each in added) == choice.text and len(added) > 2
            reasons = [each.finish_reason for each in added]
            assert reasons == [None] * (len(added) - 1) + ["length"]
        assert last.choices == [] and last.usage == made.usage
        with pytest.raises(openai.BadRequestError, match="n = 2 is not allowed"):
            theirs.completions.create(**chosen, n=2)
        assert [each.id for each in theirs.models.list()] == ["mine"]


def test_it_samples_unless_the_temperature_is_zero(client: TestClient) -> None:
    likeliest = text_of(client, prompt=PROMPT, max_tokens=20)
    assert text_of(client, prompt=PROMPT, max_tokens=20, temperature=1e-9) == likeliest
    assert text_of(client, prompt=PROMPT, max_tokens=20, temperature=1, top_p=0) == likeliest
    for temperature in (None, 1, 1e300):
        chosen = {"prompt": PROMPT, "max_tokens": 20, "temperature": temperature}
        assert len({text_of(client, **chosen) for _ in range(3)}) > 1
        first, second, again = (text_of(client, **chosen, seed=seed) for seed in (1, 2, 1))
        assert first == again != second


def test_it_ends_before_a_text_that_stops_it(client: TestClient) -> None:
    whole = text_of(client, prompt=PROMPT)
    stop = whole[2:4]
    # Of a stop that only begins, nothing is lost; one that the tokenizer cannot write never comes.
    for stops in (stop, [stop], ["!", stop, whole[3:5] + "!", whole[-1] + "!"]):
        answer = completed(client, prompt=PROMPT, stop=stops)
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
        assert answer["usage"]["completion_tokens"] == whole.index(stop) + len(stop)
        asked = {"prompt": PROMPT, "max_tokens": NEW, "temperature": 0, "stream": True}
        *parts, end = client.post("/v1/completions", json=asked | {"stop": stops}).text.split(
            "\n\n"
        )
        assert parts.pop() == "data: [DONE]" and end == ""
        said = [json.loads(each.removeprefix("data: "))["choices"][0]["text"] for each in parts]
        assert "".join(said) == choice["text"]
    assert text_of(client, prompt=PROMPT, stop=[whole[-1] + "!", whole[-2:] + "!"]) == whole


def test_it_ends_with_the_token_of_an_end(tmp_path: Path) -> None:
    model, tokenizer = serve.load(save(tmp_path, model_of("mamba2-implicit")))
    with TestClient(serve.application("mine", model, tokenizer)) as client:
        whole = text_of(client, prompt=PROMPT)
        model.generation_config.eos_token_id = ALPHABET.index(whole[1])
        (choice,) = completed(client, prompt=PROMPT)["choices"]
        length = whole.index(whole[1]) + 1
        (last,) = completed(client, prompt=PROMPT, max_tokens=length)["choices"]
    assert choice["finish_reason"] == last["finish_reason"] == "stop"
    assert choice["text"] == last["text"] == whole[:length]


def test_it_ends_where_the_tokenizer_alone_names_an_end(tmp_path: Path) -> None:
    model = model_of("mamba2-implicit")
    whole = generate.main(save(tmp_path, model), PROMPT, NEW, temperature=0, seed=0)
    end = whole[len(PROMPT) + 1]
    written = whole[: whole.index(end, len(PROMPT)) + 1]
    folder = save(tmp_path, model, end_of_text=end)
    assert generate.main(folder, PROMPT, NEW, temperature=0, seed=0) == written
    with TestClient(serve.application("mine", *serve.load(folder))) as client:
        (choice,) = completed(client, prompt=PROMPT)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == written[len(PROMPT) : -1]  # an end is not text


def test_clients_that_go_leave_room_for_those_that_stay(client: TestClient, address: str) -> None:
    """Each has asked for more than could ever be made."""
    host, port = address.removeprefix("http://").removesuffix("/v1").split(":")
    for stream in (True, False):
        body = json.dumps({"prompt": "a", "max_tokens": 10**30, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as leaving:
            leaving.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            if stream:
                assert b"200 OK" in leaving.recv(4096)
    answer = answer_of(f"{address}/completions", {"prompt": "a", "max_tokens": 2, "temperature": 0})
    assert answer["choices"][0]["text"] == text_of(client, prompt="a", max_tokens=2)


def test_clients_together_get_what_each_gets_alone(client: TestClient, address: str) -> None:
    asked = [
        {"prompt": [text, "a"], "max_tokens": NEW, "temperature": temperature, "seed": seed}
        for seed, text in enumerate(("hello", "world", "b"))
        for temperature in (0, 1)
    ]
    with ThreadPoolExecutor(len(asked)) as clients:
        url = f"{address}/completions"
        together = list(clients.map(lambda each: answer_of(url, each)["choices"], asked))
    assert together == [completed(client, **each)["choices"] for each in asked]


def unmindful(vocabulary_size: int) -> GPT2LMHeadModel:
    """Return a model that gives the same probabilities, which are almost equal, after any token."""
    config = GPT2Config(
        vocab_size=vocabulary_size, n_embd=8, n_layer=1, n_head=1, bos_token_id=None
    )
    config.eos_token_id = None
    model = GPT2LMHeadModel(config)
    torch.nn.init.zeros_(model.transformer.ln_f.weight)
    torch.nn.init.ones_(model.transformer.ln_f.bias)
    return model


def test_generate_samples_of_all_tokens(tmp_path: Path) -> None:
    folder = save(tmp_path, unmindful(200), with_tokenizer=False)
    made = generate.main(folder, "3", tokens=800, temperature=1.0, seed=0).split()[1:]
    assert len(made) == 800 and len(set(made)) > 150


def test_generate_takes_the_likeliest_token_at_temperatures_that_overflow(tmp_path: Path) -> None:
    folder = save(tmp_path, unmindful(200), with_tokenizer=False)
    likeliest, almost = (generate.main(folder, "3", 9, each, seed=0) for each in (0, 1e-40))
    assert almost == likeliest


@pytest.mark.parametrize(
    ("chosen", "temperature"),
    [
        ({"repetition_penalty": 9.0, "no_repeat_ngram_size": 1}, 0),
        ({"min_p": 1.0, "do_sample": True}, 1),
        ({"typical_p": 0.01, "do_sample": True}, 1),
        ({"num_beams": 2, "no_repeat_ngram_size": 1}, 0),
    ],
)
def test_what_a_models_folder_chooses_for_generation_is_not_in_force(
    chosen: dict[str, Any], temperature: float, tmp_path: Path
) -> None:
    model = unmindful(VOCABULARY)
    model.generation_config.update(**chosen)
    folder = save(tmp_path, model)
    with TestClient(serve.application("mine", *serve.load(folder))) as client:
        asked = {"prompt": PROMPT, "max_tokens": 60, "temperature": temperature, "seed": 0}
        served = text_of(client, **asked)
    made = generate.main(folder, PROMPT, 60, temperature, seed=0)
    assert served == made.removeprefix(PROMPT)
    assert len(set(served)) == 1 if temperature == 0 else len(set(served)) > 15


def test_no_more_tokens_are_made_than_a_model_has_positions_for(tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1, n_positions=12, bos_token_id=None
    )
    config.eos_token_id = None
    folder = save(tmp_path, GPT2LMHeadModel(config))
    with TestClient(serve.application(folder, *serve.load(folder))) as client:
        assert len(text_of(client, prompt=PROMPT, max_tokens=7)) == 7
        assert len(text_of(client, prompt=PROMPT, max_tokens=None)) == 7
        answer = client.post("/v1/completions", json={"prompt": ["a", PROMPT], "max_tokens": 8})
    assert answer.status_code == 400
    said = (
        "after a prompt of 5 tokens is not allowed; allowed is a sum of at most 12, the positions "
        "of the model: ask for fewer, or shorten the prompt"
    )
    assert f"max_tokens = 8 {said}" in answer.json()["error"]["message"]
    assert len(generate.main(folder, PROMPT, tokens=7, temperature=0, seed=0)) == 12
    with pytest.raises(ParameterError, match=f"--tokens 8 {said}"):
        generate.main(folder, PROMPT, tokens=8, temperature=0, seed=0)


def test_what_reads_no_text_is_refused(tmp_path: Path) -> None:
    numbers = save(tmp_path / "numbers", model_of("mamba2-implicit"), with_tokenizer=False)
    with pytest.raises(ParameterError, match="no tokenizer can be read from .*models generate"):
        serve.main(numbers, "localhost", free_port())
    # transformers reads an empty tokenizer from the type of such a model alone.
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1)
    gpt2 = save(tmp_path / "gpt2", GPT2LMHeadModel(config), with_tokenizer=False)
    with pytest.raises(ParameterError, match="no tokenizer can be read from .*no file of one"):
        serve.main(gpt2, "localhost", free_port())
    assert generate.main(gpt2, "3 1", tokens=2, temperature=0, seed=0).startswith("3 1 ")
    config = LSTMConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1)
    recurrent = save(tmp_path / "recurrent", LSTMLanguageModel(config))
    with pytest.raises(ParameterError, match="which generates nothing; allowed are Mamba2, Llama"):
        serve.main(recurrent, "localhost", free_port())


PIECES = ("hello", "\u2581world", "\u2581a", "<0xE4>", "<0xBD>", "<0xA0>")  # as SentencePiece's


def pieces_tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(BPE({piece: place for place, piece in enumerate(PIECES)}, []))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def bytes_of(text: str) -> list[int]:
    return ByT5Tokenizer()(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "tokens", "texts"),
    [
        (pieces_tokenizer(), [0], [1, 2], [" world", " a"]),
        (pieces_tokenizer(), [0], [1, 3, 4, 5, 2], [" world", "", "", "\u4f60", " a"]),
        (pieces_tokenizer(), [0], [1, 3, 2], [" world", "", "\ufffd a"]),
        (pieces_tokenizer(), [0], [1, 3, 4], [" world", "", "", "\ufffd\ufffd"]),
        (ByT5Tokenizer(), bytes_of("na"), bytes_of("\xefve"), ["", "\xef", "v", "e"]),
        (ByT5Tokenizer(), bytes_of("na\xef")[:-1], bytes_of("\xef")[1:], ["\xef"]),
        (ByT5Tokenizer(), bytes_of("a"), bytes_of("\u4f60"), ["", "", "\u4f60"]),
        (pieces_tokenizer(), [0], [3] * 9, [""] * 7 + ["\ufffd" * 8, ""]),
    ],
)
def test_tokens_are_written_as_in_the_whole_text(
    tokenizer: Any, prompt: list[int], tokens: list[int], texts: list[str]
) -> None:
    """Spaces between them stay, characters come whole, and bytes that are none come at last."""
    *found, (token, rest) = written(tokenizer, prompt, tokens)
    assert token is None and [each for each, _ in found] == tokens
    said = [text for _, text in found]
    assert [*said, rest][: len(texts)] == texts
    assert "".join([*said, rest][len(texts) :]).strip("\ufffd") == ""


def written(tokenizer: Any, prompt: list[int], tokens: list[int]) -> list[tuple[int | None, str]]:
    async def streamed() -> list[tuple[int | None, str]]:
        streamer = completions._Streamer(tokenizer, prompt)
        for each in ([prompt], *([token] for token in tokens)):
            streamer.put(torch.tensor(each))
        streamer.end()
        items = []
        while (item := await streamer.queue.get()) is not None:
            assert not isinstance(item, Exception)
            items.append(item)
        return items

    return asyncio.run(streamed())


@pytest.mark.parametrize(
    ("tokenizer", "first"),
    [
        (PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer("<|endoftext|>")), 0),
        (ByT5Tokenizer(), 3),
    ],
)
def test_a_prompt_may_end_anywhere_in_a_text(tokenizer: Any, first: int) -> None:
    """The answer is the rest of it, from the character on in which the prompt ends."""
    dice = random.Random(0)
    for _ in range(500):
        words = dice.choices(["a", "\xe9", "\u4f60", "\U0001f600", " ", "\n", "a\ufffdb"], k=12)
        content = "".join(words).encode()
        end = dice.randint(1, len(content))
        if content[:end].endswith((b"\xef", b"\xef\xbf")):
            continue  # the character that stands for what is none
        ids = [first + byte for byte in content]
        answer = "".join(text for _, text in written(tokenizer, ids[:end], ids[end:]))
        whole = content[:end].decode(errors="ignore")
        assert whole + answer == content.decode(), content[:end]


def test_pickled_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "pickled", model_of("mamba2-implicit"))
    weights = Path(folder, "model.safetensors")
    torch.save(load_file(weights), Path(folder, "pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(SourceError, match="no model can be read from"):
        serve.main(folder, "localhost", free_port())
    folder = save(tmp_path / "damaged", model_of("mamba2-implicit"))
    Path(folder, "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SourceError, match="no model can be read from"):
        serve.main(folder, "localhost", free_port())


@pytest.mark.parametrize(("host", "port"), [("localhost", 99999), ("300.1.1.1", 8000)])
def test_an_address_that_is_none_is_told_before_a_model_is_read(host: str, port: int) -> None:
    with pytest.raises(ParameterError, match=f"nobody can listen at --host {host} --port {port}"):
        serve.main("nowhere", host, port)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as bound:
        bound.bind(("localhost", 0))
        bound.listen()
        with pytest.raises(ParameterError, match="nobody can listen at .*a port from 1 to 65535"):
            serve.main("nowhere", "localhost", bound.getsockname()[1])


def test_where_there_is_no_model_it_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.serve", "nowhere/model/at/all"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no model can be read from nowhere/model/at/all")
