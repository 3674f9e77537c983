"""Tokenizers: from text to ids and back, the same ids wherever a tokenizer's files go.

A tokenizer is a `tokenizers.Tokenizer`: one whose tokens are the 256 bytes, one from a file, or one
from the Hugging Face hub. What stands in a text is text: a special token that is spelt out in it is
not taken for one, and nothing is put before or after it. Where a tokenizer has it as a word all the
same, as those of Unigram and WordLevel can, a corpus refuses a document with an end of text in it.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt
from tokenizers import Tokenizer

from implicit_models.hub_access import cached_file
from implicit_models.problems.text.data.byte_tokenizer import byte_tokenizer

BYTES = "bytes"
TOKENIZER_FILE = "tokenizer.json"
CONFIGURATION_FILE = "tokenizer_config.json"

END_OF_TEXT = (  # in this order: of several, the first that is special ends a document
    "<|endoftext|>",  # GPT-2, GPT-NeoX, Falcon, Qwen, ours of bytes
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama, Mistral, BLOOM, T5
    "<eos>",  # Gemma
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "[EOS]",
)

_HUB_NAME = re.compile(r"([\w.-]+/)?[\w.-]+(@[\w./-]+)?")
_UNLIMITED = int(1e30)  # what transformers itself writes for a tokenizer without a longest text
_MOST_IDS = 1_000_000  # without a look at whether there are as many tokens
_BATCH_BYTES = 2**21  # the library needs about 130 bytes for each byte of text it has in hand


class TokenizerError(ValueError):
    """A tokenizer cannot be found, read, or used for what is asked of it."""


@dataclass(frozen=True, eq=False)
class TextTokenizer:
    """A tokenizer of documents.

    Attributes
    ----------
    name
        What it was asked for by: ``bytes``, a path, or a name on the hub.
    library
        The Hugging Face tokenizer, without truncation and padding, to which special tokens in a
        text are ordinary text.
    """

    name: str
    library: Tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        """Send name and content to another process; that special tokens are text is told anew."""
        return _restored, (self.name, self.library.to_str())

    @functools.cached_property
    def is_bytes(self) -> bool:
        """Whether the id of a token is the byte it stands for."""
        return self.digest == _bytes_digest()

    @functools.cached_property
    def vocabulary_size(self) -> int:
        """One more than the largest id.

        Raises
        ------
        TokenizerError
            If there are by far fewer tokens than that: a model has weights for every id.
        """
        tokens = self.library.get_vocab(with_added_tokens=True)
        largest = max(tokens.values())
        if largest > _MOST_IDS and largest > 10 * len(tokens):
            raise TokenizerError(
                f"tokenizer {self.name!r} has {len(tokens)} tokens, and among them the id "
                f"{largest}; number its ids from 0 without gaps"
            )
        return 1 + largest

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned dtype that holds every id."""
        return np.min_scalar_type(self.vocabulary_size - 1)

    @property
    def max_bytes(self) -> int:
        """The longest document, in bytes, that is tokenised: a bound of some 4 GiB of memory."""
        return 2**29 if self.is_bytes else 2**25

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends a document.

        Raises
        ------
        TokenizerError
            If the tokenizer has none of `END_OF_TEXT`.
        """
        token = self._end
        index = None if token is None else self.library.token_to_id(token)
        if index is None:
            raise TokenizerError(
                f"tokenizer {self.name!r} has no end-of-text token: none of "
                f"{', '.join(END_OF_TEXT)} is among its {self.vocabulary_size} tokens; add one of "
                "them to its added_tokens, or choose another tokenizer"
            )
        return index

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of everything that decides which ids a text has, and which there are.

        Truncation, padding, and what is put around a text or makes text of ids do not count; nor
        does what transformers changes when it saves a tokenizer: how the file is laid out, and
        that tokens of the vocabulary become special ones.
        """
        content = json.loads(self.library.to_str())
        plain = self.library.get_vocab(with_added_tokens=False)
        kept = {key: content[key] for key in ("normalizer", "pre_tokenizer", "model")}
        kept["added_tokens"] = [
            {"id": token["id"], "content": token["content"]} if token["special"] else token
            for token in content["added_tokens"]
            if not (token["special"] and token["content"] in plain)
        ]
        text = json.dumps(_without_defaults(kept), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[UInt[np.ndarray, " num_tokens"]]:
        """Tokenise documents, each on its own.

        Texts are handed to the library some 2 MiB at a time, so that memory is bounded by the
        longest of them and the ids.

        Raises
        ------
        TokenizerError
            If a text is longer than `max_bytes`, or the library gives up on one.
        """
        if self.is_bytes:
            return [np.frombuffer(self._checked(t), np.uint8).astype(self.dtype) for t in texts]
        ids: list[np.ndarray] = []
        batch: list[str] = []
        size = 0
        for text in texts:
            num_bytes = len(self._checked(text))
            if batch and size + num_bytes > _BATCH_BYTES:
                ids += self._encode_batch(batch)
                batch, size = [], 0
            batch.append(text)
            size += num_bytes
        return ids + self._encode_batch(batch)

    def decode(self, ids: Iterable[int] | Integer[np.ndarray, " num_tokens"]) -> str:
        """Return the text of ids, special tokens included."""
        return self.library.decode([int(index) for index in ids], skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, for `load_tokenizer` and others.

        transformers' ``AutoTokenizer.from_pretrained(folder)`` then gives the same ids, nothing
        around them, and names the tokens that end a text and stand for the unknown where there are
        any. What ends a text also begins one, as in training, which knows no other beginning.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        library = self.library
        if library.num_special_tokens_to_add(is_pair=False):
            library = Tokenizer.from_str(library.to_str())
            library.post_processor = None  # type: ignore[assignment]
        library.save(str(folder / TOKENIZER_FILE), pretty=False)
        unknown = json.loads(self.library.to_str())["model"].get("unk_token")
        configuration = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": _UNLIMITED,
            "clean_up_tokenization_spaces": False,
            "bos_token": self._end,
            "eos_token": self._end,
            "unk_token": unknown if isinstance(unknown, str) else None,
        }
        text = json.dumps(configuration, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / CONFIGURATION_FILE).write_text(text + "\n", encoding="utf-8")

    @functools.cached_property
    def _end(self) -> str | None:
        """The first of `END_OF_TEXT` that is special, or the first of all: </s> is Gemma's HTML."""
        added = self.library.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        there = [token for token in END_OF_TEXT if self.library.token_to_id(token) is not None]
        return min(there, key=lambda token: token not in special, default=None)

    def _checked(self, text: str) -> bytes:
        encoded = text.encode()
        if len(encoded) > self.max_bytes:
            raise TokenizerError(
                f"a document of {len(encoded):,} bytes is too long for tokenizer {self.name!r}; "
                f"at most {self.max_bytes:,} fit into memory: divide it into several documents"
            )
        return encoded

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        with _panics_named(self.name, "gives up on a text"):
            encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]


