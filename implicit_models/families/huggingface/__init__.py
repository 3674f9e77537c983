"""Any causal language model of transformers, to compare with."""
