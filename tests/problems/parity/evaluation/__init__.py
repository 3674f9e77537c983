"""How models of parities are tested."""
