"""A model of ours as transformers sees it: strict files, a card, weights drawn from a seed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from implicit_models.checksums import CHECKSUMS
from implicit_models.language_models.model_card import write_card


class ModelFileError(ValueError):
    """A model's folder does not hold what it should."""


def list_wrong_weights(info: Mapping[str, Any], ignores_sizes: bool = False) -> str:
    """List what transformers says of loading: weights missing, unexpected, or of another size."""
    sizes = () if ignores_sizes else info["mismatched_keys"]
    wrong = {
        "missing": info["missing_keys"],
        "unexpected": info["unexpected_keys"],
        "mismatched": {
            f"{name} (found {tuple(found)}, needed {tuple(needed)})"
            for name, found, needed in sizes
        },
    }
    return "; ".join(
        f"{kind}: {', '.join(sorted(names))}" for kind, names in wrong.items() if names
    )


class StrictPreTrainedModel(PreTrainedModel):
    """A model whose files must hold exactly its weights, and that leaves a card beside them."""

    base_model_prefix = "model"

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any):
        """Load a model, in evaluation mode; arguments as transformers'.

        Raises
        ------
        ModelFileError
            Where a weight is missing, unexpected or of another shape, or the file is broken.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        ignores_sizes = kwargs.pop("ignore_mismatched_sizes", False)
        source = pretrained_model_name_or_path
        try:
            # Told not to ignore sizes, transformers raises an error without the names.
            model, info = super().from_pretrained(  # type: ignore[misc]
                source, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        except SafetensorError as error:
            raise ModelFileError(f"the weights in {source} cannot be read: {error}") from None
        wrong = list_wrong_weights(info, ignores_sizes)
        if wrong:
            raise ModelFileError(
                f"the weights in {source} are not those of a {cls.__name__}: {wrong}"
            )
        _align(model)
        return (model, info) if wants_info else model

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        """Write the configuration, the weights and a card; arguments as transformers'.

        Checksums of what was in the folder before are removed at the end, by which a folder that is
        half written is not taken for a model; before it where the folder is pushed to the hub.
        """
        before = Path(save_directory, CHECKSUMS)
        if is_main_process:
            if kwargs.get("push_to_hub"):
                before.unlink(missing_ok=True)
            write_card(self, Path(save_directory))  # first: it may be pushed with the rest
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            before.unlink(missing_ok=True)

    def _get_name(self) -> str:
        # By this name Trainer's label smoothing decides whether it shifts labels.
        aligned = getattr(self.config, "label_alignment", "next_token") == "aligned"
        return f"{super()._get_name()}{'[aligned]' if aligned else ''}"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.weight is self.get_input_embeddings().weight:
            return  # a tied head
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=self.config.initializer_range)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # What transformers does with custom code leaves out modules whose weights are all in their
        # children, which here are drawn by their owner.
        super()._initialize_weights(module, is_custom_code=False)

    def initialise(self, seed: int) -> None:
        """Draw all weights anew; they depend on the seed and on the kind of device alone."""
        gpus = sorted({each.device.index for each in self.parameters() if each.is_cuda})
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu].manual_seed(seed)
            self.apply(self._init_weights)


@torch.no_grad()
def _align(model: nn.Module) -> None:
    """Move weights that lie askew in their file's memory: sums over such may round otherwise."""
    for weight in model.parameters():
        if weight.device.type == "cpu" and weight.data_ptr() % 64:
            weight.data = weight.data.clone()
