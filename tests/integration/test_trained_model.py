"""The commands for a finished run as a user types them: predict, embed, export, evaluate, clean."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import coterie
import made_model
import toy
from coterie.cli.main import main

pytestmark = pytest.mark.usefixtures("handlers")

Command = Callable[..., str]
Refused = Callable[..., tuple[int, str]]
FOLDERS = ("clients", "checkpoints", "blobs", "spool")


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder: its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def command(call: Callable[..., tuple[int, str, str]]) -> Command:
    """Run a command that succeeds: what it printed."""

    def run(*arguments: object) -> str:
        code, out, err = call(*arguments)
        assert (code, err) == (0, "")
        return out

    return run


@pytest.fixture
def refused(call: Callable[..., tuple[int, str, str]]) -> Refused:
    """Run a command that is refused: its code and its one line."""

    def run(*arguments: object) -> tuple[int, str]:
        code, out, err = call(*arguments)
        assert out == "" and err.startswith("coterie: ") and err.count("\n") == 1
        assert "bug" not in err
        return code, err

    return run


@pytest.fixture(scope="module")
def toy_run(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on vectors, with a best round and no personal models."""
    folder = tmp_path_factory.mktemp("toy") / "run"
    toy.run(toy_data, folder, run={"rounds": 2})
    return folder


@pytest.fixture(scope="module")
def solo_run(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with models of clients only."""
    folder = tmp_path_factory.mktemp("solo") / "run"
    toy.run(toy_data, folder, run={"rounds": 1}, method={"name": "solo"})
    return folder


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on grey images of 16 x 16 pixels; names of its classes have commas and quotes."""
    return made_model.write(tmp_path_factory.mktemp("images") / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two colour images of each class, in folders of their names."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(1)
    for label in made_model.CLASSES:
        for number in range(2):
            path = folder / label / f'{number}, "x".png'
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    return folder


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_predictions_have_a_line_a_sample_and_a_column_a_class(
    image_run: Path, pictures: Path, command: Command
) -> None:
    said = command("predict", image_run, pictures)
    head, *lines = rows(Path("predictions.csv"))
    assert head == ["sample", "prediction", *made_model.CLASSES]
    names = [f'{label}/{i}, "x".png' for label in sorted(made_model.CLASSES) for i in range(2)]
    assert [line[0] for line in lines] == names
    shares = np.array([line[2:] for line in lines], np.float64)
    assert np.allclose(shares.sum(axis=1), 1.0, atol=1e-6)
    assert [line[1] for line in lines] == [made_model.CLASSES[k] for k in shares.argmax(axis=1)]
    right = sum(line[0].startswith(f"{line[1]}/") for line in lines)
    assert said == (
        f"6 samples -> predictions.csv\naccuracy {right / 6:.4f} ({right} of 6 with a label)\n"
    )


def test_predictions_are_those_of_python(toy_run: Path, toy_data: Path, command: Command) -> None:
    said = command("predict", toy_run, toy_data, "--out", "out/best.csv", "--which", "best")
    result, arrays = coterie.load(toy_run), np.load(toy_data)
    _, *lines = rows(Path("out/best.csv"))
    assert [int(line[0]) for line in lines] == list(range(60))
    assert [int(line[1]) for line in lines] == result.predict(
        arrays["x_test"], which="best"
    ).tolist()
    shares = np.array([line[2:] for line in lines], np.float32)
    assert (shares == result.predict_proba(arrays["x_test"], which="best")).all()
    score = result.score(arrays["x_test"], arrays["y_test"], which="best")
    assert f"accuracy {score:.4f} " in said


def test_labels_that_are_not_those_of_the_run_are_left_alone(
    toy_run: Path, tmp_path: Path, command: Command
) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 6), np.float32), y=np.array([0, 77]))
    assert "accuracy" not in command("predict", toy_run, "x.npz")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 6), np.float32), y=np.array([0.0, -1, np.nan]))
    assert "of 1 with a label" in command("predict", toy_run, "x.npz")


def test_a_client_predicts_with_its_own_model(
    solo_run: Path, toy_data: Path, command: Command, refused: Refused
) -> None:
    command("predict", solo_run, toy_data, "--client", "3")
    x = np.load(toy_data)["x_test"]
    expected = coterie.load(solo_run).predict(x, client="3").tolist()
    assert [int(line[1]) for line in rows(Path("predictions.csv"))[1:]] == expected
    code, said = refused("predict", solo_run, toy_data)
    assert code == 2 and "client" in said
    code, said = refused("predict", solo_run, toy_data, "--client", "nobody")
    assert code == 2 and "nobody" in said and "'0', '1', '2'" in said


