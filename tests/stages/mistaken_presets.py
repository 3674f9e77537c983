"""Presets with a mistake, and what the check says of each."""

QUICK, RUN = "quick", "runs.s3_implicit_mamba2"
BASELINE, GPT2, LSTM = (f"baselines.s3_{name}" for name in ("mamba2_1_layer", "gpt2", "lstm"))
TEXT, TEXT_RUN = "text_small", "runs.text_implicit_mamba2"
UPCYCLED = "upcycled"
STORIES = "catbabi_quick"
TASKS, TESTED = "downstream", "benchmarks.text_mamba2_downstream"
GONE = object()

A4_Z5 = {"kind": "word_problem", "group": "A4xZ5", "seed": 0} | {
    split: {"num_sequences": 64, "length": 10} for split in ("train", "validation")
}
OWN_TESTS = {"num_sequences": 64, "lengths": [10, 30]}
WIDE = {"model_type": "gpt2", "n_embd": 8, "n_head": 1, "n_layer": 1}


# A preset, the values that are changed in it (GONE: the key is taken out), and what a line must
# say: the key, what was found, what is allowed or what to do.
MISTAKES = [
    # Sections and tables.
    (
        QUICK,
        {"evalution": {}},
        ["evalution = {} is not a known", "closest valid key is evaluation"],
    ),
    (QUICK, {"runs": None}, ["runs = null is not allowed", "{} for none"]),
    (QUICK, {"runs": GONE}, ["runs does not exist; valid: "]),
    (QUICK, {"notes": 1}, ["notes = 1 is not a known setting; valid: "]),
    (QUICK, {f"{RUN}.dataset": ""}, [f"{RUN}.dataset = ''", "an empty name is no entry of data"]),
    (
        QUICK,
        {f"{RUN}.dataset": ["s3"]},
        [f"{RUN}.dataset = ['s3'] is not", "allowed is str"],
    ),
    (QUICK, {f"{LSTM}.dataset": {"s3": 1}}, [f"{LSTM}.dataset = {{'s3': 1}}", "allowed is str"]),
    (TASKS, {f"{TESTED}.tasks": ["downstream"]}, [f"{TESTED}.tasks = ['downstream']", "is str"]),
    (QUICK, {"report": GONE}, ["report is missing", "laptop.yaml"]),
    (QUICK, {"monitoring": GONE}, ["monitoring is missing", "laptop.yaml"]),
    (QUICK, {"monitoring.validate_every": 7}, ["validate_every is 7", "multiple of log_every, 10"]),
    (
        QUICK,
        {"report.success_treshold": 1},
        ["report.success_treshold", "report.success_threshold"],
    ),
    (QUICK, {"baselines.s3_implicit_mamba2": {}}, ["of both runs and baselines", "rename one"]),
    (
        QUICK,
        {"runs.s3_implict_mamba2": {"model": {"d_model": 48}}},
        ["runs.s3_implict_mamba2 has no dataset", f"where {RUN} is meant its name is mistyped"],
    ),
    (
        QUICK,
        {
            "baselines.s3_lstm_2": {"datset": "s3", "seed": 0, "optimisation": {}, "training": {}},
            "baselines.s3_lstm_2.model": {"family": "lstm"},
        },
        ["baselines.s3_lstm_2.datset = 's3' is not a known", "baselines.s3_lstm_2.dataset"],
    ),
    (QUICK, {"runs.a/b": {}}, ["entry named 'a/b'", "allowed are letters"]),
    # Values of the wrong type, and out of range.
    (
        QUICK,
        {f"{RUN}.free.num_training_steps": "abc"},
        [f"{RUN}.free.num_training_steps = 'abc'", "int"],
    ),
    (QUICK, {f"{RUN}.seed": "abc"}, [f"{RUN}.seed = 'abc'", "allowed is int, at least 0"]),
    (QUICK, {f"{RUN}.free.solver": "picar"}, ["solver = 'picar'", "closest is 'picard'"]),
    (QUICK, {f"{RUN}.model.d_sate": 3}, ["d_sate = 3 is not a known", "model.d_state"]),
    (QUICK, {f"{LSTM}.model.head_dim": 8}, ["head_dim is 8", "a model of family lstm has none"]),
    (QUICK, {f"{RUN}.model.head_dim": 24}, ["head_dim is 24", "must divide expand * d_model"]),
    (QUICK, {f"{RUN}.model.implicit": False}, ["implicit = False", "is an entry of baselines"]),
    (
        QUICK,
        {f"{RUN}.optimisation.warmup_steps": 999},
        ["warmup_steps = 999", "at most the training steps"],
    ),
    # Carries that are passed on.
    (
        QUICK,
        {f"{RUN}.free.carry": "pased"},
        [f"{RUN}.free.carry = 'pased'", "'reset'", "'passed'"],
    ),
    (QUICK, {f"{RUN}.free.carry_steps": 5}, ["carry_steps = 5", "null with carry = 'reset'"]),
    (
        QUICK,
        {f"{RUN}.free.carry": "passed", f"{RUN}.free.carry_steps": 5000},
        ["carry_steps is 5000", "at most num_training_steps"],
    ),
    (
        QUICK,
        {f"{RUN}.free.carry": "passed", f"{RUN}.free.carry_if_right": 50},
        ["carry_if_right is 50", "at most lengths.minimum"],
    ),
    (
        QUICK,
        {f"{GPT2}.training.carry": "passed"},
        [
            f"{GPT2}.training.carry = 'passed'",
            "family huggingface",
            "llama with model.sliding_window",
        ],
    ),
    (
        TEXT,
        {f"{TEXT_RUN}.free.carry": "passed", f"{TEXT_RUN}.free.lengths.minimum": 8},
        [f"{TEXT_RUN}.free.carry = 'passed'", "lengths.minimum = 8", "sequence_length"],
    ),
    # Groups and data sets.
    (
        QUICK,
        {"datasets.s3.group": "A4Z5"},
        ["group = 'A4Z5'", "write 'A4 x Z5' if that is what is meant"],
    ),
    (QUICK, {"datasets.s3.group": "(1 2 3)"}, ["write '<(1 2 3)>' if generators are meant"]),
    (QUICK, {"datasets.s3.group": "s3"}, ["group = 's3'", "'S3' if that is what is meant"]),
    (QUICK, {"datasets.s3.group": "Q8"}, ["group = 'Q8' is not a known group", "such as 'A5 x M'"]),
    (QUICK, {"datasets.s3.kind": "words"}, ["kind = 'words'", "one of word_problem"]),
    (QUICK, {f"{RUN}.dataset": "s4"}, [f"{RUN}.dataset = 's4'", "the closest is s3"]),
    (QUICK, {"monitoring.validation_sequences": 999}, ["= 999", "validation.num_sequences, 256"]),
    (
        QUICK,
        {"datasets.s3.train.num_sequences": 63},
        [f"{RUN}.optimisation.batch_size = 64", "at most datasets.s3.train.num_sequences, 63"],
    ),
    (
        QUICK,
        {f"{LSTM}.optimisation.batch_size": None, f"{LSTM}.optimisation.batch_tokens": 12 * 20000},
        [f"{LSTM}.optimisation.batch_tokens = 240000 (20000 sequences of 12", "sequences, 16384"],
    ),
    # Lengths of the curriculum, the evaluation, the sweep and the report.
    (
        QUICK,
        {f"{RUN}.free.lengths.end": 13},
        ["free.lengths.end = 13", "at most datasets.s3.train.length, 12"],
    ),
    (
        QUICK,
        {"evaluation.word_problem.lengths": [12, 96]},
        ["length 96", "datasets.s3.test.lengths, [12, 24, 48]"],
    ),
    (
        QUICK,
        {"evaluation.word_problem.num_sequences": 99},
        ["num_sequences = 99", "num_sequences, 64"],
    ),
    (
        QUICK,
        {"sweep.word_problem.length": 25},
        ["sweep.word_problem asks", "length 25", "[12, 24, 48]"],
    ),
    (
        QUICK,
        {"evaluation.word_problem.lengths": [24, 48]},
        ["lengths = [24, 48]", "one of at most 12"],
    ),
    (QUICK, {"evaluation": {}}, ["evaluation.word_problem is missing"]),
    (
        QUICK,
        {
            "datasets.g": A4_Z5 | {"test": OWN_TESTS},
            f"{RUN}.dataset": "g",
            f"{RUN}.free.lengths.end": 10,
        },
        ["length 24", "datasets.g.test.lengths, [10, 30]"],
    ),
    (QUICK, {f"{RUN}.evaluation": {"lengths": [12, 36]}}, [f"{RUN}.evaluation asks", "length 36"]),
    (QUICK, {f"{RUN}.sweep": {"lenght": 24}}, [f"{RUN}.sweep.lenght = 24", f"{RUN}.sweep.length"]),
    (QUICK, {f"{BASELINE}.sweep": {"length": 24}}, [f"{BASELINE}.sweep = ", "not a known setting"]),
    # Models of Hugging Face.
    (
        QUICK,
        {
            "datasets.s3.test.lengths": [12, 256],
            "evaluation.word_problem.lengths": [12, 256],
            "sweep.word_problem.length": 12,
        },
        [
            f"{GPT2}.model.source",
            "has 128 positions (conf/models/gpt2_tiny/config.json: n_positions)",
            "evaluation.word_problem.lengths = 256",
            "give the configuration 256",
        ],
    ),
    (
        QUICK,
        {f"{GPT2}.model.source": "conf/models/gpt3"},
        [f"{GPT2}.model.source = 'conf/models/gpt3'", "none of this name"],
    ),
    (QUICK, {f"{GPT2}.model.source": "conf/preset"}, ["holds no config.json"]),
    (QUICK, {f"{GPT2}.model.pretrained": True}, ["holds no .safetensors", "leave out pretrained"]),
    (
        TEXT,
        {"baselines.text_mamba2.model": {"family": "huggingface", "source": "gpt2"}},
        ["text_mamba2.model.source", "has 1024 positions", "evaluation.text.lengths = 2048"],
    ),
    (  # the text whose tokens the report shows is read as well
        TEXT,
        {
            "baselines.text_mamba2.model": {"family": "huggingface", "source": "gpt2"},
            "evaluation.text.lengths": [256],
            "evaluation.text.num_shown_tokens": 1500,
        },
        ["text_mamba2.model.source", "evaluation.text.num_shown_tokens = 1500"],
    ),
    # What refers to other entries.
    (
        UPCYCLED,
        {"upcycled.s3_upcycled_llama.model.source": "models/s3_implicit_llama/final"},
        ["is implicit already", "a baseline's"],
    ),
    (
        UPCYCLED,
        {"upcycled.s3_upcycled_llama.model.source": "models/s3_lama/final"},
        ["'models/s3_lama/final' is not allowed", "none of this name"],
    ),
    (
        UPCYCLED,
        {
            "baselines.s3_llama.model": {
                "family": "lstm",
                "num_layers": 1,
                "d_model": 8,
                "hidden_size": 8,
            }
        },
        ["family 'lstm' cannot become an implicit one", "mamba2 or llama"],
    ),
    (
        UPCYCLED,
        {
            "datasets.z5": A4_Z5
            | {
                "group": "Z5",
                "train": {"num_sequences": 64, "length": 12},
                "test": {"num_sequences": 64, "lengths": [12, 24, 48]},
            },
            "upcycled.s3_upcycled_llama.dataset": "z5",
        },
        ["learns from 's3'", "its source's vocabulary"],
    ),
    (
        TEXT,
        {"matched.text_mamba2_same_flops.match.run": "text_mamba"},
        ["match.run = 'text_mamba'", "text_implicit_mamba2"],
    ),
    (
        TEXT,
        {"matched.text_mamba2_same_flops.match.quantity": "parameters"},
        ["vary = 'steps'", "'depth' or 'width'"],
    ),
    (
        TASKS,
        {f"{TESTED}.model": "models/text_mamba/final"},
        ["is neither an entry's nor here", "models/text_mamba2/final"],
    ),
    (TASKS, {f"{TESTED}.tasks": "downstreams"}, [f"{TESTED}.tasks = 'downstreams'", "downstream"]),
    (TASKS, {f"{TESTED}.names": ["piqua"]}, ["names = ['piqua']", "'piqa'"]),
    # Text and tokenizers.
    (
        TEXT,
        {"corpora.text.source": "texts"},
        [
            "corpora.text.source = 'texts' is not there",
            "texts/train, texts/validation, texts/test",
            "corpora.text.source=FOLDER",
        ],
    ),
    (
        TEXT,
        {"corpora.text.tokenizer": "text/tokenizer.json"},
        ["'text/tokenizer.json' is not there", "python scripts/train_tokenizer.py text/train"],
    ),
    (
        TEXT,
        {"corpora.text.tokenizer": "tok.json"},
        [
            "'tok.json' is not there",
            "train_tokenizer.py text/train text/tokenizer.json`",
            "corpora.text.tokenizer=text/tokenizer.json",
        ],
    ),
    (
        TEXT,
        {"corpora.text.tokenizer": "text/broken.json"},
        ["corpora.text.tokenizer", "broken.json"],
    ),
    (TEXT, {"corpora.text.test.files": ["tests/*"]}, ["'tests/*' names no file under text"]),
    (
        TEXT,
        {"corpora.text.test": {}},
        ["corpora.text.test holds nothing out", "name files, or a share"],
    ),
    (
        TEXT,
        {f"{TEXT_RUN}.free.lengths.end": 300, f"{TEXT_RUN}.free.lengths.growth_steps": 9},
        ["lengths.end = 300", "corpora.text.sequence_length, 256"],
    ),
    (
        TEXT,
        {"evaluation.text.lengths": [256, 1000]},
        ["evaluation.text.lengths", "must divide the longest"],
    ),
    (TEXT, {"evaluation.text.stride": 512}, ["stride = 512", "at most context_length, 256"]),
    (
        TASKS,
        {"tasks.downstream.source": "task"},
        ["'task' is not there", "tasks.downstream.source=FOLDER"],
    ),
    (
        TEXT,
        {"readings": {"other": {"model": "gpt2", "corpus": "text"}}},
        ["readings.other.model = 'gpt2' has 1024 positions", "evaluation.text.lengths = 2048"],
    ),
    (
        TEXT,
        {"corpora.text.source": "short"},
        ["sweep.text.num_sequences needs 4,097 tokens of the test split", "add text"],
    ),
    (
        TEXT,
        {f"{TEXT_RUN}.optimisation.batch_size": 999, "corpora.text.source": "short"},
        [f"{TEXT_RUN}.optimisation.batch_size needs 255,745 tokens of the train split"],
    ),
    (
        TEXT,
        {"corpora.text.source": "short"},
        [
            f"{TEXT_RUN}.optimisation.batch_size (as baselines.text_mamba2.optimisation.batch_size",
            "matched.text_mamba2_same_flops.optimisation.batch_size) needs",
        ],
    ),
    (
        TEXT,
        {"monitoring.validation_sequences": 99, "corpora.text.source": "short"},
        ["monitoring.validation_sequences needs 25,345 tokens", "or add text"],
    ),
    # Stories.
    (
        STORIES,
        {"evaluation.catbabi.num_stories": 5},
        ["catbabi.num_streams = 32 is not allowed", "at most evaluation.catbabi.num_stories, 5"],
    ),
    (
        STORIES,
        {"datasets.stories.num_questions.test": 1},
        ["num_streams = 32", "at most the test stories of datasets.stories, 20"],
    ),
    (
        STORIES,
        {"datasets.stories.num_questions.validation": 1},
        ["monitoring.validation_sequences needs 6,401 tokens", "validation split of datasets.sto"],
    ),
]
