"""Splits on disk: content, disjointness, determinism and what happens to damaged files."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from implicit_models.data.manifests import write_manifest
from implicit_models.files import unsealed
from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.word_problem.checks import data_bytes
from implicit_models.problems.word_problem.data.groups import multiplication_table, table_digest
from implicit_models.problems.word_problem.data.sequences import prefix_products
from implicit_models.problems.word_problem.data.splits import (
    DataError,
    further_tests,
    name_of_test,
    open_splits,
)
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import (
    SplitParameters,
    TestParameters,
    WordProblemEvaluationParameters,
    WordProblemParameters,
    WordProblemSweepParameters,
    check_evaluation,
    check_sweep,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "word_problems.json"

SMALL = WordProblemParameters(
    kind="word_problem",
    group="A5",
    seed=0,
    train=SplitParameters(num_sequences=5000, length=20),
    validation=SplitParameters(num_sequences=64, length=20),
    test=TestParameters(num_sequences=32, lengths=(16, 40)),
)
NAMES = ["test_L16", "test_L40", "train", "validation"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data") / "a5"
    write_splits(SMALL, directory)
    return directory


@pytest.fixture
def copy(folder, tmp_path):
    """A data set of its own, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path, dirs_exist_ok=True))


def test_open_gives_what_was_asked_for(folder):
    problem = open_splits(folder)
    assert problem.vocabulary_size == 60
    assert sorted(problem.splits) == NAMES
    for name, shape in [("train", (5000, 20)), ("validation", (64, 20)), ("test_L40", (32, 40))]:
        split = problem.split(name)
        for array in (split.inputs, split.labels):
            assert isinstance(array, np.memmap)
            assert array.shape == shape and array.dtype == np.uint8
            assert not array.flags.writeable
        np.testing.assert_array_equal(
            split.labels, prefix_products(multiplication_table("A5"), split.inputs)
        )
    problem.verify()


def test_metadata_describes_the_data(folder):
    metadata = unsealed((folder / "metadata.json").read_bytes())
    assert metadata["group"] == "A5" and metadata["seed"] == 0
    assert metadata["identity_probability"] == 0.0
    assert metadata["table_digest"] == table_digest(multiplication_table("A5"))
    assert metadata["splits"]["train"]["num_sequences"] == 5000
    assert metadata == open_splits(folder).metadata


def test_nothing_but_the_data_set_is_left_behind(folder):
    files = {f"{name}/{kind}.npy" for name in NAMES for kind in ("inputs", "labels")}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == files | {"metadata.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["a5"]


def test_writing_again_replaces_everything(tmp_path):
    write_splits(SMALL, tmp_path / "a5")
    other = SMALL.replace(test=TestParameters(num_sequences=2, lengths=(8,)))
    write_splits(other, tmp_path / "a5")
    assert sorted(open_splits(tmp_path / "a5").splits) == ["test_L8", "train", "validation"]
    assert not (tmp_path / "a5" / "test_L16/inputs.npy").exists()


def test_seeds_decide(folder, tmp_path):
    first = open_splits(folder)
    assert write_splits(SMALL, tmp_path / "same") == first.metadata
    write_splits(SMALL.replace(seed=1), tmp_path / "other")
    other = open_splits(tmp_path / "other")
    for name in NAMES:
        same = first.split(name).inputs == other.split(name).inputs
        assert same.mean() < 0.1
    train, validation = first.split("train").inputs, first.split("validation").inputs
    assert (train[:64] == validation).mean() < 0.1


def test_golden_digests(tmp_path):
    """The same parameters give the same bytes, in every version of the library."""
    found = {}
    for group, probability, sampling in (
        ("A5", 0.0, "uniform"),
        ("S5", 0.9, "uniform"),
        ("A5 x M", 0.5, "informative"),
        ("S6", 0.0, "uniform"),
    ):
        parameters = SMALL.replace(
            group=group,
            identity_probability=probability,
            monoid_sampling=sampling,
            train=SplitParameters(num_sequences=500, length=20),
        )
        metadata = write_splits(parameters, tmp_path / group)
        key = f"{group}, identity {probability}, {sampling}"
        found[key] = {
            "table": metadata["table_digest"],
            **{
                f"{name}_{kind}": split[f"{kind}_digest"]
                for name, split in sorted(metadata["splits"].items())
                for kind in ("inputs", "labels")
            },
        }
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("group", "probability", "lengths"),
    [("S3", 0.0, (4, 6, 9)), ("A5", 0.95, (8, 12)), ("Z2", 0.5, (12,)), ("A5", 0.0, (16, 40))],
)
def test_no_sequence_is_shared(tmp_path, group, probability, lengths):
    parameters = SMALL.replace(
        group=group,
        identity_probability=probability,
        train=SplitParameters(num_sequences=3000, length=6 if group == "S3" else 14),
        validation=SplitParameters(num_sequences=20, length=5 if group == "S3" else 14),
        test=TestParameters(num_sequences=20, lengths=lengths),
    )
    write_splits(parameters, tmp_path / "data")
    problem = open_splits(tmp_path / "data")
    problem.verify()
    if probability or group == "S3":
        assert problem.metadata["splits"]["train"]["num_redrawn"] > 0
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        for a in problem.splits:
            for b in problem.splits:
                if a.startswith(one) and b.startswith(other):
                    first, second = problem.split(a).inputs, problem.split(b).inputs
                    shorter = min(first.shape[1], second.shape[1])
                    prefixes = {tuple(row) for row in first[:, :shorter].tolist()}
                    assert not prefixes & {tuple(row) for row in second[:, :shorter].tolist()}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"group": "Z2", "test": TestParameters(num_sequences=512, lengths=(3,))}, "validation"),
        ({"identity_probability": 1.0}, "validation"),
        (
            {
                "group": "Z3",
                "test": TestParameters(num_sequences=1, lengths=(2,)),
                "validation": SplitParameters(num_sequences=512, length=2),
            },
            "train",
        ),
    ],
)
def test_splits_that_cannot_be_kept_apart(tmp_path, changes, name):
    with pytest.raises(ParameterError, match=f"{name}.length = .* raise the shortest length"):
        write_splits(SMALL.replace(**changes), tmp_path / "data")
    assert not list(tmp_path.iterdir())


