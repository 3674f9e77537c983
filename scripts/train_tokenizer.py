"""Train a small byte-level BPE tokenizer on text files, for experiments of laptop size."""

import argparse
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"


def main() -> None:
    """Write a tokenizer.json that every corpus here, and transformers, can read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="a .txt file, or a folder with some at any depth")
    parser.add_argument("output", type=Path, help="the file to write, such as text/tokenizer.json")
    parser.add_argument("--vocabulary-size", type=int, default=2048)
    chosen = parser.parse_args()
    source = chosen.source
    files = [source] if source.is_file() else sorted(source.rglob("*.txt"))
    if not files:
        sys.exit(
            f"error: {source}: no such .txt file, or a folder without any; name one that is there"
        )
    if chosen.vocabulary_size < 257:
        sys.exit(
            f"error: --vocabulary-size is {chosen.vocabulary_size}; allowed is at least 257, the "
            "256 bytes and the end of a text"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=chosen.vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train([str(file) for file in files], trainer)
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(chosen.output))
    print(f"{chosen.output}: {tokenizer.get_vocab_size()} tokens, from {len(files)} files")


if __name__ == "__main__":
    main()
