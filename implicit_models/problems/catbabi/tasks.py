"""What the twenty tasks of bAbI are called."""

TASK_NAMES = {
    1: "single supporting fact",
    2: "two supporting facts",
    3: "three supporting facts",
    4: "two-argument relations",
    5: "three-argument relations",
    6: "yes/no questions",
    7: "counting",
    8: "lists",
    9: "simple negation",
    10: "indefinite knowledge",
    11: "basic coreference",
    12: "conjunction",
    13: "compound coreference",
    14: "time reasoning",
    15: "basic deduction",
    16: "basic induction",
    17: "positional reasoning",
    18: "size reasoning",
    19: "path finding",
    20: "agent's motivations",
}
"""The short name of each task, by its number (Weston et al. 2015)."""


def numbered(task: int) -> str:
    """Return a task's number and name: ``1 single supporting fact``."""
    return f"{task} {TASK_NAMES[task]}" if task in TASK_NAMES else str(task)