def test_tests_may_have_their_own_share_of_hard_tokens(tmp_path):
    test = TestParameters(num_sequences=200, lengths=(40,), identity_probability=0.5)
    write_splits(SMALL.replace(identity_probability=0.9, test=test), tmp_path / "data")
    problem = open_splits(tmp_path / "data")
    assert abs((problem.split("train").inputs == 0).mean() - 0.9) < 0.02
    assert abs((problem.split("test_L40").inputs == 0).mean() - 0.5) < 0.03


def test_further_tests_have_their_own_sequences_and_leave_the_first_as_it_is(tmp_path):
    test = TestParameters(num_sequences=200, lengths=(16, 40), identity_probability=0.5)
    further = test.replace(further_identity_probabilities=(0.9, 0.25))
    found = {}
    for name, tested in (("one", test), ("more", further)):
        parameters = SMALL.replace(test=tested)
        write_splits(parameters, tmp_path / name)
        found[name] = open_splits(tmp_path / name)
        found[name].verify()
        arrays = (tmp_path / name).rglob("*.npy")
        assert data_bytes(parameters) == sum(np.load(path).nbytes for path in arrays)
    one, more = found["one"], found["more"]
    assert set(more.splits) - set(one.splits) == {
        f"test_p{probability}_L{length}" for probability in (0.9, 0.25) for length in (16, 40)
    }
    assert further_tests(one.metadata) == [] and further_tests(more.metadata) == [0.25, 0.9]
    for name in one.splits:
        np.testing.assert_array_equal(one.split(name).inputs, more.split(name).inputs)
    for probability in (0.9, 0.25):
        inputs = more.split(name_of_test(40, probability)).inputs
        # The group's own draws may be the identity, too.
        expected = probability + (1 - probability) / 60
        assert abs((inputs == 0).mean() - expected) < 0.02
        hard = more.split("test_L40").inputs
        assert (inputs == hard)[(inputs != 0) & (hard != 0)].mean() < 0.1
    write_splits(SMALL.replace(test=test), tmp_path / "more")
    assert not list((tmp_path / "more").glob("test_p*"))


def test_training_shares_nothing_with_further_tests(tmp_path):
    test = TestParameters(
        num_sequences=200, lengths=(8,), further_identity_probabilities=(0.9, 0.95)
    )
    parameters = SMALL.replace(
        identity_probability=0.5, train=SplitParameters(num_sequences=5000, length=8), test=test
    )
    write_splits(parameters, tmp_path / "data")
    opened = open_splits(tmp_path / "data")
    trained = {tuple(row) for row in opened.split("train").inputs.tolist()}
    for probability in (0.9, 0.95):
        rows = opened.split(name_of_test(8, probability)).inputs.tolist()
        assert not trained & set(map(tuple, rows))


