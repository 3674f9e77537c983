"""Look at why models lose the product of a word problem: their states at each position.

python -m implicit_models.problems.word_problem.diagnose a5_implicit_mamba2 a5_lstm --length 160
"""

import argparse
import csv
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from implicit_models.files import write_whole
from implicit_models.parameters import ParameterError, read_content, read_section
from implicit_models.parameters.errors import closest_name
from implicit_models.parameters.names import TRAINED

if TYPE_CHECKING:
    from implicit_models.problems.word_problem.evaluation.diagnosis import Diagnosis
    from implicit_models.problems.word_problem.evaluation.pasts import PastDistance

FOLDER = Path("results", "diagnosis")
_SHOWN = 8  # positions in the table
_EXPONENT_SEQUENCES = 4  # are read for the exponents


def main(
    models: Sequence[str],
    dataset: str | None,
    length: int,
    sequences: int,
    radii: int,
    seed: int,
    zeroed: Sequence[str] = (),
    exponents: int = 0,
) -> str:
    """Diagnose models, write a table of each and a picture of all, and return what to print.

    Parameters
    ----------
    models
        Entries of params.yaml, or folders of models.
    dataset
        An entry of ``datasets`` with the group to ask for; None: what the first entry learns.
    length, sequences, seed
        Of the word problems, which are drawn anew.
    radii
        The sequences whose spectral radii are estimated.

    zeroed
        Tensors of the carry that are set to zero after every token; radii and exponents, which are
        those of the model as it is, are left out then.
    exponents
        How many Lyapunov exponents of the carry are estimated.

    Raises
    ------
    ParameterError
        Where a name is wrong, or data is no word problem.
    SourceError
        Where a model hands on no state of a fixed size.
    """
    content = read_content()
    tables = {table: _sections(content, table) for table in TRAINED}
    entries = {name: entry for found in tables.values() for name, entry in found.items()}
    stages = {name: TRAINED[table] for table, found in tables.items() for name in found}
    folders = {name: _folder(name, stages) for name in models}
    problem = _dataset(dataset, models, entries)

    import numpy as np

    from implicit_models.families.family import initial_memory
    from implicit_models.language_models.forward import is_implicit
    from implicit_models.language_models.phases import search_settings
    from implicit_models.language_models.placement import default_device
    from implicit_models.language_models.serialisation import load_model
    from implicit_models.problems.word_problem.data import groups
    from implicit_models.problems.word_problem.data.sequences import (
        draw_merging,
        prefix_products,
        sample_inputs,
    )
    from implicit_models.problems.word_problem.evaluation.diagnosis import diagnose
    from implicit_models.problems.word_problem.evaluation.pasts import past_distance

    table = groups.multiplication_table(problem.group)
    generator = np.random.default_rng(seed)
    trained = problem.train.length
    settings: dict[str, Any] = {
        "num_sequences": sequences,
        "identity_probability": problem.identity_probability,
        "monoid_sampling": problem.monoid_sampling,
    }
    inputs = sample_inputs(generator, groups.parse(problem.group), length=length, **settings)
    pasts = draw_merging(generator, problem.group, length=trained, **settings)
    labels = prefix_products(table, inputs)
    loaded = {name: load_model(folder, default_device()) for name, folder in folders.items()}
    for name, model in loaded.items():
        size = model.config.get_text_config().vocab_size
        if size != len(table):
            raise ParameterError(
                f"{name} knows {size} tokens and {problem.group} has {len(table)} elements; "
                "allowed is a model that was trained on this group"
            )
        tensors = initial_memory(model, 1).tensors()
        for tensor in zeroed:
            if tensor not in tensors:
                raise ParameterError(
                    f"--zeroed {tensor}: {name} carries no such tensor; allowed are "
                    f"{', '.join(tensors)}"
                )
    parameters = _evaluation(length, sequences)
    radii, exponents = (0, 0) if zeroed else (radii, exponents)
    found, left = {}, {}
    for name, model in loaded.items():
        search = search_settings(parameters, model.config) if is_implicit(model) else None
        found[name] = diagnose(
            model, inputs, labels, search, num_radius_sequences=radii, zeroed=zeroed
        )
        if len(pasts):
            products = prefix_products(table, pasts)
            left[name] = past_distance(model, pasts, products, trained, search, zeroed)
    without = "".join(f"_without_{tensor}" for tensor in zeroed)
    _write(found, left, trained, without)
    told = [_in_words(name + without, each, left.get(name)) for name, each in found.items()]
    if exponents:
        burn_in = min(trained, (length - 1) // 2)
        settings |= {"num_sequences": min(sequences, _EXPONENT_SEQUENCES)}
        inputs = sample_inputs(generator, groups.parse(problem.group), length=length, **settings)
        told.append(_exponents(loaded, inputs, parameters, exponents, burn_in))
    return "\n\n".join([*told, f"in {FOLDER}/"])


def _exponents(
    loaded: Mapping[str, Any], inputs: Any, parameters: Any, count: int, burn_in: int
) -> str:
    """Estimate the largest Lyapunov exponents, write them, and return them as a table."""
    from implicit_models.language_models.forward import is_implicit
    from implicit_models.language_models.phases import search_settings
    from implicit_models.problems.word_problem.evaluation.exponents import lyapunov_exponents

    found: dict[str, list[float]] = {}
    for name, model in loaded.items():
        search = search_settings(parameters, model.config) if is_implicit(model) else None
        found[name] = lyapunov_exponents(
            model, inputs, search, num_exponents=count, burn_in=burn_in
        ).tolist()
    most = max(len(values) for values in found.values())  # a small state has fewer
    _write_csv(
        FOLDER / "exponents.csv",
        [
            {"model": name} | {str(n + 1): (values[n : n + 1] or [None])[0] for n in range(most)}
            for name, values in found.items()
        ],
    )
    width = max(len(name) for name in loaded)
    lines = (
        "  ".join([name.ljust(width), *(f"{value:6.3f}" for value in values)])
        for name, values in found.items()
    )
    return "\n".join(["Lyapunov exponents of the carry, per token, the largest first", *lines])


def _sections(content: Mapping[str, Any], table: str) -> Mapping[str, Mapping[str, Any]]:
    found = content.get(table) or {}
    wrong = (
        {table: found}
        if not isinstance(found, Mapping)
        else {
            f"{table}.{name}": each for name, each in found.items() if not isinstance(each, Mapping)
        }
    )
    for key, value in wrong.items():
        raise ParameterError(f"params.yaml: {key} = {value!r} is not allowed; allowed is a section")
    return found


def _folder(name: str, stages: Mapping[str, str]) -> Path:
    """Return the folder of a model; of an entry it is known which stage makes it."""
    if name in stages:
        folder = Path("models", name, "final")
        if not folder.is_dir():
            raise ParameterError(
                f"{name} has no model yet, {folder} is not there; "
                f"`dvc repro {stages[name]}@{name}` makes it"
            )
        return folder
    if Path(name, "config.json").is_file():
        return Path(name)
    closest = f"; the closest entry is {closest_name(name, stages)}" if stages else ""
    raise ParameterError(f"{name} is no entry of params.yaml and no folder of a model{closest}")


def _dataset(given: str | None, models: Sequence[str], entries: Mapping[str, Any]) -> Any:
    from implicit_models.problems.word_problem.parameters import WordProblemParameters

    known = _sections(read_content(), "datasets")
    words = [name for name in known if known[name].get("kind") == "word_problem"]
    learnt = [entries[name].get("dataset") for name in models if name in entries]
    name = given or next(iter(learnt), None)
    if name is None:
        raise ParameterError(
            f"--dataset is missing; {models[0]} is no entry of params.yaml, which would say it; "
            f"allowed are {', '.join(words) or 'none: params.yaml has no word problem'}"
        )
    if name not in words:
        raise ParameterError(
            f"{name} is no word problem of params.yaml; allowed are {', '.join(words) or 'none'}"
        )
    return read_section(f"datasets.{name}", WordProblemParameters)


def _evaluation(length: int, sequences: int) -> Any:
    """Return how word problems are evaluated, as params.yaml or else the defaults have it."""
    from implicit_models.problems.word_problem.parameters import WordProblemEvaluationParameters

    if "word_problem" in _sections(read_content(), "evaluation"):
        return read_section("evaluation.word_problem", WordProblemEvaluationParameters)
    return WordProblemEvaluationParameters(
        lengths=(length,), num_sequences=sequences, num_mode_sequences=0
    )


def _write(
    found: "Mapping[str, Diagnosis]",
    left: "Mapping[str, PastDistance]",
    training_length: int,
    without: str,
) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    from implicit_models.problems.word_problem.report.diagnosis import diagnosis_figure
    from implicit_models.reporting.figures.style import theme

    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = {name: diagnosis.rows() for name, diagnosis in found.items()}
    pasts = {name: each.rows() for name, each in left.items()}
    for ending, tables in (("", rows), ("_pasts", pasts)):
        for name, table in tables.items():
            _write_csv(FOLDER / f"{name.strip('/').replace('/', '_')}{without}{ending}.csv", table)
    picture = io.StringIO()
    with theme("light"):
        figure = diagnosis_figure(rows, pasts, training_length)
        FigureCanvasSVG(figure).print_svg(picture, metadata={"Date": None})
    write_whole(FOLDER / f"diagnosis{without}.svg", picture.getvalue())


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def _in_words(name: str, found: "Diagnosis", past: "PastDistance | None") -> str:
    """Return a table of some positions, and one of what is left of different pasts."""
    told = [f"{name}, {found.num_sequences} sequences", *_table(found.rows())]
    if past is not None:
        told += [
            f"{past.num_pairs} pairs of different pasts with one product",
            *_table(past.rows()),
        ]
    return "\n".join(told)


def _table(rows: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Return the lines of a table of some rows, the last one included; the first key heads it."""
    shown = sorted({round(len(rows) ** (n / (_SHOWN - 1))) for n in range(_SHOWN)})
    heading, *quantities = rows[0]
    lines = [[heading.replace("_", " "), *(str(rows[place - 1][heading]) for place in shown)]]
    for key in quantities:
        values = [rows[place - 1][key] for place in shown]
        if any(value is not None for value in values):
            cells = ("" if value is None else f"{value:.3g}" for value in values)
            lines.append([key.replace("_", " "), *cells])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def _run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m implicit_models.problems.word_problem.diagnose",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", help="entries of params.yaml, or folders of models")
    parser.add_argument("--dataset", help="an entry of datasets (default: the first model's)")
    parser.add_argument("--length", type=int, default=160, help="tokens (default: 160)")
    parser.add_argument("--sequences", type=int, default=256, help="to read (default: 256)")
    parser.add_argument("--radii", type=int, default=8, help="of these many (default: 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the sequences (default: 0)")
    parser.add_argument(
        "--zeroed", nargs="+", default=(), metavar="TENSOR",
        help="tensors of the carry that are set to zero after every token, such as 0.state",
    )  # fmt: skip
    parser.add_argument("--exponents", type=int, default=8, help="Lyapunov exponents (default: 8)")
    chosen = parser.parse_args()
    if chosen.length < 3 or chosen.sequences < 2:
        parser.error("allowed are --length from 3 and --sequences from 2")
    if min(chosen.radii, chosen.seed, chosen.exponents) < 0:
        parser.error("allowed are --radii, --seed and --exponents from 0")

    try:
        sys.stdout.write(f"{main(**vars(chosen))}\n")
    except (ValueError, OSError) as error:  # parameters, sources and files of models
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        sys.exit(2)


if __name__ == "__main__":
    _run()