def test_embeddings_are_written_as_a_table_or_an_array(
    toy_run: Path, toy_data: Path, command: Command
) -> None:
    x, result = np.load(toy_data)["x_test"], coterie.load(toy_run)
    said = command("embed", toy_run, toy_data)
    assert said == "60 samples, h of 200 numbers each -> embeddings.csv\n"
    head, *lines = rows(Path("embeddings.csv"))
    assert head[:3] == ["sample", "f0", "f1"] and lines[7][0] == "7"
    assert (np.array([line[1:] for line in lines], np.float32) == result.encode(x)).all()
    command("embed", toy_run, toy_data, "--layer", "z", "--out", "z.npy")
    assert (np.load("z.npy") == result.encode(x, layer="z")).all()


def test_a_csv_file_of_numbers_is_predicted(toy_run: Path, command: Command) -> None:
    Path("x.csv").write_text("a,b,c,d,e,f\n1,2,3,4,5,6\n")
    assert command("predict", toy_run, "x.csv") == "1 sample -> predictions.csv\n"
    assert rows(Path("predictions.csv"))[1][0] == "2"  # the header is row 1, as in messages


def test_exports_have_a_place_of_their_own(
    toy_run: Path, solo_run: Path, command: Command, tmp_path: Path
) -> None:
    said = command("export", toy_run)
    path = toy_run / "export" / "model.safetensors"
    assert said.startswith(f"model -> {path} (")
    assert load_file(path).keys() == load_file(toy_run / "model.safetensors").keys()
    command("export", toy_run, "--what", "encoder", "--which", "best", "--format", "pt2")
    assert (toy_run / "export" / "encoder-best.pt2").is_file()
    command("export", toy_run, "--out", "net.onnx")
    assert json.loads((tmp_path / "net.onnx.json").read_text())["shape"] == [6]
    command("export", solo_run, "--what", "personal", "--client", "2")
    own = load_file(solo_run / "export" / "personal-2.safetensors")
    saved = load_file(solo_run / "personal" / "2.safetensors")
    assert all((own[name] == array).all() for name, array in saved.items())


def test_a_run_is_evaluated_again_and_the_metrics_can_be_kept(
    toy_run: Path, command: Command
) -> None:
    last = toy.trace(toy_run)[-1]["metrics"]
    said = command("evaluate", toy_run)
    assert re.search(rf"^accuracy +{last['accuracy']:.4f}$", said, re.M)
    said = command("evaluate", toy_run, "evaluate.with=knn", "--out", "knn.json")
    metrics = json.loads(Path("knn.json").read_text())
    assert f"{metrics['knn']:.4f}" in said and said.endswith("written to knn.json\n")


def test_a_cleaned_run_does_everything_but_resume(
    toy_run: Path, toy_data: Path, tmp_path: Path, command: Command
) -> None:
    folder = shutil.copytree(toy_run, tmp_path / "run")
    outcomes = []
    for _ in range(2):
        command("predict", folder, toy_data)
        command("embed", folder, toy_data)
        command("export", folder, "--out", "net.safetensors")
        command("evaluate", folder, "--out", "metrics.json")
        names = ("predictions.csv", "embeddings.csv", "metrics.json")
        weights = load_file("net.safetensors")
        outcomes.append(
            {
                **{name: Path(name).read_bytes() for name in names},
                **{name: array.tobytes() for name, array in weights.items()},
                "history": repr(coterie.load(folder).history).encode(),
            }
        )
        if len(outcomes) == 1:
            said = command("clean", folder)
            assert said.endswith(f"freed in {folder}\n") and not said.startswith("0 files")
            assert not any((folder / name).exists() for name in FOLDERS)
    assert outcomes[0] == outcomes[1]
    assert command("clean", folder) == f"0 files removed, 0.0 kB freed in {folder}\n"


def test_resuming_a_cleaned_run_leaves_its_results(
    toy_run: Path, tmp_path: Path, command: Command
) -> None:
    folder = shutil.copytree(toy_run, tmp_path / "run")
    command("clean", folder)
    before = (folder / "metrics.jsonl").read_bytes(), toy.outputs(folder)
    command("run", "--out", folder, "--resume", "--quiet")
    assert ((folder / "metrics.jsonl").read_bytes(), toy.outputs(folder)) == before


