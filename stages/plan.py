"""Print what trainings will take, before anyone spends money: GPU memory, FLOPs, days, storage.

python -m stages.plan preset=pile_1.3b_mamba2 gpus=32 micro_batch=4
"""

import inspect
import signal
import sys
import tempfile
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import preset_and_settings
from implicit_models.parameters.errors import closest_name
from stages.chosen_parameters import write_parameters
from stages.command_line import mistakes
from stages.plan_parameters import PlanParameters, read_trainings

if TYPE_CHECKING:
    from stages.plan_entries import PlannedPhase

USAGE = "implicit-models plan [PRESET] [gpus=N] [KEY=VALUE ...]"


class Plan(NamedTuple):
    """What was planned: where the parameters come from, what was asked, all phases, other entries.

    Attributes
    ----------
    others
        Names and families of the entries that cannot be planned.
    """

    source: str
    options: PlanParameters
    phases: "list[PlannedPhase]"
    others: list[str]


def main(arguments: Sequence[str]) -> str:
    """Return the plan of a preset, or of params.yaml where none is named; nothing is written.

    Settings of parameters may follow, as after ``dvc exp run -S``: ``monitoring.log_every=10``.
    """
    plan = make_plan(arguments)

    from stages.plan_text import plan_text

    return plan_text(*plan)


def make_plan(arguments: Sequence[str]) -> Plan:
    """Plan a preset, or params.yaml, as the command does.

    Raises
    ------
    ParameterError
        Where there is no such preset, or something of it is wrong.
    """
    options, overrides = read_options(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "params.yaml")
        source = write_parameters(options.preset, overrides, path)
        try:
            trainings, others = read_trainings(path, options.run)
        except ParameterError as error:
            raise ParameterError(str(error).replace(str(path), source)) from None

    from stages.plan_entries import plan_entries

    return Plan(source, options, plan_entries(trainings, options), others)


def read_options(arguments: Sequence[str]) -> tuple[PlanParameters, list[str]]:
    """Divide ``key=value`` into what is asked of the plan, and settings of parameters.

    Raises
    ------
    ParameterError
        Naming what is neither.
    """
    fields = PlanParameters.model_fields
    preset, settings = preset_and_settings(arguments)
    values: dict[str, Any] = {"preset": preset}
    overrides = []
    for argument in settings:
        key, equals, text = argument.partition("=")
        if (equals and "." in key) or key.startswith(("+", "~")):
            overrides.append(argument)
        elif not equals or key not in fields:
            closest = closest_name(key, fields)
            raise ParameterError(
                f"{argument} is not known; the closest is {closest}= (valid: {', '.join(fields)}, "
                f"or a setting of parameters such as monitoring.log_every=10); usage: {USAGE}"
            )
        else:
            values[key] = _typed(key, text, fields[key].annotation)
    return PlanParameters(**values), overrides


def _typed(key: str, text: str, hint: Any) -> Any:
    kind = next((kind for kind in (int, float) if kind in (hint, *typing.get_args(hint))), str)
    try:
        return kind(text)
    except ValueError:
        message = f"{key} = {text!r} is not allowed; allowed is {kind.__name__}"
        raise ParameterError(message) from None


def _help() -> str:
    """Return how it is used, and what may be asked of a plan."""
    told = inspect.cleandoc(PlanParameters.__doc__ or "").split("----------\n")[1]
    return f"usage: {USAGE}\n\n{(__doc__ or '').strip()}\n\noptions, as KEY=VALUE:\n{told}"


def _run(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `plan | head` ends when head has enough
    if {"-h", "--help"} & {*arguments}:
        print(_help())
        return
    from implicit_models.cost.devices import DeviceFactsError

    with mistakes(DeviceFactsError, OSError):
        print(main(arguments))


if __name__ == "__main__":
    _run(sys.argv[1:])
