"""Text: language models of corpora."""
