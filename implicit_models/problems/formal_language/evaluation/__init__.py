"""How right the answers of models of formal languages are."""
