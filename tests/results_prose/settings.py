"""Numbers that nobody measured, by page and section: settings, what others say, counts."""

SETTINGS = {
    ("results.md", "Results"): ("24 GiB of memory",),
    ("results.md", "Formal languages"): (
        "98 or 10 % of their instructions",
        "in training it is 80",
    ),
    ("results.md", "How much of a training is bounded"): (
        *("70, 80 or 90 % of the steps", "With 70 % bounded", "of one with 90 %"),
        "(70 % overfits, 90 % underfits)",
    ),
    ("results.md", "All seeds"): ("32 of 16,384 and 8 of 65,536",),
    ("glossary.md", "The task"): ("about 1 of 60 on A5",),
    ("streams.md", "Streams"): ("the last 300 of its 2,800 steps",),
    ("catbabi.md", "The experiment"): ("CC BY 3.0",),
    ("catbabi.md", "Stories from files"): ("reads the release 1.2",),
    ("equilibrium.md", "Which solver"): ("(tolerance 0.01,",),
    ("equilibrium.md", "The search in params.yaml"): (
        "0.01 on word problems and formal languages, 0.03 on stories, 0.05 on text",
    ),
    ("evaluation.md", "Costs"): (
        "estimate, within 5 % at a batch of 3",
        "1.00x is iso-parameter",
        "differs by more than 2 %",
    ),
    ("evaluation.md", "The report"): ("within 30 % of each other",),
    ("figures.md", "Make the figures"): ("70, 80 and 90 % of the steps in the bounded phase",),
    ("kubernetes.md", "Use Kubernetes"): ("Releases before 1.29",),
    ("slurm.md", "Use Slurm"): ("is at least 5 minutes",),
    ("models.md", "The models"): ("from 5.24 up to",),
    ("models.md", "Configuration"): (
        *(
            "| 0.01, 64 |",
            "| 0.8 |",
            "| 0.05, 24 |",
            "(0.001)",
            "(0.1)",
            "mamba2-1.3b",
            "llama-1.3b",
        ),
        *(f"({share}%)" for share in (2.8, 1.4, 2.0, 1.0)),
    ),
    ("models.md", "Generation"): ("at 1.3b, bfloat16", "102 MB a sequence", "201 MB a sequence"),
    ("pretraining.md", "Corpora"): ("about 64 MiB", "32 MiB, or 512 MiB as bytes"),
    ("pretraining.md", "The paper's scale"): (
        *("(4+1) for 80 % of the steps", "a tolerance of 0.05", "The damping of .8"),
    ),
    ("pretraining.md", "The curriculum"): ("70, 80 and 90 % at 130M",),
    ("pretraining.md", "Before anyone spends money"): ("`utilisation` | 0.2 |",),
    ("pretraining.md", "Several processes"): ("the losses of one to 1e-6",),
    ("pretraining.md", "Batches"): ("in at most 32 MiB",),
    ("pretraining.md", "Checkpoints, interruptions"): (
        "`--shutdown-timeout`), 30 s, in flows 110 s",
    ),
    ("reliability.md", "Damage is noticed"): ("up to 8 GiB",),
    ("reliability.md", "Servers and disks that fail"): ("after 20 s", "after 40 s"),
    ("tracking.md", "Tracking"): ("as often as 1 % of a core allows",),
}
