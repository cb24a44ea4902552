"""The partition of a data set among clients, and the rules that make one."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isabstract
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.data.checks import NOBODY
from coterie.data.datasets import Groups
from coterie.data.labels import MISSING
from coterie.data.skew import Labels, Shares, Shift, Skewed

_LONGEST = 200  # bytes of a name that becomes a file's


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The training and test indices of every client, in the order in which they were dealt.

    A client that is not in `test` has no test samples; `names` are for display. `shifts` say how
    the samples of some clients differ from the stored ones.
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
        """The numbers of the clients, in their order."""
        return tuple(self.train)

    def file_name(self, client: int) -> str:
        """Name the file of a client's model: by its name if that is usable, else by its number."""
        name = self.names[self.clients.index(client)]
        folded = [other.casefold() for other in self.names]  # some file systems ignore case
        shown = bool(name) and name.isprintable() and not name.startswith(".")  # nor hidden
        usable = shown and Path(name).name == name and len(name.encode()) <= _LONGEST
        if usable and folded.count(name.casefold()) == 1:
            return f"{name}.safetensors"
        number = f"client-{client}"
        while number in folded:
            number += "_"
        return f"{number}.safetensors"

    def sizes(self) -> dict[int, int]:
        """Count the training samples of every client."""
        return {client: len(share) for client, share in self.train.items()}

    def digest(self) -> str:
        """Compute the SHA-256 of the indices, the names and the shifts."""
        sha = hashlib.sha256(json.dumps(self.names).encode())
        for name, array in self.pack().items():
            sha.update(f"{name}:{len(array)}:".encode())
            sha.update(array.astype("<i8", copy=False).data)
        return sha.hexdigest()

    def class_table(self, labels: np.ndarray, classes: int) -> np.ndarray:
        """Count the training samples by client (in order) and class, without unlabelled ones."""
        table = np.zeros((len(self.train), classes), np.int64)
        for row, share in zip(table, self.train.values(), strict=True):
            own = labels[share]
            row += np.bincount(own[own >= 0], minlength=classes)
        return table

    def pack(self) -> dict[str, np.ndarray]:
        """Pack everything but the names into flat arrays that can be sent to workers."""
        packed = {"clients": np.array(self.clients, np.int64)}
        for part, shares in (("train", self.train), ("test", self.test)):
            lengths = [len(share) for share in shares.values()]
            packed[part] = _concatenate(shares)
            packed[f"{part}_offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
        if self.shifts:
            plain = {str(client): self.shifts[client].to_plain() for client in sorted(self.shifts)}
            packed["shifts"] = np.array(bytearray(json.dumps(plain).encode()), np.uint8)
        return packed

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Iterable[str] = ()) -> "Partition":
        """Reconstruct a packed partition; the shares are views of the flat arrays."""
        clients = arrays["clients"].tolist()
        shifts = json.loads(arrays["shifts"].tobytes()) if "shifts" in arrays else {}
        train, test = (
            np.split(arrays[part], arrays[f"{part}_offsets"][1:-1]) if clients else []
            for part in ("train", "test")
        )
        return cls(
            dict(zip(clients, train, strict=True)),
            dict(zip(clients, test, strict=True)),
            tuple(names),
            {int(client): Shift.from_plain(plain) for client, plain in shifts.items()},
        )

    def restrict(self, train: Mapping[int, np.ndarray]) -> "Partition":
        """Keep some clients, with other training samples; their test samples stay."""
        names = dict(zip(self.clients, self.names, strict=True))
        return Partition(
            train,
            {client: self.test[client] for client in train},
            tuple(names[client] for client in train),
            {client: self.shifts[client] for client in train if client in self.shifts},
        )

    def pooled(self) -> "Partition":
        """Merge all clients into one, for centralised training on the samples as stored.

        The shifts are dropped: one client cannot have those of many.
        """
        return Partition({0: _concatenate(self.train)}, {0: _concatenate(self.test)}, ("all",))


