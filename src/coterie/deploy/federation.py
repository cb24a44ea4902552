"""The sites of a run and what its server knows of their data: forms, classes, sizes; no sample.

Each client hands in a card. `agree` finds the form that most of them have; a client with another
one is refused. Of tables it finds the columns, which become a form when they are fitted. What was
agreed is kept in `federation.json` of the run, so that a restarted server asks nobody again.
"""

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import CheckpointError, RunFailed
from coterie.core.files import replace_durably
from coterie.core.task import ClientId, ClientInfo
from coterie.data.datasets import Dataset
from coterie.data.formats.locate import sort_names
from coterie.data.labels import MISSING, ClassNames
from coterie.data.partition import Partition
from coterie.deploy.columns import TableCard, settle_kinds

FILE = "federation.json"


@dataclass(frozen=True)
class SampleForm:
    """What one sample is, as a network sees it: all sites of a run have the same."""

    kind: str  # "image", "signal" or "table"
    shape: tuple[int, ...]
    dtype: str
    mean: tuple[float, ...] = ()  # per channel
    std: tuple[float, ...] = ()
    columns: tuple[Mapping[str, Any], ...] = ()  # of a table: how each became inputs

    def describe(self) -> str:
        """Say it in a few words."""
        words = f"{self.kind} {self.dtype} {' x '.join(map(str, self.shape))}"
        if self.mean:
            words += f", mean {_write(self.mean)}, deviation {_write(self.std)}"
        if self.columns:
            words += f", columns {', '.join(str(column['name']) for column in self.columns)}"
        return words