@pytest.fixture(scope="module")
def unfinished(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfinished") / "run"
    with pytest.raises(toy.Killed):
        toy.run(toy_data, folder, recorders=[toy.StopAfter(2, toy.Killed)])
    return folder


@pytest.mark.parametrize("name", ["predict", "embed", "export", "evaluate", "clean"])
def test_an_unfinished_run_is_refused_with_the_command_that_resumes_it(
    name: str, unfinished: Path, toy_data: Path, refused: Refused
) -> None:
    data = [toy_data] if name in ("predict", "embed") else []
    code, said = refused(name, unfinished, *data)
    assert code == 2 and f"coterie run --out {unfinished} --resume" in said
    assert any((unfinished / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["predict", "embed", "export", "evaluate", "clean"])
def test_what_is_no_run_is_refused_by_its_path(
    name: str, toy_data: Path, tmp_path: Path, refused: Refused
) -> None:
    data = [toy_data] if name in ("predict", "embed") else []
    code, said = refused(name, "nothing", *data)
    assert code == 3 and "nothing" in said
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("predict", "RUN", "missing"), 3, "does not exist"),
        (("predict", "RUN", "empty"), 3, "no image"),
        (("predict", "RUN", "broken"), 3, "broken/a.png"),
        (("predict", "RUN", "large"), 3, "20 x 30 pixels"),
        (("predict", "RUN", "wrong.npy"), 3, "(2, 5)"),
        (("predict", "RUN", "right.npy", "--out", "p.txt"), 2, ".csv"),
        (("predict", "RUN", "right.npy", "--which", "first"), 2, "--which first"),
        (("predict", "RUN", "right.npy", "--which", "best"), 2, "best"),
        (("embed", "RUN", "right.npy", "--out", "e.txt"), 2, ".csv or .npy"),
        (("embed", "RUN", "right.npy", "--layer", "p"), 2, "--layer p"),
        (("export", "RUN", "--out", "net.pth"), 2, "safetensors, pt2, onnx"),
        (("export", "RUN", "--format", "h5"), 2, "safetensors, pt2, onnx"),
        (("export", "RUN", "--what", "head"), 2, "'head'"),
        (("export", "RUN", "--what", "personal"), 2, "'north', 'south'"),
        (("export", "RUN", "--client", "west"), 2, "'north', 'south'"),
        (("evaluate", "RUN", "--out", "m.txt"), 2, ".json"),
        (("evaluate", "RUN", "evaluate.with"), 2, "table.key=value"),
        (("evaluate", "RUN"), 2, "config.toml"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    image_run: Path,
    tmp_path: Path,
    refused: Refused,
) -> None:
    for folder, size in (("empty", None), ("broken", (16, 16)), ("large", (20, 30))):
        (tmp_path / folder).mkdir()
        if size:
            Image.new("L", size).save(tmp_path / folder / "a.png")
    broken = tmp_path / "broken" / "a.png"
    broken.write_bytes(broken.read_bytes()[:44])
    np.save(tmp_path / "wrong.npy", np.ones((2, 5), np.float32))
    np.save(tmp_path / "right.npy", np.ones((2, 16, 16), np.float32))
    before = sorted(tmp_path.iterdir())
    words = [str(image_run) if word == "RUN" else word for word in arguments]
    answer = refused(*words)
    assert answer[0] == code and said in answer[1]
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_without_a_classifier_names_what_it_can_do(
    toy_data: Path, tmp_path: Path, command: Command, refused: Refused
) -> None:
    simsiam = {"name": "simsiam", "hidden": 8}
    tables = toy.tables(
        toy_data, run={"rounds": 1}, objective=simsiam, evaluate={"with": ["knn"], "metric": "knn"}
    )
    tables["data"]["augment"] = "own_parts:Shade"
    coterie.run(tables, out=tmp_path / "run")
    code, said = refused("predict", "run", toy_data)
    assert code == 2 and "coterie evaluate run evaluate.with=probe" in said
    assert "probe" in command("evaluate", "run", "evaluate.with=probe")
    command("embed", "run", toy_data)


def test_a_flipped_byte_in_the_weights_is_refused(
    toy_run: Path, toy_data: Path, tmp_path: Path, refused: Refused
) -> None:
    folder = shutil.copytree(toy_run, tmp_path / "run")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    code, said = refused("predict", folder, toy_data)
    assert code == 3 and "model.safetensors" in said
