"""The section ``report`` of params.yaml."""

from dataclasses import dataclass

from implicit_models.parameters import setting, validate


@dataclass(frozen=True, kw_only=True)
class ReportParameters:
    """What the report calls a success.

    Attributes
    ----------
    success_threshold
        Accuracy of the last 10 tokens, at the longest evaluated length that is not longer than
        the training length, from which a run counts as solved.
    """

    success_threshold: float = setting(default=0.99, above=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        """Check every range."""
        validate(self)