def test_an_interrupted_write_leaves_no_metadata(copy, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    before = sorted(path.name for path in copy.iterdir())
    monkeypatch.setattr("implicit_models.problems.word_problem.data.writing.prefix_products", fail)
    with pytest.raises(KeyboardInterrupt):
        write_splits(SMALL, copy)
    assert sorted(path.name for path in copy.iterdir()) == before
    open_splits(copy).verify()
    monkeypatch.undo()
    monkeypatch.setattr("implicit_models.data.folders.os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_splits(SMALL, copy)
    with pytest.raises(DataError, match="incomplete"):
        open_splits(copy)


def test_missing_folder_and_split(folder, tmp_path):
    with pytest.raises(DataError, match="no such folder; `dvc repro prepare@nothing` writes it"):
        open_splits(tmp_path / "nothing")
    with pytest.raises(DataError, match="no split 'test_L8'; there are .*test_L16"):
        open_splits(folder).split("test_L8")
    with pytest.raises(DataError, match="no split 'test_L8'; there are .*test_L16"):
        open_splits(folder, ["test_L8"])


def test_splits_can_be_opened_alone(copy):
    (copy / "test_L40/labels.npy").unlink()
    assert list(open_splits(copy, ["train", "validation"]).splits) == ["train", "validation"]
    with pytest.raises(DataError, match="there are train"):
        open_splits(copy, ["train"]).split("test_L40")


def test_another_test_length_leaves_the_training_data_as_they_are(folder, tmp_path):
    write_splits(SMALL.replace(test=SMALL.test.replace(lengths=(16, 40, 80))), tmp_path / "a5")
    for name in ("train/inputs.npy", "validation/labels.npy"):
        assert (tmp_path / "a5" / name).read_bytes() == (folder / name).read_bytes()


def test_long_tests_have_as_many_sequences_as_their_tokens_leave(folder, tmp_path):
    test = SMALL.test.replace(lengths=(16, 40, 300), max_tokens=700)
    splits = write_splits(SMALL.replace(test=test), tmp_path / "a5")["splits"]
    counts = {name: split["num_sequences"] for name, split in splits.items()}
    assert [counts[f"test_L{length}"] for length in (16, 40, 300)] == [32, 17, 2]
    few, many = (np.load(each / "test_L40/inputs.npy") for each in (tmp_path / "a5", folder))
    assert np.array_equal(few, many[:17])
    single = SMALL.replace(test=SMALL.test.replace(lengths=(16,), max_tokens=1))
    assert single.test.num_sequences_of(16) == 1


@pytest.mark.parametrize(
    ("test", "evaluation", "words"),
    [
        ({}, {"num_sequences": 33}, "num_sequences = 33 is not allowed; allowed is at most"),
        ({}, {"lengths": (16, 41)}, "asks for test sequences of length 41; allowed is one of"),
        (
            {"max_tokens": 700},
            {},
            "num_sequences asks for 32 test sequences of length 40; allowed is at most 17, as many "
            "as datasets.a5.test has within its max_tokens, 700",
        ),
        ({"max_tokens": 700}, {"max_tokens": 701}, None),
        ({"max_tokens": 700}, {"max_tokens": 740}, "asks for 18 test sequences of length 40"),
        ({}, {"max_tokens": 700}, None),
    ],
)
def test_an_evaluation_reads_no_more_than_there_is(test, evaluation, words):
    data = SMALL.replace(test=SMALL.test.replace(**test))
    asked = WordProblemEvaluationParameters(
        lengths=(16, 40), num_sequences=32, num_mode_sequences=0
    ).replace(**evaluation)
    expected = contextlib.nullcontext() if words is None else pytest.raises(ParameterError)
    with expected as error:
        check_evaluation("datasets.a5", data, asked)
    assert words is None or words in str(error.value)


def test_a_sweep_reads_no_more_than_there_is():
    data = SMALL.replace(test=SMALL.test.replace(max_tokens=700))
    asked = WordProblemSweepParameters(
        length=40, num_sequences=17, self_iterations=(1,), tolerances=(0.1,)
    )
    check_sweep("datasets.a5", data, asked)
    with pytest.raises(ParameterError, match="sweep.word_problem.num_sequences asks for 18 test"):
        check_sweep("datasets.a5", data, asked.replace(num_sequences=18))


def test_missing_file(copy):
    (copy / "train/labels.npy").unlink()
    with pytest.raises(DataError, match="train/labels.npy: no such file"):
        open_splits(copy)


@pytest.mark.parametrize("size", [0, 50, 1000])
def test_truncated_file(copy, size):
    path = copy / "train/inputs.npy"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="train/inputs.npy: is truncated"):
        open_splits(copy)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((64, 21), np.uint8), r"shape is \(64, 21\), metadata says \(64, 20\)"),
        (np.zeros((64, 20), np.int64), "dtype is int64, metadata says uint8"),
    ],
)
def test_wrong_array(copy, array, words):
    np.save(copy / "validation/inputs.npy", array)
    with pytest.raises(DataError, match=f"validation/inputs.npy: the {words}"):
        open_splits(copy)


