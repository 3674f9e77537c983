"""Implicit language models: fixed points of ordinary Mamba2 and Llama stacks."""

__version__ = "0.1.0"
