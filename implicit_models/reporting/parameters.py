"""The section ``report`` of params.yaml."""

from pydantic import Field

from implicit_models.parameters import Parameters


class ReportParameters(Parameters):
    """What the report calls a success.

    Attributes
    ----------
    success_threshold
        Accuracy from which a run counts as solved, of problems that say so (word problems, by the
        last 10 tokens): at the longest evaluated length that is not longer than the training
        length, and at each longer one.
    """

    success_threshold: float = Field(default=0.99, gt=0.0, le=1.0)
