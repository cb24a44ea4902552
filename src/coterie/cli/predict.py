"""`coterie predict` and `coterie embed`: apply a trained model to files."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from coterie.cli.options import Client, Data, Debug, Run, Which, check_which
from coterie.core.errors import ConfigError
from coterie.core.files import replace_durably
from coterie.core.formatting import counted

if TYPE_CHECKING:
    import numpy as np

    from coterie.data.inputs import Inputs

_REMEDY = "; choose another --out or free some space"
_LAYER = typer.Option(metavar="h|z", help="h: behind the backbone; z: behind the projector.")
_PREDICTIONS = typer.Option(metavar="FILE", help="A file .csv.")
_EMBEDDINGS = typer.Option(
    metavar="FILE", help="A file .csv, or .npy without the names of the samples."
)


def predict(
    run: Run,
    data: Data,
    client: Client = None,
    which: Which = "last",
    out: Annotated[Path, _PREDICTIONS] = Path("predictions.csv"),
    debug: Debug = False,
) -> None:
    """Predict the class of every sample, with the probability of each class."""
    checked = check_which(which)
    _check_ending(out, (".csv",))
    inputs, notes = _read(run, data)

    import coterie  # from here on torch is imported, which takes seconds

    result = coterie.load(run)
    shares = result.predict_proba(inputs.x, client=client, which=checked)
    predicted = [result.classes[number] for number in shares.argmax(axis=1)]
    rows = (
        (name, label, *_format(row))
        for name, label, row in zip(inputs.names, predicted, shares, strict=True)
    )
    _write_csv(out, ("sample", "prediction", *result.classes), rows)
    for note in notes:
        typer.echo(note)
    typer.echo(f"{counted(len(predicted), 'sample')} -> {out}")
    if inputs.y is not None and (score := _score(predicted, inputs.y, result.classes)):
        right, labelled = score
        typer.echo(f"accuracy {right / labelled:.4f} ({right:,} of {labelled:,} with a label)")


def embed(
    run: Run,
    data: Data,
    layer: Annotated[str, _LAYER] = "h",
    client: Client = None,
    which: Which = "last",
    out: Annotated[Path, _EMBEDDINGS] = Path("embeddings.csv"),
    debug: Debug = False,
) -> None:
    """Compute the representation of every sample."""
    checked = check_which(which)
    if layer not in ("h", "z"):
        raise ConfigError(f"--layer {layer} must be h or z")
    ending = _check_ending(out, (".csv", ".npy"))
    inputs, notes = _read(run, data)

    import numpy as np

    import coterie  # from here on torch is imported, which takes seconds

    chosen = cast(Literal["h", "z"], layer)
    vectors = coterie.load(run).encode(inputs.x, layer=chosen, client=client, which=checked)
    if ending == ".npy":
        stream = io.BytesIO()
        np.save(stream, vectors, allow_pickle=False)
        replace_durably(out, stream.getvalue(), _REMEDY)
    else:
        head = ("sample", *(f"f{number}" for number in range(vectors.shape[1])))
        pairs = zip(inputs.names, vectors, strict=True)
        _write_csv(out, head, ((name, *_format(row)) for name, row in pairs))
    for note in notes:
        typer.echo(note)
    entries = counted(vectors.shape[1], "number")
    typer.echo(f"{counted(len(vectors), 'sample')}, {layer} of {entries} each -> {out}")


def _check_ending(out: Path, endings: Sequence[str]) -> str:
    ending = out.suffix.lower()
    if ending not in endings:
        raise ConfigError(f"--out {out} must end in {' or '.join(endings)}")
    return ending


def _read(run: Path, data: Path) -> tuple["Inputs", tuple[str, ...]]:
    """Read samples in the form that the run was trained on; also notes on missing cells."""
    from coterie.experiment.model_file import read_model_file

    described = read_model_file(run)

    from coterie.experiment.network_input import describe_gaps, read_files  # imports torch

    inputs = read_files(data, described.input, described.classes)
    return inputs, describe_gaps(inputs.x, described.input) if described.input.columns else ()


def _score(predicted: Sequence[Any], y: "np.ndarray", classes: Sequence[Any]) -> Any:
    """Count right predictions and labels; None if the labels are not the classes of the run.

    Names of folders are text where the classes may be numbers, so all are compared as text.
    """
    from coterie.data.labels import is_missing

    known = {str(name) for name in classes}
    pairs = []
    for answer, label in zip(predicted, y.tolist(), strict=True):
        if not is_missing(label):
            whole = isinstance(label, float) and label.is_integer()
            pairs.append((str(answer), str(int(label) if whole else label)))
    if not pairs or not all(label in known for _, label in pairs):
        return None
    return sum(answer == label for answer, label in pairs), len(pairs)


def _format(row: "np.ndarray") -> list[str]:
    """Write float32 numbers with as many digits as tell them apart."""
    return [f"{value:.9g}" for value in row.tolist()]


def _write_csv(path: Path, head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    replace_durably(path, text.getvalue().encode(), _REMEDY)
