"""The tokenizer whose tokens are the 256 bytes."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer(end_of_text: str) -> Tokenizer:
    """Return a byte-pair encoding that merges nothing, and a token more, which ends a text.

    Its alphabet writes every byte visibly.
    """
    vocabulary = {character: byte for byte, character in enumerate(_byte_alphabet())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end_of_text, special=True, normalized=False)])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """Return the characters by which byte-level tokenizers write the bytes 0 .. 255.

    The printable characters of Latin-1 stand for themselves; the other bytes, in order, for the
    characters from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