def load_tokenizer(name: str | Path) -> TextTokenizer:
    """Load a tokenizer.

    Parameters
    ----------
    name
        ``bytes``: one token for each byte, id the byte's value, and ``<|endoftext|>``, 256. Or the
        path of a ``tokenizer.json`` or of a folder that holds one. Or a name on the Hugging Face
        hub, ``owner/name`` or ``owner/name@revision``.

    Raises
    ------
    TokenizerError
        If there is no such file, or it is not a tokenizer's.
    """
    text = str(name)
    if text == BYTES:
        return TextTokenizer(BYTES, _ready(byte_tokenizer(END_OF_TEXT[0])))
    return TextTokenizer(text, _read(_file_here(name) or _download(text)))


def find_tokenizer(name: str | Path) -> TextTokenizer | None:
    """Load a tokenizer that is on this machine, the hub's cache included; None where it is not.

    The hub is not asked. Parameters and errors as of `load_tokenizer`.
    """
    text = str(name)
    if text == BYTES:
        return load_tokenizer(text)
    file = _file_here(name) or _file_in_cache(text)
    return None if file is None else TextTokenizer(text, _read(file))


def _file_here(name: str | Path) -> Path | None:
    """Return the file of a path; None of a name on the hub."""
    text, path = str(name), Path(name).expanduser()
    if path.is_dir():
        found = path / TOKENIZER_FILE
        if not found.is_file():
            names = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
            raise TokenizerError(
                f"{path}: holds no {TOKENIZER_FILE} (it holds {names}); name the tokenizer's file, "
                "or save the tokenizer there with transformers' save_pretrained"
            )
        return found
    if path.is_file():
        return path
    looks_like_a_path = text.startswith((".", "/", "~")) or text.endswith(".json")
    if isinstance(name, Path) or looks_like_a_path or not _HUB_NAME.fullmatch(text):
        raise TokenizerError(
            f"tokenizer {text!r}: no such file or folder; allowed is {BYTES!r}, the path of a "
            f"{TOKENIZER_FILE} or of a folder that holds one, or a name on the Hugging Face hub"
        )
    return None


@functools.cache
def _bytes_digest() -> str:
    return TextTokenizer(BYTES, _ready(byte_tokenizer(END_OF_TEXT[0]))).digest


def _read(path: Path) -> Tokenizer:
    try:
        with _panics_named(str(path), "is not a tokenizer's file"):
            return _ready(Tokenizer.from_str(path.read_text(encoding="utf-8")))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(
            f"{path}: is not a tokenizer's file ({error}); allowed is the {TOKENIZER_FILE} of a "
            "fast tokenizer"
        ) from None


@contextmanager
def _panics_named(name: str, what: str) -> Iterator[None]:
    """Turn a panic of the library, which is no `Exception`, into an error that names the file."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"tokenizer {name!r} {what} ({error})") from None


def _restored(name: str, content: str) -> TextTokenizer:
    return TextTokenizer(name, _ready(Tokenizer.from_str(content)))


def _ready(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _download(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    repository, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(repository, TOKENIZER_FILE, revision=revision or None))
    except Exception as error:  # of the hub, of the network, of the disk
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TokenizerError(
            f"tokenizer {name!r}: there is no such file or folder here, and the Hugging Face hub "
            f"did not give its {TOKENIZER_FILE} ({reason}); allowed is {BYTES!r}, a path, or a "
            "name on the hub that can be reached or was downloaded before"
        ) from None


def _file_in_cache(name: str) -> Path | None:
    repository, _, revision = name.partition("@")
    return cached_file(repository, TOKENIZER_FILE, revision or None)


def _without_defaults(content: Any) -> Any:
    """Drop what is null or false: files of older versions of the library leave it out."""
    if isinstance(content, dict):
        plain = {key: _without_defaults(value) for key, value in content.items()}
        return {key: v for key, v in plain.items() if v is not None and v is not False}
    if isinstance(content, list):
        return [_without_defaults(value) for value in content]
    return content
