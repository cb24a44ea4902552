"""A run opened again: its history and its models, from the files of its directory alone."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import list_first
from coterie.data import labels
from coterie.data.samples import read_labels
from coterie.engine.best import find_best
from coterie.engine.record import Confusion, RoundEvent, recall_by_class
from coterie.experiment.history import METRICS, History, read_history
from coterie.experiment.model_file import MODEL_FILE, ModelFile, WeightsFile, read_model_file
from coterie.experiment.network_input import to_input
from coterie.experiment.own import GIVEN
from coterie.experiment.restore import restore, uses_batch_statistics
from coterie.experiment.tables import read
from coterie.nets.heads import Network, Outputs
from coterie.report.figure import draw_metrics
from coterie.types import Format, Layer, PathLike, Samples, What, Which

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONFIG = "config.toml"
_BATCH = 256
_RESUME = {
    "command": "coterie run --out {folder} --resume",
    "deploy": "coterie deploy server --out {folder} --resume, with the options of before",
    "run": 'coterie.run(..., out="{folder}", resume=True)',
    "fit": 'coterie.fit(..., out="{folder}", resume=True)',
}
Caller = Literal["command", "deploy", "run", "fit"]


def say_how_to_resume(folder: Path, caller: Caller) -> str:
    """Write the call that resumes a run: a command, or a function of Python."""
    return _RESUME[caller].format(folder=folder)


def load(folder: PathLike, *, net: nn.Module | Callable[..., nn.Module] | None = None) -> "Result":
    """Open the directory of a run; `net` is its backbone, if that cannot be imported by name."""
    path = Path(folder)
    if not any((path / name).exists() for name in (MODEL_FILE, CONFIG, METRICS)):
        raise DataError(f"there is no run in {path}: it has no {MODEL_FILE}")
    return Result(path, {} if net is None else {"net": net})


class Result:
    """A view of a run directory: opens files when asked, holds no data."""

    folder: Path

    def __init__(self, folder: Path, objects: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self._objects = dict(objects or {})  # parts that only this process has, by table

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r}, {self.history!r})"

    @property
    def config(self) -> Mapping[str, Mapping[str, Any]]:
        """The resolved configuration, as tables."""
        path = self.folder / CONFIG
        if not path.exists():
            raise DataError(f"{path} is missing: copy it from the run directory")
        return read(path)

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The classes as the labels were given, in the order of the network's outputs."""
        return self._described.classes

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients."""
        return self._described.clients

    @property
    def unseen(self) -> tuple[str, ...]:
        """The names of those clients that were kept for evaluation (`cohort.unseen`)."""
        return self._described.unseen

    @property
    def history(self) -> History:
        """The finished rounds."""
        return read_history(self.folder, self._metric)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics of the last round."""
        history = self.history
        return history[-1].metrics if history else {}

    @property
    def per_client(self) -> Mapping[str, Mapping[str, float]]:
        """What the last evaluation measured on each client, by its name."""
        return next((event.clients for event in reversed(self.history) if event.clients), {})

    @property
    def confusion(self) -> np.ndarray:
        """The test samples by true class (rows) and predicted class (columns), as `classes`."""
        return _to_matrix(self._last_classified.confusion)

    @property
    def client_confusion(self) -> Mapping[str, np.ndarray]:
        """The confusion matrix of each client's test samples, by its name."""
        matrices = self._last_classified.client_confusion
        return {name: _to_matrix(confusion) for name, confusion in matrices.items()}

    @property
    def recall(self) -> Mapping[int | str, float]:
        """The share of each class's test samples that is recognised; only classes that have any."""
        shares = recall_by_class(self._last_classified.confusion)
        named = zip(self.classes, shares, strict=True)
        return {name: share for name, share in named if share is not None}

    @property
    def best(self) -> RoundEvent:
        """The round with the highest `evaluate.metric`, the earlier one of two equals.

        Where that was never measured it is the last round.
        """
        history = self.history
        if not history:
            raise DataError(f"{self.folder / METRICS} has no finished round yet")
        return find_best(history, history.metric) or history[-1]

    def model(self, which: Which = "last") -> Network:
        """Load the global model of the last or the best round, in eval mode, on the CPU."""
        described = self._finished()
        if which not in ("last", "best"):
            raise ConfigError(f"which = {which!r} must be 'last' or 'best'")
        if described.weights.last is None:
            raise ConfigError(
                f"method.name = {described.method['name']!r} has no global model: choose a "
                f"client (client=, --client): {list_first([*map(repr, described.clients)])}"
            )
        saved = getattr(described.weights, which)
        if saved is None:
            raise ConfigError(
                f"{self.folder} has no best round, as {self._metric!r} was not measured: use "
                "which='last'"
            )
        return self._restore(described, saved, described.kept)

    def encoder(self, which: Which = "last", client: str | None = None) -> nn.Module:
        """Load the trained backbone alone, which maps prepared samples to representations."""
        return self._network(client, which).backbone

    def personal(self, client: str) -> Network:
        """Load a client's own model of the last round, in eval mode, on the CPU."""
        described = self._finished()
        self._check_client(described, client)
        saved = described.weights.personal.get(client)
        if saved is None:
            raise ConfigError(
                f"method.name = {described.method['name']!r} makes no personal models: leave "
                "the client out"
            )
        return self._restore(described, saved)

    def prepare(self, x: Samples, client: str | None = None) -> Tensor:
        """Convert samples to what `model()` and `encoder()` take: normalised float32."""
        described = self._described
        if client is not None and client not in described.input.sites:
            self._check_client(described, client)
        return to_input(x, described.input, client)

    def predict(
        self, x: Samples, *, client: str | None = None, which: Which = "last"
    ) -> np.ndarray:
        """Predict the class of each sample, as an entry of `classes`."""
        numbers = self._logits(x, client, which).argmax(axis=1)
        predicted: np.ndarray = _to_array(self.classes)[numbers]
        return predicted

    def predict_proba(
        self, x: Samples, *, client: str | None = None, which: Which = "last"
    ) -> np.ndarray:
        """Predict the probability of each class, one column a class; rows sum to 1."""
        logits = torch.from_numpy(self._logits(x, client, which))
        return logits.softmax(dim=1).numpy()

    def encode(
        self,
        x: Samples,
        *,
        layer: Layer = "h",
        client: str | None = None,
        which: Which = "last",
    ) -> np.ndarray:
        """Compute representations: h behind the backbone, z behind the projector."""
        if layer not in ("h", "z"):
            raise ConfigError(f"layer = {layer!r} must be 'h' or 'z'")
        net = self._network(client, which)
        if layer == "h":
            return _apply(net, net.encode, self.prepare(x, client))
        return _apply(net, lambda part: _forward(net, part).z, self.prepare(x, client))

    def score(self, x: Samples, y: Any, **options: Any) -> float:
        """Compute the accuracy on samples that have a label; options are those of `predict`."""
        predicted = self.predict(x, **options)
        given = labels.clean(read_labels(y), len(predicted), "y")
        rows = labels.known(given)
        if not np.isin(given[rows], _to_array(self.classes)).any():
            known = list_first([repr(name) for name in self.classes])
            raise DataError(f"y has no label of the run's classes, which are {known}")
        return float((predicted[rows] == given[rows]).mean())

    def plot(self, *metrics: str) -> "Figure":
        """Draw metrics over the rounds; without any, `evaluate.metric`."""
        history = self.history
        for name in metrics or (history.metric,):
            history[name]  # says which there are
        return draw_metrics(history, metrics or (history.metric,))

    def export(
        self,
        path: PathLike,
        *,
        what: What = "model",
        client: str | None = None,
        which: Which = "last",
        format: Format | None = None,
    ) -> Path:
        """Write a network to a file for other programs; the ending of `path` says the format."""
        from coterie.experiment.export import export  # it needs this module

        return export(self, path, what=what, client=client, which=which, format=format)

    @property
    def _described(self) -> ModelFile:
        return read_model_file(self.folder)

    @property
    def _last_classified(self) -> RoundEvent:
        """The last round, in which test samples were counted by class."""
        history = self.history
        if not history or not history[-1].confusion:
            raise DataError(
                f"{self.folder / METRICS} has no confusion matrix: a finished run with the "
                "evaluator 'accuracy', 'personal' or 'knn' has one"
            )
        return history[-1]

    @property
    def _metric(self) -> str:
        """The metric that the run is judged by, as far as it is known."""
        if (self.folder / CONFIG).exists():
            return str(self.config.get("evaluate", {}).get("metric", "accuracy"))
        best = self._described.weights.best
        return best.metric if best is not None and best.metric else "accuracy"

    def _finished(self) -> ModelFile:
        """Read `model.json`; refuse a run that has no weights yet."""
        described = self._described
        if not described.weights:
            again = say_how_to_resume(self.folder, self._find_caller(described))
            raise ConfigError(f"{self.folder} is not finished; resume it with: {again}")
        return described

    def _find_caller(self, described: ModelFile) -> Caller:
        """Tell from the configuration which function or command a run can be resumed by."""
        data = self.config.get("data", {}) if (self.folder / CONFIG).exists() else {}
        if data.get("name") == GIVEN:
            return "fit"
        named = (described.method["name"], described.objective["name"], described.net["backbone"])
        local = any(str(name).startswith("object:") for name in (*named, data.get("name")))
        return "run" if local else "command"

    def _network(self, client: str | None, which: Which) -> Network:
        if client is None:
            return self.model(which)
        if which != "last":
            raise ConfigError(
                f"which = {which!r} with client = {client!r}: personal models are those of the "
                "last round; leave one of them out"
            )
        described = self._described
        if described.input.by_site and not described.weights.personal:
            return self.model()  # the client is named for the statistics of its table
        return self.personal(client)

    def _restore(
        self, described: ModelFile, saved: WeightsFile, kept: tuple[str, ...] = ()
    ) -> Network:
        return restore(self.folder, described, saved, self._objects, kept)

    def _check_client(self, described: ModelFile, client: str) -> None:
        if client not in described.clients:
            raise ConfigError(
                f"client = {client!r} is not known; there are: "
                f"{list_first([*map(repr, described.clients)])}"
            )

    def _logits(self, x: Samples, client: str | None, which: Which) -> np.ndarray:
        net = self._network(client, which)
        if net.classifier is None or not self.classes:
            remedy = "use encode, and train a classifier on what it returns"
            if self._find_caller(self._described) == "command":
                remedy = (
                    "use encode, or measure a classifier on its representations with: coterie "
                    f"evaluate {self.folder} evaluate.with=probe"
                )
            raise ConfigError(f"{self.folder} has no classifier: {remedy}")
        return _apply(net, lambda part: _read_logits(net, part), self.prepare(x, client))


def _forward(net: Network, x: Tensor) -> Outputs:
    outputs: Outputs = net(x)
    return outputs


def _read_logits(net: Network, x: Tensor) -> Tensor:
    logits = _forward(net, x).logits
    assert logits is not None  # there is a classifier
    return logits


def _apply(net: Network, function: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """Apply a function of the network batch by batch; at once where batches matter."""
    together = uses_batch_statistics(net)
    if together and len(x) == 1:
        raise DataError(
            "x has one sample, and BatchNorm of this model takes its statistics from the samples: "
            "give two or more, or choose a client"
        )
    size = len(x) if together else _BATCH
    with torch.inference_mode():
        parts = [function(x[start : start + size]) for start in range(0, len(x), size)]
    return torch.cat(parts).numpy()


def _to_matrix(confusion: Confusion) -> np.ndarray:
    return np.array(confusion, np.int64)


def _to_array(classes: tuple[int | str, ...]) -> np.ndarray:
    """Make an array of classes: of integers, of text, or of both."""
    if all(isinstance(name, int) for name in classes):
        return np.array(classes, np.int64)
    mixed = any(isinstance(name, int) for name in classes)
    return np.array(classes, object if mixed else np.str_)
