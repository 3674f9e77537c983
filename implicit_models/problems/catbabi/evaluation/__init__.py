"""How a model of it is evaluated and swept."""
