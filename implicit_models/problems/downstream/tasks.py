"""The downstream tasks: what lm-eval calls each, where its items are, its column of the report."""

from collections.abc import Mapping
from dataclasses import dataclass

from implicit_models.problems.downstream.data.task_items import (
    Form,
    arc,
    hellaswag,
    lambada,
    openbookqa,
    openbookqa_query,
    piqa,
    winogrande,
    winogrande_contexts,
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of lm-eval.

    Attributes
    ----------
    column, metric
        Of the report, and the accuracy that stands there: ``acc``, or ``acc_norm``, normalised by
        length.
    in_papers_table
        Whether it is one of the seven whose average the paper gives.
    folder
        Of the harness, which defines it.
    dataset, configuration, split
        On the hub, as the harness's definition has them.
    layouts
        Files under a local source where there is no ``TASK.jsonl``; the first layout that is there
        is taken. Two files are items and labels.
    forms
        The fields that its items may have, those of the hub first.
    """

    column: str
    metric: str
    in_papers_table: bool = False
    folder: str
    dataset: str
    configuration: str | None = None
    split: str
    layouts: tuple[tuple[str, ...], ...] = ()
    forms: tuple[Form, ...]


_ARC = Form(("question", "choices", "answerKey"), arc)

#: By the name that lm-eval has for it. The paper does not say which accuracy it reports; normalised
#: by length for HellaSwag, ARC-Challenge and OpenbookQA is what the papers on Mamba do.
TASKS: Mapping[str, Task] = {
    "lambada_openai": Task(
        column="LAMBADA",
        metric="acc",
        in_papers_table=True,
        folder="lambada",
        dataset="EleutherAI/lambada_openai",
        configuration="default",
        split="test",
        layouts=(("lambada/lambada_test.jsonl",),),
        forms=(Form(("text",), lambada),),
    ),
    "hellaswag": Task(
        column="HellaSwag",
        metric="acc_norm",
        in_papers_table=True,
        folder="hellaswag",
        dataset="Rowan/hellaswag",
        split="validation",
        layouts=(("hellaswag/hellaswag_val.jsonl",), ("hellaswag/hellaswag_val_full.txt",)),
        forms=(Form(("activity_label", "ctx_a", "ctx_b", "endings", "label"), hellaswag),),
    ),
    "piqa": Task(
        column="PIQA",
        metric="acc",
        in_papers_table=True,
        folder="piqa",
        dataset="baber/piqa",
        split="validation",
        layouts=(("piqa/valid.jsonl", "piqa/valid-labels.lst"),),
        forms=(Form(("goal", "sol1", "sol2", "label"), piqa),),
    ),
    "arc_easy": Task(
        column="ARC-E",
        metric="acc",
        in_papers_table=True,
        folder="arc",
        dataset="allenai/ai2_arc",
        configuration="ARC-Easy",
        split="test",
        layouts=(("arc/arc_easy_test.jsonl",),),
        forms=(_ARC,),
    ),
    "arc_challenge": Task(
        column="ARC-C",
        metric="acc_norm",
        in_papers_table=True,
        folder="arc",
        dataset="allenai/ai2_arc",
        configuration="ARC-Challenge",
        split="test",
        layouts=(("arc/arc_challenge_test.jsonl",),),
        forms=(_ARC,),
    ),
    "winogrande": Task(
        column="WinoGrande",
        metric="acc",
        in_papers_table=True,
        folder="winogrande",
        dataset="allenai/winogrande",
        configuration="winogrande_xl",
        split="validation",
        layouts=(
            ("winogrande/winogrande_xl_dev.jsonl",),
            ("winogrande/winogrande_xl_dev.llmfoundry.jsonl",),
        ),
        forms=(
            Form(("sentence", "option1", "option2", "answer"), winogrande),
            Form(("context_options", "continuation", "gold"), winogrande_contexts),
        ),
    ),
    "openbookqa": Task(
        column="OpenbookQA",
        metric="acc_norm",
        in_papers_table=True,
        folder="openbookqa",
        dataset="allenai/openbookqa",
        configuration="main",
        split="test",
        layouts=(
            ("openbookqa/openbookqa_test.jsonl",),
            ("openbookqa/openbookqa_test.llmfoundry.jsonl",),
        ),
        forms=(
            Form(("question_stem", "choices", "answerKey"), openbookqa),
            Form(("query", "choices", "gold"), openbookqa_query),
        ),
    ),
}

PERPLEXITY, AVERAGE = "LAMBADA ppl", "average"

#: The task of each column, and its metric.
ACCURACIES = {each.column: (name, each.metric) for name, each in TASKS.items()}
COLUMNS = (PERPLEXITY, *ACCURACIES, AVERAGE)

#: The accuracies in the paper's table, in its order.
PAPERS_ACCURACIES = tuple(each.column for each in TASKS.values() if each.in_papers_table)
