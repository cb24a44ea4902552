"""Who holds what: the division of a data set among clients, and the rules that make one."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.task import ClientInfo
from coterie.data import checks
from coterie.data.skew import Shift, Skewed

if TYPE_CHECKING:
    from coterie.data.datasets import Groups

_NOBODY = -1


class Scheme(Protocol):
    """A rule that divides the training set, with its settings."""

    @property
    def min_samples(self) -> int:
        """The fewest training samples that a client may have."""

    def deal(
        self, labels: np.ndarray, classes: int, seed: int, groups: "Groups | None" = None
    ) -> dict[int, np.ndarray]:
        """The training indices of every client, in the order in which they were dealt."""

    def held_groups(self, groups: "Groups | None") -> np.ndarray | None:
        """Which of the data set's groups is behind every client; None where they are not."""

    def shifts(self, clients: Sequence[int], classes: int, seed: int) -> dict[int, Shift]:
        """What sets the samples of some clients apart; empty for most partitions."""

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuse samples of a shape that the shifts cannot change."""


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The training and test indices of every client, in the order in which they were dealt.

    A client that `test` leaves out has no test images; `names` are for display. `shifts` say how
    the samples of a client differ from the stored ones, where they do.
    """

    train: Mapping[int, np.ndarray]
    test: Mapping[int, np.ndarray]
    names: tuple[str, ...] = ()
    shifts: Mapping[int, Shift] = field(default_factory=dict)

    def __post_init__(self) -> None:
        train = {client: _indices(share) for client, share in self.train.items()}
        test = {client: _indices(self.test.get(client, ())) for client in train}
        names = self.names or tuple(str(client) for client in train)
        if len(names) != len(train) or not train.keys() >= self.test.keys():
            raise ValueError(f"{len(train)} clients, {len(names)} names, {len(self.test)} tests")
        if not train.keys() >= self.shifts.keys():
            raise ValueError(f"shifts of {sorted(self.shifts.keys() - train.keys())}, no clients")
        for name, value in (("train", train), ("test", test), ("names", names)):
            object.__setattr__(self, name, value)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients in their order."""
        return tuple(self.train)

    def file_name(self, client: int) -> str:
        """Of a client's own model: its name, or its number where that cannot be, or is shared."""
        name = self.names[self.clients.index(client)]
        usable = Path(name).name == name and self.names.count(name) == 1
        return f"{name if usable else client}.safetensors"

    def sizes(self) -> dict[int, int]:
        """How many training samples every client has."""
        return {client: len(share) for client, share in self.train.items()}

    def client_infos(self) -> list[ClientInfo]:
        """What an executor knows of every client before any task."""
        return [
            ClientInfo(client, name, len(self.train[client]), len(self.test[client]))
            for client, name in zip(self.clients, self.names, strict=True)
        ]

    def digest(self) -> str:
        """SHA-256 over both maps, the names, and the shifts if there are any."""
        sha = hashlib.sha256(json.dumps(self.names).encode())
        for name, array in self.pack().items():
            sha.update(f"{name}:{len(array)}:".encode())
            sha.update(array.astype("<i8", copy=False).data)
        return sha.hexdigest()

    def class_table(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """The number of training samples by client (in order) and class."""
        return _class_table(self.train, labels, classes)

    def pack(self) -> dict[str, np.ndarray]:
        """Flat arrays that say it all but the names, to send to workers: five, six with shifts."""
        packed = {"clients": np.array(self.clients, np.int64)}
        for part, shares in (("train", self.train), ("test", self.test)):
            lengths = [len(share) for share in shares.values()]
            packed[part] = _joined(shares)
            packed[f"{part}_offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
        if self.shifts:
            plain = {str(client): self.shifts[client].to_plain() for client in sorted(self.shifts)}
            packed["shifts"] = np.array(bytearray(json.dumps(plain).encode()), np.uint8)
        return packed

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Iterable[str] = ()) -> "Partition":
        """The partition that was packed; the shares are views of the flat arrays."""
        clients = arrays["clients"].tolist()
        train, test = (
            np.split(arrays[part], arrays[f"{part}_offsets"][1:-1]) if clients else []
            for part in ("train", "test")
        )
        return cls(
            dict(zip(clients, train, strict=True)),
            dict(zip(clients, test, strict=True)),
            tuple(names),
            {int(client): Shift.from_plain(plain) for client, plain in _read(arrays).items()},
        )

    def pooled(self) -> "Partition":
        """All clients merged into one, for centralised training on the samples as stored.

        One client cannot have the shifts of many: they are left behind.
        """
        return Partition({0: _joined(self.train)}, {0: _joined(self.test)}, ("all",))


def kinds() -> tuple[str, ...]:
    """The rules there are: one per file of `partitions`."""
    return registry.names("data/partitions")


def load_class(kind: str) -> type[Scheme]:
    """The dataclass of a rule: `dirichlet` gives `Dirichlet`; or the user's own class."""
    if ":" in kind:
        own = registry.import_own(kind, "partition.kind")
        if not (isinstance(own, type) and issubclass(own, Skewed) and hasattr(own, "deal")):
            raise ConfigError(
                f"partition.kind = {kind!r} is not a partition: a dataclass that extends "
                "coterie.data.skew:Skewed and has min_samples and deal()"
            )
        return cast(type[Scheme], own)
    checks.known("partition.kind", kind, kinds())
    module = import_module(f"coterie.data.partitions.{kind.replace('-', '_')}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
    )
    return cast(type[Scheme], found)


def make(
    scheme: Scheme,
    y_train: np.ndarray,
    y_test: np.ndarray,
    classes: int,
    seed: int,
    groups: "Groups | None" = None,
    shape: Sequence[int] = (),
) -> Partition:
    """Deal the training set by the rule and the test set after it; nothing is dealt twice.

    `shape` is that of one sample; where it is given, shifts that cannot change it are refused.
    """
    if shape:
        scheme.check_shape(shape)
    train = scheme.deal(y_train, classes, seed, groups)
    _check_shares(scheme, train)
    _check_dealt(type(scheme).__name__, _joined(train), len(y_train))
    shifts = scheme.shifts(tuple(train), classes, seed)
    held = scheme.held_groups(groups)
    if held is None or groups is None:
        return Partition(train, deal_test(train, y_train, y_test, classes), shifts=shifts)
    names = tuple(groups.names[group] for group in held)
    if not len(groups.test):
        return Partition(train, deal_test(train, y_train, y_test, classes), names, shifts)
    own = (np.flatnonzero(groups.test == group) for group in held)
    return Partition(train, dict(zip(train, own, strict=True)), names, shifts)


def _check_shares(scheme: Scheme, train: Mapping[int, np.ndarray]) -> None:
    """There is a client, and each has enough."""
    rule = type(scheme).__name__
    if not train:
        raise ConfigError(f"the partition {rule} made no client; use another partition.kind")
    fewer = ", or use fewer partition.clients" if hasattr(scheme, "clients") else ""
    for client, share in train.items():
        if len(share) < scheme.min_samples:
            raise ConfigError(
                f"partition.min_samples={scheme.min_samples}, but client {client} of {rule} has "
                f"{len(share)} samples; lower it{fewer}"
            )


def _check_dealt(rule: str, dealt: np.ndarray, samples: int) -> None:
    """Every index is one of a sample, and none is dealt twice."""
    outside = dealt[(dealt < 0) | (dealt >= samples)]
    if outside.size:
        raise ConfigError(
            f"the partition {rule} dealt the sample {outside[0]}, and there are {samples}; "
            "correct its deal()"
        )
    times = np.bincount(dealt, minlength=samples)
    if times.max() > 1:
        raise ConfigError(
            f"the partition {rule} dealt the sample {times.argmax()} {times.max()} times; "
            "correct its deal() so that no two clients share one"
        )


def deal_test(
    train: Mapping[int, np.ndarray], y_train: np.ndarray, y_test: np.ndarray, classes: int
) -> dict[int, np.ndarray]:
    """Every class's test images, dealt disjointly by the clients' shares of its training images.

    The images of a class, in order, are cut at the rounded cumulative shares, so that each is
    dealt exactly once; a class that no client holds is dealt to nobody.
    """
    clients = np.array(list(train), np.int64)
    held = np.cumsum(_class_table(train, y_train, classes), axis=0)
    owner = np.full(len(y_test), _NOBODY)
    for k in np.flatnonzero(held[-1]):
        members = np.flatnonzero(y_test == k)
        total = held[-1, k]
        # In integers, round(held * members / total) is exact and the last cut is len(members).
        cuts = (2 * held[:, k] * len(members) + total) // (2 * total)
        owner[members] = np.repeat(np.arange(len(clients)), np.diff(cuts, prepend=0))
    order = np.argsort(owner, kind="stable")[np.count_nonzero(owner == _NOBODY) :]
    ends = np.searchsorted(owner[order], np.arange(1, len(clients)))
    return dict(zip(clients.tolist(), np.split(order, ends), strict=True))


def _class_table(shares: Mapping[int, np.ndarray], labels: np.ndarray, classes: int) -> np.ndarray:
    """Counts of samples by client, in order, and class."""
    table = np.zeros((len(shares), classes), np.int64)
    for row, share in zip(table, shares.values(), strict=True):
        row += np.bincount(labels[share], minlength=classes)
    return table


def _read(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """The packed shifts, empty where there are none."""
    found = json.loads(arrays["shifts"].tobytes()) if "shifts" in arrays else {}
    return cast(dict[str, dict[str, Any]], found)


def _indices(share: object) -> np.ndarray:
    return np.ascontiguousarray(share, dtype=np.int64)


def _joined(shares: Mapping[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([*map(_indices, shares.values()), np.empty(0, np.int64)])
