"""How models of it are evaluated and swept."""