def test_changed_content(copy):
    labels = np.array(np.load(copy / "validation/labels.npy"))
    labels[3, 3] ^= 1
    np.save(copy / "validation/labels.npy", labels)
    with pytest.raises(DataError, match="validation/labels.npy: the content has changed"):
        open_splits(copy).verify()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("format_version", 0, "format_version is 0, this version of the library reads 3"),
        ("group", "S5", "vocabulary_size is 60, but S5 has 120"),
        ("group", "Z60", "table_digest is"),
        ("group", "B5", "'B5' is not a known group"),
        ("dtype", "int64", "dtype is 'int64', but A5 has 'uint8'"),
        ("splits", {}, "names no splits"),
        ("splits", {"train": {}}, "'num_sequences' is missing"),
        ("table_digest", None, "'table_digest' is missing"),
    ],
)
def test_wrong_metadata(copy, key, value, words):
    path = copy / "metadata.json"
    metadata = unsealed(path.read_bytes())
    metadata[key] = value
    if value is None:
        del metadata[key]
    write_manifest(path, metadata)
    with pytest.raises(DataError, match=words):
        open_splits(copy)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_unreadable_metadata(copy, text):
    (copy / "metadata.json").write_bytes(text)
    with pytest.raises(DataError, match="metadata.json: "):
        open_splits(copy)


@pytest.mark.parametrize("place", range(128))
def test_any_change_of_an_arrays_header_is_a_data_error(copy, place):
    """NumPy itself answers with errors of many kinds, one of Python's tokenizer among them."""
    path = copy / "train" / "inputs.npy"
    content = bytearray(path.read_bytes())
    for bit in (1, 4, 128):
        damaged = content.copy()
        damaged[place] ^= bit
        path.write_bytes(damaged)
        try:
            opened = open_splits(copy)  # white space may be another
            opened.verify()
        except DataError as error:
            assert f"{path}: " in str(error)
        else:
            assert opened.split("train").inputs.tobytes() == content[128:]
    path.write_bytes(content)


def test_any_edit_of_metadata_is_noticed(copy):
    path = copy / "metadata.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DataError, match=r"metadata.json: is damaged.*`dvc repro prepare@"):
        open_splits(copy)


def test_parameters_are_read_strictly(tmp_path):
    path = tmp_path / "params.yaml"
    text = """
datasets:
  a5:
    kind: word_problem
    group: GROUP
    monoid_sampling: SAMPLING
    identity_probability: IDENTITY
    seed: 0
    train: {num_sequences: 131072, length: 20}
    validation: {num_sequences: 1024, length: 20}
    test: {num_sequences: 512, lengths: LENGTHS}
"""

    def read(group="A5 x M", sampling="informative", lengths="[16, 32]", identity="0.5"):
        filled = text.replace("GROUP", group).replace("SAMPLING", sampling)
        filled = filled.replace("IDENTITY", identity)
        path.write_text(filled.replace("LENGTHS", lengths))
        return read_section("datasets.a5", WordProblemParameters, path)

    assert read().test.lengths == (16, 32)
    with pytest.raises(ParameterError, match="datasets.a5.group = 'B5' is not a known group"):
        read(group="B5")
    with pytest.raises(ParameterError, match="monoid_sampling = 'informative'.* no monoid factor"):
        read(group="A5")
    assert read(group="M", identity="0").group == "M"
    with pytest.raises(ParameterError, match="identity_probability = 0.5 .* M has no factor that"):
        read(group="M")
    with pytest.raises(ParameterError, match=r"datasets.a5.test.lengths = \[\] is not allowed"):
        read(lengths="[]")
    with pytest.raises(ParameterError, match="each only once"):
        read(lengths="[16, 16]")
