"""The command ``implicit-models``: one front of the commands that the repository has.

Each subcommand hands over to what exists, in a process where that needs torch or DVC; nothing heavy
is imported before it is known what is asked.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.handing_over import fail, hand_over, mistakes, repository

app = typer.Typer(
    name="implicit-models",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, evaluate and compare implicit language models.\n\n"
    "Begin with `implicit-models presets`, and `implicit-models run quick`. "
    "Every command has a `--help` of its own.",
)

Preset = Annotated[str, typer.Argument(help="A file of conf/preset, without .yaml.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings on top of the preset, such as runs.NAME.seed=1.", metavar="KEY=VALUE"
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="How many at once on this machine.")]


def main() -> None:
    """Run the command line in the repository around the working directory."""
    try:
        app(prog_name="implicit-models")
    except KeyboardInterrupt:
        sys.exit(130)


@app.command()
def run(
    preset: Preset,
    overrides: Overrides = None,
    seeds: Annotated[
        str | None, typer.Option(help="Have every model under each of these, such as 0,1,2.")
    ] = None,
    jobs: Jobs = 1,
) -> None:
    """Train, evaluate and report a preset.

    Writes params.yaml, and brings everything up to date: what was run before is not run again.
    With `--jobs 2` or more as a flow of Prefect, whose branches run at once.

    Example: `implicit-models run quick runs.s3_implicit_mamba2.seed=1`
    """
    root = repository()
    from implicit_models.parameters.composition import preset_and_settings
    from pipelines.closing import closing_words
    from pipelines.experiment import reproduce
    from pipelines.presets import kept_words, parameters_for
    from pipelines.seeds import parse_seeds

    with mistakes():
        parsed = parse_seeds(seeds) if seeds else ()
        named, settings = preset_and_settings([preset, *(overrides or ())])
        if named is None:
            fail(f"no preset is named before {preset}; `implicit-models presets` lists them")
        with parameters_for(root, named, parsed, settings) as kept:
            if kept is not None:
                print(kept_words(root, kept))
            if jobs > 1:
                from pipelines.reproduce import main as flow

                sys.exit(flow(["--jobs", str(jobs)]))
            status = reproduce(root)
            if not status:
                print(closing_words(root))
            sys.exit(status)


@app.command()
def check(
    preset: Annotated[
        str | None,
        typer.Argument(help="A file of conf/preset, without .yaml; none: params.yaml as it is."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Check all of a preset, before anything runs.

    Example: `implicit-models check quick runs.s3_implicit_mamba2.seed=1`
    """
    hand_over("stages.check", *([preset] if preset else []), *(overrides or ()))


@app.command()
def plan(
    preset: Preset,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="gpus=32, micro_batch=4, ... (python -m stages.plan --help has all), and settings "
            "of the preset.",
            metavar="KEY=VALUE",
        ),
    ] = None,
) -> None:
    """Show what a preset will take: memory, FLOPs, days, storage.

    Example: `implicit-models plan pile_1.3b_mamba2 gpus=32`
    """
    hand_over("stages.plan", preset, *(settings or ()))


@app.command()
def sweep(
    values: Annotated[
        list[str], typer.Argument(help="What is varied, and over what.", metavar="KEY=A,B")
    ],
    preset: Annotated[str | None, typer.Option(help="To start from (default: laptop).")] = None,
    jobs: Jobs = 1,
    name: Annotated[str, typer.Option(help="With what experiments' names begin.")] = "sweep",
    limit: Annotated[
        str | None,
        typer.Option(help="A global concurrency limit of Prefect to hold a slot of (docs/sweeps)."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="That each point has (default: 1 where there are any; docs/sweeps)."),
    ] = None,
) -> None:
    """Run every combination of some values, as experiments of DVC, and compare them.

    Example: `implicit-models sweep runs.s3_implicit_mamba2.free.max_steps=8,16 --preset quick`
    """
    given = [*values, "--jobs", str(jobs), "--name", name]
    given += ["--preset", preset] if preset else []
    given += ["--limit", limit] if limit else []
    given += ["--gpus", str(gpus)] if gpus is not None else []
    hand_over("pipelines.sweep", *given)


@app.command()
def report() -> None:
    """Write the report again from the results that are there, and print the scores.

    Trains nothing: results that are not up to date are refused. Example: `implicit-models report`
    """
    root = repository()
    from pipelines.closing import closing_words
    from pipelines.evaluating import report_entries

    if not any(Path("results", "runs").glob("*/*.json")):
        fail("there are no results yet; `implicit-models run PRESET` makes them")
    with mistakes():
        status = report_entries(root)
    if not status:
        print(closing_words(root))
    sys.exit(status)


@app.command()
def compare(
    runs: Annotated[
        list[str], typer.Argument(help="Entries of the last report, two or more.", metavar="RUN")
    ],
) -> None:
    """Show the scores and costs of runs side by side.

    Example: `implicit-models compare a5_implicit_mamba2 a5_lstm`
    """
    root = repository()
    from pipelines.comparing import check_entries, comparison
    from pipelines.results import read_results

    with mistakes():
        check_entries(root, runs)
        table = comparison(read_results(root), runs)
    from rich.console import Console

    Console().print(table)


