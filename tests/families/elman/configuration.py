from huggingface_hub.dataclasses import strict

from implicit_models.families.registration import registered
from implicit_models.language_models.configuration import ImplicitConfig, check_positive


@registered
@strict
class ElmanConfig(ImplicitConfig):
    family = "elman"
    model_type = "tests_elman"

    state_size: int = 16

    def validate_architecture(self) -> None:
        self.validate_common()
        check_positive(self, "state_size")
