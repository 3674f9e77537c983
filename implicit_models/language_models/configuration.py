"""The configurations of the models, as Hugging Face's."""

import difflib
from dataclasses import fields
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from implicit_models.equilibrium.names import GradientName, SolverName

# Keys that are not fields, but that transformers itself puts into a configuration or its file.
_OF_TRANSFORMERS = {
    "_attn_implementation_autoset",
    "_commit_hash",
    "_from_auto",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "torch_dtype",
}


@strict
class StrictConfig(PreTrainedConfig):
    """A configuration that refuses keys it does not know, and maps of attention.

    Attributes
    ----------
    family
        The name of the family of its models, in `implicit_models.families.table`; it is the
        class's, and not in its files.

    Raises
    ------
    ValueError
        Naming the unknown key, or that ``output_attentions`` is not False.
    huggingface_hub.errors.StrictDataclassError
        Naming the field that is of another type or out of its range, as all of transformers'.
    """

    family: ClassVar[str]
    keys_to_ignore_at_inference = ["cache", "self_iterations", "search", "penalty"]

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse unknown keys, then go on as transformers does."""
        known = {field.name for field in fields(self)}  # type: ignore[arg-type]
        known |= _OF_TRANSFORMERS | set(self.attribute_map)
        if hasattr(self, "rope_parameters"):
            known |= {"rope_theta", "rope_scaling"}
        for key in kwargs.keys() - known:
            close = difflib.get_close_matches(key, known, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(
                f"{type(self).__name__} has no key {key!r}{meant}; allowed are "
                f"{', '.join(sorted(field for field in known if not field.startswith('_')))}"
            )
        self.output_attentions = kwargs.pop("output_attentions", False)
        super().__post_init__(**kwargs)

    @property
    def output_attentions(self) -> bool:
        """Whether attention maps are returned, which no model here keeps."""
        return False

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        refuse_attention_maps(value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any):
        """Read a configuration; one of another family is refused."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(
                f"model_type is {found!r}; a {cls.__name__} has {cls.model_type!r}. Use "
                "AutoModelForCausalLM, or make an implicit model of it: python -m "
                "implicit_models.families.upcycling SOURCE TARGET"
            )
        return super().from_dict(config_dict, **kwargs)


@strict
class ImplicitConfig(StrictConfig):
    """What all configurations of models of our stack have in common.

    Attributes
    ----------
    vocab_size
        Number of token ids, and of logits.
    pad_vocab_size_multiple
        The embedding's rows are filled up to a multiple of this; no logit belongs to the rest.
    hidden_size
        Width of the residual stream (d_model).
    num_hidden_layers
        Number of blocks.
    rms_norm_eps
        Added to the mean square in every norm.
    initializer_range
        Standard deviation of the initial embeddings, and of a head that is not tied to them.
    weight_normalisation
        Learn direction and length of the cell's weights apart.
    label_alignment
        Whether ``labels`` are shifted by the model: ``next_token``, so that they may be a copy of
        the inputs, or ``aligned``, for state tracking.
    implicit
        Whether the stack is iterated to a fixed point, with the embeddings injected.
    start
        Where the search starts: ``zeros``, or the ``embeddings`` (for upcycled models).
    tolerance
        Relative residual at which a token has converged, where no gradient is wanted.
    max_self_iterations
        Evaluations after which a token is given up, where no gradient is wanted; searches of whole
        texts, as Anderson's, may take 512 where that is more, unless a call says otherwise.
    window, patience
        Of the sliding window in that search. Where states are to be kept, as in word problems, 8
        and 12 were enough in models of A5, and 20 and 12 were not; see docs/equilibrium.md.
    solver, best_so_far
        ``picard``, ``anderson`` or ``broyden``, and whether the iterate that followed the smallest
        residual is returned: of every search to a tolerance. Windows are for ``picard`` without
        ``best_so_far`` alone; other searches are over whole texts.
    damping
        Of every search and of the phantom steps.
    training_phase
        What ``model(..., labels=...)`` does where gradients are wanted and no phase is given:
        ``free`` or ``bounded``.
    bounded_self_iterations, bounded_phantom_steps
        Self-iterations of the bounded phase, all of them differentiated; or, where the second is
        not None, none of them, and so many phantom steps after them.
    training_tolerance, training_max_self_iterations
        Of the search of the free phase, over whole sequences.
    gradient, phantom_steps, unrolled_steps
        Of the free phase: ``phantom`` or ``unrolled`` with as many steps, or ``implicit_function``.
    provenance
        How the model was made, for its card: plain names and values.
    """

    vocab_size: int = 50_277
    pad_vocab_size_multiple: int = 1
    hidden_size: int = 768
    num_hidden_layers: int = 24
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    weight_normalisation: bool = False
    label_alignment: Literal["next_token", "aligned"] = "next_token"
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    implicit: bool = True
    start: Literal["zeros", "embeddings"] = "zeros"
    tolerance: float = 0.01
    max_self_iterations: int = 64
    window: int = 64
    patience: int = 12
    solver: SolverName = "picard"
    best_so_far: bool = False
    damping: float = 0.8
    training_phase: Literal["free", "bounded"] = "free"
    bounded_self_iterations: int = 4
    bounded_phantom_steps: int | None = None
    training_tolerance: float = 0.05
    training_max_self_iterations: int = 24
    gradient: GradientName = "phantom"
    phantom_steps: int | None = 4
    unrolled_steps: int | None = None
    provenance: dict[str, Any] | None = None

    def validate_common(self) -> None:
        """Check every range that the families share."""
        counts = ["vocab_size", "pad_vocab_size_multiple", "hidden_size", "num_hidden_layers"]
        counts += ["max_self_iterations", "window", "patience", "bounded_self_iterations"]
        counts += ["training_max_self_iterations"]
        steps = ("bounded_phantom_steps", "phantom_steps", "unrolled_steps")
        counts += [name for name in steps if getattr(self, name) is not None]
        check_positive(self, *counts)
        for name in ("tolerance", "training_tolerance"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 0 and 1")
        if not 0.0 < self.damping < 2.0:
            raise ValueError(f"damping is {self.damping}; it must lie between 0 and 2")
        if self.training_phase == "free":
            self._check_gradient()
        for name in ("initializer_range", "rms_norm_eps"):
            if getattr(self, name) <= 0.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")

    def _check_gradient(self) -> None:
        name = f"{self.gradient}_steps"
        if getattr(self, name, 0) is None:
            raise ValueError(
                f"{name} is None and gradient is {self.gradient!r}; it must be at least 1"
            )
        if self.gradient == "unrolled" and self.damping != 1.0:
            raise ValueError(
                f"damping is {self.damping} and gradient is 'unrolled', whose steps are not "
                "damped; it must be 1.0"
            )

    def validate_architecture(self) -> None:
        """Check that the sizes fit together."""

    @property
    def num_embeddings(self) -> int:
        """Rows of the embedding."""
        multiple = self.pad_vocab_size_multiple
        return -(-self.vocab_size // multiple) * multiple


def refuse_attention_maps(wanted: bool | None) -> None:
    """Raise a ValueError where ``output_attentions`` is wanted."""
    if wanted:
        raise ValueError(
            f"output_attentions is {wanted}; these models keep no attention maps, and take False"
        )


def check_positive(config: PreTrainedConfig, *names: str) -> None:
    """Raise a ValueError that names the first of some fields that is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} is {getattr(config, name)}; it must be at least 1")