def load_class(kind: str) -> type[Skewed]:
    """Import the dataclass of a rule: `dirichlet` gives `Dirichlet`; or a user's own class."""
    base: type[Any] = Skewed
    if ":" not in kind:
        return registry.find("data/partitions", kind, base, "partition.kind")
    rule = registry.import_own(kind, "partition.kind")
    if isinstance(rule, type) and issubclass(rule, Skewed) and not isabstract(rule):
        return rule
    raise ConfigError(
        f"partition.kind = {kind!r} is not a partition: a dataclass that extends "
        "coterie.data.skew:Skewed and has min_samples and deal()"
    )


def divide(
    scheme: Skewed,
    y_train: Labels,
    y_test: Labels,
    classes: int,
    seed: int,
    groups: Groups | None = None,
    shape: Sequence[int] = (),
) -> Partition:
    """Divide the training set by the rule and the test set accordingly; no sample is dealt twice.

    If `shape`, that of one sample, is given, shifts that cannot change it are rejected.
    """
    if shape:
        scheme.check_shape(shape)
    _check_labels(scheme, y_train)
    train = scheme.deal(y_train, classes, seed, groups)
    _check_shares(scheme, train, len(y_train))
    shifts = scheme.draw_shifts(tuple(train), classes, seed)
    chosen, names = scheme.select_groups(groups), ()
    if groups is not None and chosen is not None:
        names = tuple(groups.names[group] for group in chosen)
        if len(groups.test):
            own = (np.flatnonzero(groups.test == group) for group in chosen)
            return Partition(train, dict(zip(train, own, strict=True)), names, shifts)
    return Partition(train, deal_test(train, y_train, y_test, classes), names, shifts)


def _check_labels(scheme: Skewed, labels: Labels) -> None:
    """Reject a rule that deals by class where labels are missing."""
    missing = int((labels < 0).sum())
    if not missing or not (scheme.labels or scheme.label_swap):
        return
    kind = type(scheme).__name__
    what = f"the partition {kind}" if scheme.labels else "partition.label_swap"
    raise ConfigError(
        f"{what} needs the class of every sample, and {missing} of {len(labels)} training samples "
        "have no label; use partition.kind=iid or quantity, or by-group for data of sites"
    )


def _check_shares(scheme: Skewed, train: Shares, samples: int) -> None:
    """Check that there is a client, that each has enough samples, and none is dealt twice."""
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
    dealt = _concatenate(train)
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


def deal_test(train: Shares, y_train: Labels, y_test: Labels, classes: int) -> Shares:
    """Deal the test samples of every class in proportion to the clients' training samples of it.

    The samples of a class, in order, are cut at the rounded cumulative shares, so that each is
    dealt exactly once; a class that no client trains on is not dealt. Samples without a label are
    dealt as one more class; where only the test samples have none, by the clients' sizes.
    """
    clients = np.array(list(train), np.int64)
    table = Partition(train, {}).class_table(y_train, classes)
    unlabelled = np.array([np.count_nonzero(y_train[share] < 0) for share in train.values()])
    sizes = np.array([len(share) for share in train.values()])
    rest = unlabelled if unlabelled.any() else sizes
    cumulative = np.cumsum(np.column_stack([table, rest]), axis=0)
    owner = np.full(len(y_test), NOBODY)
    for k in np.flatnonzero(cumulative[-1]):
        members = np.flatnonzero(y_test == (k if k < classes else MISSING))
        total = cumulative[-1, k]
        # Integer rounding is exact, so that the last cut is len(members).
        cuts = (2 * cumulative[:, k] * len(members) + total) // (2 * total)
        owner[members] = np.repeat(np.arange(len(clients)), np.diff(cuts, prepend=0))
    order = np.argsort(owner, kind="stable")[np.count_nonzero(owner == NOBODY) :]
    ends = np.searchsorted(owner[order], np.arange(1, len(clients)))
    return dict(zip(clients.tolist(), np.split(order, ends), strict=True))


def _indices(share: object) -> np.ndarray:
    return np.ascontiguousarray(share, dtype=np.int64)


def _concatenate(shares: Mapping[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([*map(_indices, shares.values()), np.empty(0, np.int64)])