@app.command()
def evaluate(
    model: Annotated[
        str, typer.Argument(help="An entry of params.yaml; with --tasks the folder of any model.")
    ],
    tasks: Annotated[
        str | None, typer.Option(help="Tasks of lm-eval, such as piqa,arc_easy.")
    ] = None,
) -> None:
    """Evaluate a model: an entry on its own test data, or any model on tasks of lm-eval.

    Trains nothing: an entry whose training is not up to date is refused.

    Example: `implicit-models evaluate a5_lstm`, or
    `implicit-models evaluate models/my_run/final --tasks piqa`
    """
    if tasks:
        source = _model(model)
        harness = "implicit_models.problems.downstream.evaluation.harness"
        given = ["--model", "implicit", "--model_args", f"pretrained={source}"]
        hand_over(harness, *given, "--tasks", tasks)
    root = repository()
    from pipelines.evaluating import evaluate_entry

    with mistakes():
        status = evaluate_entry(root, model)
    if not status:
        from rich.console import Console

        from pipelines.comparing import headline

        Console().print(headline(root, model))
    sys.exit(status)


@app.command()
def generate(
    model: Annotated[
        str, typer.Argument(help="An entry of params.yaml, a model's folder, or OWNER/NAME.")
    ],
    prompt: Annotated[
        str, typer.Argument(help="Text; numbers of tokens where the model has no tokenizer.")
    ],
    tokens: Annotated[int, typer.Option(min=1, help="How many to add.")] = 20,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of sampling.")] = 0,
) -> None:
    """Continue a prompt with a model.

    Example: `implicit-models generate a5_implicit_mamba2 "3 17 42" --tokens 5`
    """
    options = ["--tokens", str(tokens), "--temperature", str(temperature), "--seed", str(seed)]
    hand_over("stages.generate", _model(model), prompt, *options)


@app.command()
def serve(
    model: Annotated[
        str, typer.Argument(help="An entry of params.yaml, a model's folder, or OWNER/NAME.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = 8000,
) -> None:
    """Serve a model of text over HTTP, with OpenAI's completions.

    Example: `implicit-models serve models/my_run/final --port 8000`
    """
    hand_over("stages.serve", _model(model), "--host", host, "--port", str(port))


@app.command()
def diagnose(
    models: Annotated[list[str], typer.Argument(help="Entries, or folders.", metavar="MODEL")],
    length: Annotated[int, typer.Option(min=3, help="Tokens of a sequence.")] = 160,
    sequences: Annotated[int, typer.Option(min=2, help="How many to read.")] = 256,
    radii: Annotated[int, typer.Option(min=0, help="Spectral radii of so many of them.")] = 8,
    dataset: Annotated[
        str | None, typer.Option(help="A word problem of params.yaml (default: the first model's).")
    ] = None,
    exponents: Annotated[int, typer.Option(min=0, help="Lyapunov exponents of the state.")] = 8,
    zeroed: Annotated[
        list[str] | None,
        typer.Option(
            help="A tensor of the carry to set to zero after every token.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Look at why models lose the product of a word problem, position by position.

    Example: `implicit-models diagnose a5_implicit_mamba2 a5_lstm --length 320`
    """
    given = [str(Path(model).resolve()) if Path(model).is_dir() else model for model in models]
    given += ["--length", str(length), "--sequences", str(sequences), "--radii", str(radii)]
    given += ["--exponents", str(exponents)]
    given += ["--dataset", dataset] if dataset else []
    given += ["--zeroed", *zeroed] if zeroed else []
    hand_over("implicit_models.problems.word_problem.diagnose", *given)


@app.command()
def models() -> None:
    """List the paper's model sizes, with their parameters.

    Example: `implicit-models models`
    """
    hand_over("implicit_models.families.sizes")


@app.command()
def groups(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", help="Names, products or generators.")
    ] = None,
) -> None:
    """List the groups of word problems and how they are combined, or say what some are.

    Example: `implicit-models groups`, or `implicit-models groups A5 "S4 x Z2" "<(1 2 3), (1 2)>"`
    """
    from rich.console import Console

    from pipelines.comparing import group_table, group_words, property_table

    if names:
        try:
            Console().print(property_table(names))
        except ValueError as error:
            fail(str(error))
        return
    Console().print(group_table())
    print(group_words())


@app.command()
def presets() -> None:
    """List the presets, each with what it is.

    Example: `implicit-models presets`
    """
    root = repository()
    from rich.console import Console

    from pipelines.comparing import preset_table

    Console().print(preset_table(root))


def _model(name: str) -> str:
    """Return a folder, the folder of an entry's final model, or a name of the hub."""
    if Path(name).is_dir():
        return str(Path(name).resolve())
    root = repository()
    from pipelines.model_names import model_source

    with mistakes():
        return model_source(root, name)


if __name__ == "__main__":
    main()
