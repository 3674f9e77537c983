"""Entries of the tables of models on data that they were not trained on."""

from typing import ClassVar

from implicit_models.parameters import Parameters


class TestedApart(Parameters):
    """A model on data that it was not trained on.

    Attributes
    ----------
    model
        A model's folder, ``models/NAME/final`` or any other that transformers load.
    data_key
        The key that names the data.
    label
        What the entry is called among the parameters that are tracked.
    stage
        The stage of dvc.yaml.
    results_file, headline_file
        Where its metrics and the few of them for a table go; None where there is no such table.
    tracks_headline
        Whether only the few are tracked, and not all metrics.
    """

    data_key: ClassVar[str]
    label: ClassVar[str]
    stage: ClassVar[str]
    results_file: ClassVar[str]
    headline_file: ClassVar[str | None] = None
    tracks_headline: ClassVar[bool] = False

    model: str

    @property
    def data(self) -> str:
        """Name of the data."""
        return getattr(self, self.data_key)

    @property
    def metric_prefix(self) -> str:
        """The beginning of the tracked metrics' names."""
        return ""

    def evaluation(self, section: Parameters | None) -> Parameters:
        """Return what the evaluation is told: the entry itself, or what its kind's section says.

        Parameters
        ----------
        section
            The part of the section ``evaluation`` that is about its kind of problem; None where
            the kind has none.
        """
        return self if section is None else section
