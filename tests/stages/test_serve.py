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
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from implicit_models import LSTMConfig, LSTMLanguageModel
from implicit_models.parameters import ParameterError
from stages import serve
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


def test_what_reads_no_text_is_refused(tmp_path: Path) -> None:
    numbers = save(tmp_path / "numbers", model_of("mamba2-implicit"), with_tokenizer=False)
    with pytest.raises(ParameterError, match=r"numbers has no tokenizer.*stages\.generate"):
        serve.main(numbers, "localhost", free_port())
    config = LSTMConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1)
    recurrent = save(tmp_path / "recurrent", LSTMLanguageModel(config))
    with pytest.raises(ParameterError, match="which generates nothing; allowed are Mamba2, Llama"):
        serve.main(recurrent, "localhost", free_port())


def test_where_there_is_no_model_it_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.serve", "nowhere/model/at/all"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: no model can be read from nowhere/model/at/all")
