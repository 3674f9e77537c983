"""Where each family is. Nothing of it is imported before it is asked for."""

#: The class of each family's parameters, whose module imports no torch. In the same package are the
#: modules `configuration` (of families with models of their own; it imports no model) and `family`,
#: whose FAMILY is a `Family`.
FAMILIES = {
    "mamba2": "implicit_models.families.mamba2.parameters:Mamba2Parameters",
    "llama": "implicit_models.families.llama.parameters:LlamaParameters",
    "lstm": "implicit_models.families.lstm.parameters:LSTMParameters",
    "upcycled": "implicit_models.families.upcycled.parameters:UpcycledParameters",
    "huggingface": "implicit_models.families.huggingface.parameters:HuggingFaceParameters",
}

#: The family of every configuration that names none: transformers' own.
OTHERS = "huggingface"


def package_of(family: str) -> str:
    """Return the package that holds a family."""
    return FAMILIES[family].partition(":")[0].rpartition(".")[0]