@dataclass(frozen=True)
class Card:
    """What a client tells of its data before the first round."""

    form: SampleForm | None  # None: it has a table, whose inputs depend on all sites
    train: int  # samples that it trains on
    test: int
    classes: ClassNames  # that it has; empty where the server states them
    labelled: bool  # whether training and test samples have labels
    table: TableCard | None = None
    kernels: str = ""  # what its machine computes with: "torch", or the variant of the kernels

    def describe(self) -> str:
        """Say in a few words what its samples are."""
        return self.form.describe() if self.form else "rows of a table with named columns"

    def to_plain(self) -> dict[str, Any]:
        """Write it for the head of a message."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Card":
        """Read and check what another machine wrote; `ValueError` if that is no card."""
        try:
            form = None if plain["form"] is None else read_form(plain["form"])
            table = None if form else TableCard.from_plain(plain["table"])
            train, test = _count(plain["train"]), _count(plain["test"])
            classes = tuple(plain["classes"])
            if any(type(name) not in (int, str) for name in classes):
                raise ValueError("classes are named by numbers or text")
            kernels = plain.get("kernels", "")
            if not isinstance(kernels, str) or not re.fullmatch(r"[\w ,.-]{0,40}", kernels):
                raise ValueError("kernels are named by a word")
            return cls(form, train, test, classes, bool(plain["labelled"]), table, kernels)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


def read_form(plain: Mapping[str, Any]) -> SampleForm:
    """Read a form that came as JSON."""
    form = SampleForm(
        str(plain["kind"]),
        tuple(plain["shape"]),
        plain["dtype"],
        *(tuple(plain[name]) for name in ("mean", "std", "columns")),
    )
    numbers = (*form.mean, *form.std)
    if form.dtype not in ("uint8", "float32") or not all(_count(side) for side in form.shape):
        raise ValueError(f"{form.dtype} {form.shape} is no form of a sample")
    if not (form.shape and all(isinstance(number, float) for number in numbers)):
        raise ValueError("mean and deviation are numbers, one for each channel")
    return form


@dataclass(frozen=True)
class Federation:
    """The sites that take part in a run, in the order of their names."""

    run: str  # tells this run from all others
    form: SampleForm
    classes: ClassNames
    labelled: bool
    clients: tuple[ClientInfo, ...]

    def name(self, client: ClientId) -> str:
        """Return the name of a client."""
        return next(info.name for info in self.clients if info.id == client)

    def to_plain(self) -> dict[str, Any]:
        """Write it as JSON has it."""
        return asdict(self)

    def digest(self) -> str:
        """Compute a hash of all that the clients agreed on."""
        return hashlib.sha256(json.dumps(self.to_plain(), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write `federation.json`, atomically."""
        replace_durably(folder / FILE, json.dumps(self.to_plain(), indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> "Federation":
        """Read `federation.json`."""
        path = folder / FILE
        try:
            plain = json.loads(path.read_text())
            clients = tuple(ClientInfo(**info) for info in plain["clients"])
            form, classes = read_form(plain["form"]), tuple(plain["classes"])
            return cls(plain["run"], form, classes, plain["labelled"], clients)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def blank_data(self, folder: Path) -> tuple[Dataset, Partition]:
        """Make data of the right form and sizes in which every sample is zero and unlabelled.

        The arrays take no memory. They stand for what is at the sites, where the engine asks for
        shapes and numbers of samples.
        """
        train = _divide([info.examples for info in self.clients])
        test = _divide([info.tests for info in self.clients])
        ids, names = [info.id for info in self.clients], [info.name for info in self.clients]
        x, y = (
            [_blank(share, self.form) for share in (train, test)],
            [np.full(max(1, sum(map(len, share))), MISSING) for share in (train, test)],
        )
        dataset = Dataset(
            *(x[0], y[0], x[1], y[1], len(self.classes), self.form.mean, self.form.std),
            class_names=self.classes,
            columns=self.form.columns,
            name="sites",
            path=folder,
            fingerprint=self.digest(),
        )
        shares = [dict(zip(ids, part, strict=True)) for part in (train, test)]
        return dataset, Partition(shares[0], shares[1], tuple(names))


def agree(cards: Mapping[str, Card], stated: ClassNames = ()) -> tuple[Federation, dict[str, str]]:
    """Make a federation of clients whose data have the same form; also say who is refused, and why.

    The form is the one that most clients have; of two, that of the first name. The form of tables
    has names and kinds of columns only, and is replaced when they are fitted.
    """
    names = sort_names(cards)
    keys = {name: (_freeze(cards[name].form), _label_kind(cards[name])) for name in names}
    if not names:
        raise RunFailed("no client has joined")
    forms = Counter(form for form, _ in keys.values()).most_common(1)[0][0]
    kinds = Counter(kind for form, kind in keys.values() if form == forms and kind)
    kind = kinds.most_common(1)[0][0] if kinds else ""
    first = next(cards[name] for name in names if keys[name][0] == forms)
    refused = {}
    for name in names:
        own, labels = keys[name]
        if own != forms:
            refused[name] = (
                f"its samples are {cards[name].describe()}, those of the federation "
                f"{first.describe()}"
            )
        elif labels and labels != kind:
            refused[name] = f"its classes are named by {labels}, those of the federation by {kind}"
    fitting = [name for name in names if name not in refused]
    form, others = _agree_form({name: cards[name] for name in fitting})
    refused |= others
    members = [name for name in fitting if name not in others]
    classes = stated or _join_classes([cards[name].classes for name in members])
    clients = tuple(
        ClientInfo(id, name, cards[name].train, cards[name].test) for id, name in enumerate(members)
    )
    labelled = any(cards[name].labelled for name in members)
    return Federation(secrets.token_hex(8), form, classes, labelled, clients), refused


def _agree_form(cards: Mapping[str, Card]) -> tuple[SampleForm, dict[str, str]]:
    """Find the form of cards that are alike, and which tables have other columns."""
    form = next(iter(cards.values())).form
    if form is not None:
        return form, {}
    kinds, refused = settle_kinds({name: card.table for name, card in cards.items() if card.table})
    columns = tuple({"name": name, "kind": kind} for name, kind in kinds.items())
    return SampleForm("table", (len(columns),), "float32", columns=columns), refused


def _join_classes(parts: Sequence[ClassNames]) -> ClassNames:
    """Order the classes of all sites: numbers by size, text as one data set of them would be."""
    distinct = {name for part in parts for name in part}
    texts = sort_names(name for name in distinct if isinstance(name, str))
    return (*sorted(name for name in distinct if isinstance(name, int)), *texts)


def _label_kind(card: Card) -> str:
    if not card.classes:
        return ""
    return "text" if isinstance(card.classes[0], str) else "numbers"


def _freeze(form: SampleForm | None) -> str:
    return json.dumps(asdict(form) if form else None, sort_keys=True)


def _divide(sizes: Sequence[int]) -> list[np.ndarray]:
    """Number the samples of all clients, one client after the other."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _blank(shares: Sequence[np.ndarray], form: SampleForm) -> np.ndarray:
    count = max(1, sum(map(len, shares)))
    return np.broadcast_to(np.zeros((), form.dtype), (count, *form.shape))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r} is not a number of samples")
    return value


def _write(numbers: Sequence[float]) -> str:
    return "/".join(f"{number:.4g}" for number in numbers)
