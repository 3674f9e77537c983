"""Tokenizers: ids, digests, files that others can read, and what cannot be a tokenizer."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from implicit_models.problems.text.data.tokenisation import (
    TextTokenizer,
    TokenizerError,
    load_tokenizer,
)
from implicit_models.problems.text.data.vocabulary import tokenizer_digest

REAL = Path(__file__).parents[3] / ".." / "shared" / "data"
TEXTS = [
    "Hello world, it's <|endoftext|> a wörld\r\n\n   of 😀 and\ttabs\x00\x7f",
    "",
    "".join(map(chr, range(1, 0x900))),
    "<s>[INST] e\u0301 </s>",
]


@pytest.fixture(scope="module")
def gpt_neox():
    path = REAL / "tokenizers" / "gpt-neox-20b" / "20B_tokenizer.json"
    if not path.is_file():
        pytest.skip("the files of GPT-NeoX's tokenizer are not here")
    return load_tokenizer(path)


def words(*, end="</s>"):
    """A tokenizer of three words, with special tokens around every text."""
    vocabulary = {"<unk>": 0, "<s>": 1, "one": 2, "two": 3} | ({end: 4} if end else {})
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([token for token in ("<s>", end) if token])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def test_a_byte_is_its_own_id():
    tokenizer = load_tokenizer("bytes")
    assert tokenizer.vocabulary_size == 257 and tokenizer.end_of_text == 256
    assert isinstance(tokenizer.library, Tokenizer)
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert ids.dtype == np.uint16
        assert bytes(ids.tolist()) == text.encode()
        assert ids.tolist() == tokenizer.library.encode(text).ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([104, 105, 256]) == "hi<|endoftext|>"
    every_byte = [tokenizer.library.id_to_token(byte) for byte in range(256)]
    assert sorted(every_byte) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_a_real_tokenizer(gpt_neox):
    assert gpt_neox.encode(["Hello world"])[0].tolist() == [12092, 1533]
    assert gpt_neox.vocabulary_size == 50277 and gpt_neox.end_of_text == 0
    assert gpt_neox.dtype == np.uint16 and not gpt_neox.is_bytes
    for text, ids in zip(TEXTS, gpt_neox.encode(TEXTS), strict=True):
        assert 0 not in ids and 1 not in ids  # what is spelt out is text
        if "\u0301" not in text:  # which it composes
            assert gpt_neox.decode(ids) == text


def test_nothing_is_put_around_a_text(tmp_path):
    words().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(["two three one", "<s>"])[0].tolist() == [3, 0, 2]
    assert tokenizer.end_of_text == 4 and tokenizer.vocabulary_size == 5


def test_batches_are_as_one_by_one(monkeypatch, gpt_neox):
    texts = [f"{number} green bottles\n" * (number % 7) for number in range(60)]
    expected = [gpt_neox.library.encode(text).ids for text in texts]
    for size in (1, 100, 2**20):
        monkeypatch.setattr("implicit_models.problems.text.data.tokenisation._BATCH_BYTES", size)
        assert [ids.tolist() for ids in gpt_neox.encode(texts)] == expected
    assert gpt_neox.encode([]) == []


def test_truncation_and_padding_of_the_file_do_not_count(tmp_path):
    plain, cutting = tmp_path / "plain.json", tmp_path / "cutting.json"
    tokenizer = words()
    tokenizer.save(str(plain))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(cutting))
    first, second = load_tokenizer(plain), load_tokenizer(str(cutting))
    assert first.digest == second.digest
    assert second.encode(["one two one two"])[0].tolist() == [2, 3, 2, 3]


def test_the_digest_is_of_what_decides_ids(tmp_path, gpt_neox):
    path = tmp_path / "tokenizer.json"
    digests = {gpt_neox.digest, load_tokenizer("bytes").digest}
    words().save(str(path))
    content = json.loads(path.read_text())
    digests.add(load_tokenizer(path).digest)
    for key, value in (
        ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("model", content["model"] | {"vocab": content["model"]["vocab"] | {"three": 5}}),
        ("added_tokens", [content["added_tokens"][0] | {"id": 5, "content": "<pad>"}]),
        ("added_tokens", [content["added_tokens"][0] | {"content": "one", "special": False}]),
    ):
        path.write_text(json.dumps(content | {key: value}))
        digests.add(load_tokenizer(path).digest)
    assert len(digests) == 8
    path.write_text(json.dumps(content | {"post_processor": None}, indent=4, sort_keys=True))
    assert load_tokenizer(path).digest in digests


@pytest.mark.parametrize("kind", ["bytes", "words", "gpt_neox"])
def test_transformers_reads_what_is_saved(tmp_path, kind, request):
    from transformers import AutoTokenizer

    if kind == "words":
        tokenizer = TextTokenizer("words", words())
    else:
        tokenizer = load_tokenizer("bytes") if kind == "bytes" else request.getfixturevalue(kind)
    tokenizer.save(tmp_path / "first")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "first")
    for text in ("one two", TEXTS[0].replace("<|endoftext|>", "")):
        assert theirs(text).input_ids == tokenizer.encode([text])[0].tolist()
    assert theirs.eos_token_id == tokenizer.end_of_text
    assert len(theirs) == tokenizer.vocabulary_size
    assert theirs.model_max_length > 10**12
    # A text begins with what ended the one before: "<s>" stands nowhere in training.
    assert theirs.bos_token == theirs.eos_token
    assert theirs.unk_token == ("<unk>" if kind == "words" else None)

    theirs.save_pretrained(tmp_path / "theirs")
    assert tokenizer_digest(tmp_path / "theirs") == tokenizer.digest
    load_tokenizer(tmp_path / "first").save(tmp_path / "second")
    for file in (tmp_path / "first").iterdir():
        assert (tmp_path / "second" / file.name).read_bytes() == file.read_bytes()


def test_a_file_that_puts_nothing_around_a_text_is_saved_as_it_is(tmp_path):
    tokenizer = words()
    for number, processor in enumerate((None, processors.ByteLevel(trim_offsets=False))):
        tokenizer.post_processor = processor
        tokenizer.save(str(tmp_path / "tokenizer.json"), pretty=False)
        load_tokenizer(tmp_path).save(tmp_path / str(number))
        saved = json.loads((tmp_path / str(number) / "tokenizer.json").read_text())
        assert saved == json.loads((tmp_path / "tokenizer.json").read_text())


def test_bytes_from_a_folder_are_bytes(tmp_path):
    load_tokenizer("bytes").save(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.is_bytes and tokenizer.digest == load_tokenizer("bytes").digest


def test_the_digest_of_a_folder_without_a_tokenizer(tmp_path):
    assert tokenizer_digest(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="tokenizer.json: is not a tokenizer's file"):
        tokenizer_digest(tmp_path)


def test_no_end_of_text():
    tokenizer = TextTokenizer("words.json", words(end=None))
    with pytest.raises(TokenizerError, match=r"'words.json' has no end-of-text .*<\|endoftext\|>"):
        _ = tokenizer.end_of_text


def test_an_ordinary_token_ends_no_text_where_a_special_one_does(tmp_path):
    """Build what Gemma has: </s> and <s> are words of HTML, beside <eos> and <bos>."""
    tokenizer = Tokenizer(models.BPE({"<eos>": 0, "<bos>": 1, "a": 2}, []))
    tokenizer.add_tokens(["</s>", "<s>"])
    assert TextTokenizer("html", tokenizer).end_of_text == tokenizer.token_to_id("</s>")
    tokenizer.add_special_tokens(["<eos>", "<bos>"])
    gemma = TextTokenizer("gemma", tokenizer)
    assert gemma.end_of_text == tokenizer.token_to_id("<eos>") == 0
    assert gemma.encode(["a</s><s>a"])[0].tolist() == [2, 3, 4, 2]
    gemma.save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"] == "<eos>"


def test_a_document_too_long_for_memory(monkeypatch):
    monkeypatch.setattr(TextTokenizer, "max_bytes", 10)
    tokenizer = load_tokenizer("bytes")
    assert len(tokenizer.encode(["0123456789"])[0]) == 10
    with pytest.raises(TokenizerError, match="11 bytes is too long .* at most 10 .* divide it"):
        tokenizer.encode(["short", "01234567ö9"])


def test_a_text_that_the_library_gives_up_on(tmp_path):
    content = json.loads(load_tokenizer("bytes").library.to_str())
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    content["pre_tokenizer"] = split | {"pattern": {"Regex": "(a+)+$"}}
    (tmp_path / "slow.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"slow.json' gives up on a text \(.*retry-limit"):
        load_tokenizer(tmp_path / "slow.json").encode(["a" * 40 + "b"])


def test_an_id_by_far_larger_than_the_vocabulary(tmp_path):
    content = json.loads(load_tokenizer("bytes").library.to_str())
    content["model"]["vocab"]["zz"] = 4_000_000_000
    (tmp_path / "huge.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=r"has 258 tokens, and among them the id 4000000000"):
        _ = load_tokenizer(tmp_path / "huge.json").vocabulary_size


@pytest.mark.parametrize(
    "name",
    ["./tokenizer.json", "/nowhere/at/all", "nowhere.json", "a/b/c", Path("gpt2"), "", "a b"],
)
def test_no_such_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name == "":
        words().save("tokenizer.json")
        name = "tokenizer.jsno/"
    with pytest.raises(TokenizerError, match="no such file or folder; allowed is 'bytes'"):
        load_tokenizer(name)


def test_a_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "vocab.bpe").touch()
    with pytest.raises(TokenizerError, match=r"holds no tokenizer.json \(it holds vocab.bpe\)"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 3}'])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match="some.json: is not a tokenizer's file"):
        load_tokenizer(path)


def test_the_hub(tmp_path, monkeypatch):
    words().save(str(tmp_path / "downloaded.json"))
    asked = []

    def download(repository, file, revision):
        asked.append((repository, file, revision))
        if repository == "owner/missing":
            raise OSError("404 Client Error.\n\nEntry not found")
        return str(tmp_path / "downloaded.json")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert load_tokenizer("owner/name").end_of_text == 4
    assert load_tokenizer("gpt2@main").name == "gpt2@main"
    assert asked == [
        ("owner/name", "tokenizer.json", None),
        ("gpt2", "tokenizer.json", "main"),
    ]
    with pytest.raises(TokenizerError, match=r"'owner/missing': .* \(404 Client Error.\)"):
        load_tokenizer("owner/missing")
