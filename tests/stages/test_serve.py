"""A model of text is served, and what cannot be served is refused before anything listens."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from implicit_models import LSTMConfig, LSTMLanguageModel
from implicit_models.language_models.source_names import SourceError
from implicit_models.parameters import ParameterError
from stages import generate, serve
from tests.language_models.kinds import VOCABULARY, model_of

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDE"
PROMPT, NEW = "hello", 6


def save(folder: Path, model: Any, with_tokenizer: bool = True) -> str:
    model.save_pretrained(folder)
    if with_tokenizer:
        inner = Tokenizer(BPE({letter: index for index, letter in enumerate(ALPHABET)}, []))
        inner.decoder = Fuse()
        PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
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


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"prompt": ""}, "prompt is ''; allowed is a text that is not empty"),
        ({"prompt": ["a", "b"]}, "prompt is ['a', 'b']; allowed is a text"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0; allowed is a number from 1"),
        ({"prompt": "a", "temperature": -1}, "temperature is -1; allowed is a number from 0"),
        ({"prompt": "a", "model": "yours"}, "Server is pinned to 'mine'; requested 'yours'"),
    ],
)
def test_a_wrong_request_is_told(client: TestClient, request_: Any, said: str) -> None:
    answer = client.post("/v1/completions", json=request_)
    assert answer.status_code == 400 and said in answer.json()["detail"]


def test_no_other_model_can_be_asked_for_and_none_unloaded(client: TestClient) -> None:
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["mine"]
    for path in ("/load_model", "/reset", "/v1/chat/completions"):
        assert client.post(path, json={"model": "openai-community/gpt2"}).status_code == 404


def test_it_streams_and_stops(client: TestClient) -> None:
    asked = {"prompt": PROMPT, "max_tokens": NEW, "temperature": 0}
    whole = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    streamed = client.post("/v1/completions", json=asked | {"stream": True}).text.split("data: ")
    parts = [json.loads(each)["choices"][0]["text"] for each in streamed if each.strip()]
    assert "".join(parts) == whole and len(parts) > 2
    stopped = client.post("/v1/completions", json=asked | {"stop": whole[1]}).json()
    assert stopped["choices"][0]["text"] == whole[: whole.index(whole[1]) + 1]


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
