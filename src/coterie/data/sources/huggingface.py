"""`huggingface`: a Hugging Face data set on disk, of images, arrays or columns (extra `datasets`).

`data.root` is a folder of `save_to_disk`: a data set, or one with the splits train and test. The
label is `data.label`, else the only column of the type ClassLabel, whose names are kept. A column
of images, or of arrays, holds the samples; without one, the columns of values are a table.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import files as disk
from coterie.core.errors import ConfigError, DataError
from coterie.data import checks, labels
from coterie.data.datasets import AnyKind, Groups, Raw
from coterie.data.formats import images, locate, npz
from coterie.data.formats.images import LabelledFiles
from coterie.data.sources.sites import join_sites
from coterie.data.subset import hold_out
from coterie.data.table import TableOptions, make_table, split_by_site, write_value
from coterie.data.table_sites import LabelledTable, encode_sites, label_rows

_SPLITS = ("train", "test")


def files(root: str) -> tuple[Path, ...]:
    """List all files of the folder."""
    folder = locate.require_own("huggingface", root)
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))


def decode(
    root: str, resize: int, scratch: Path, table: TableOptions, kind: AnyKind = "auto"
) -> Raw:
    """Read all samples; without a split for testing, a fifth of every class is held out."""
    parts = _open(locate.require_own("huggingface", root))
    features = parts["train"].features
    table = replace(table, label=table.label or _find_label(features))
    for key in ("label", "site"):
        if (name := getattr(table, key)) and name not in features:
            have = ", ".join(features)
            raise DataError(f"{root}: data.{key}={name!r} is no column; it has: {have}")
    inputs = [name for name in features if name not in (table.label, table.site)]
    samples = [name for name in inputs if type(features[name]).__name__ != "Value"]
    if not samples:
        raw = _read_table(root, parts, inputs, table)
    elif len(samples) > 1:
        raise DataError(f"{root} has samples in the columns {', '.join(samples)}; keep one of them")
    else:
        raw = _read_samples(root, parts, samples[0], table, resize, scratch, kind)
    names = getattr(features[table.label], "names", ()) if table.label else ()
    return replace(raw, classes=len(names), class_names=tuple(names)) if names else raw


def _open(folder: Path) -> dict[str, Any]:
    """Open the splits of a folder; one without splits is all training samples."""
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise ConfigError(
            "data.name = 'huggingface' needs the package datasets: pip install 'coterie[datasets]'"
        ) from None
    try:
        loaded = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{folder} cannot be read as a Hugging Face data set ({reason}); write it with "
            "save_to_disk"
        ) from error
    splits = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    if "train" not in splits:
        have = ", ".join(splits)
        raise DataError(f"{folder} has no split 'train' (it has: {have}); rename one")
    return {name: splits[name] for name in _SPLITS if name in splits}


def _find_label(features: Any) -> str:
    """Find the only column of classes; empty if there is none, or more than one."""
    named = [name for name, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    return named[0] if len(named) == 1 else ""


def _read_table(root: str, parts: Any, inputs: list[str], options: TableOptions) -> Raw:
    """Encode columns of values, for each site if there are sites."""
    kept = [*inputs, *filter(None, (options.label, options.site))]
    sites: dict[str, LabelledTable] = {}
    for split, part in parts.items():
        columns = {name: list(part[name]) for name in kept}
        origin = f"{root}, split {split!r}"
        whole = make_table(columns, range(len(part)), origin, options.site)
        by_site = {root: whole}
        if options.site:
            by_site = split_by_site(whole, options.site, "data.site")
        for name, rows in by_site.items():
            labelled = label_rows(rows, options.label)
            if split == "train":
                sites[name] = labelled
            elif name in sites:
                sites[name] = replace(sites[name], test=labelled)
            else:
                raise _unknown_site(root, name)
    encoded = encode_sites(sites, options, lambda index, y: hold_out(y))
    if options.site:
        named = {f"site {name!r}": part for name, part in encoded.parts.items()}
        return encoded.describe(join_sites(sites, named))
    return encoded.describe(next(iter(encoded.parts.values())))


def _read_samples(
    root: str,
    parts: Any,
    column: str,
    options: TableOptions,
    resize: int,
    scratch: Path,
    kind: AnyKind,
) -> Raw:
    """Read a column of images or arrays, with labels and groups beside it."""
    if options.standardise != "federated" or options.categorical:
        raise ConfigError(f"{root} has samples in the column {column!r}: it is no table")
    y = [_read_labels(f"{root}, split {s!r}", part, options.label) for s, part in parts.items()]
    sites = [_read_sites(part, options.site) for part in parts.values()]
    names = tuple(locate.sort_names(site for site in sites[0] if site is not None))
    owners = [_number(root, part, names) for part in sites]
    rows = [np.arange(len(part)) for part in y]
    if len(parts) == 1:
        groups = np.unique(owners[0])
        halves = [hold_out(y[0][owners[0] == g]) for g in groups]
        own = [np.flatnonzero(owners[0] == g) for g in groups]
        rows = [
            np.sort(np.concatenate([o[h[part]] for o, h in zip(own, halves, strict=True)]))
            for part in (0, 1)
        ]
        y, owners = [y[0], y[0]], [owners[0], owners[0]]
    stored = [*parts.values()] * (2 if len(parts) == 1 else 1)
    y = [labels_[own] for labels_, own in zip(y, rows, strict=True)]
    if type(parts["train"].features[column]).__name__ == "Image":
        if kind not in ("auto", "image"):
            raise ConfigError(f"data.kind = {kind!r}, and {root} has images")
        both = [
            LabelledFiles(_write_images(part, column, own, scratch / name), labels_)
            for name, part, own, labels_ in zip(_SPLITS, stored, rows, y, strict=True)
        ]
        raw = images.decode(both[0], both[1], resize, scratch)
    else:
        arrays = [
            _read_arrays(f"{root}, column {column!r}", part, column, own, kind)
            for part, own in zip(stored, rows, strict=True)
        ]
        half = npz.default_statistics(arrays[0])
        raw = Raw(arrays[0], y[0], arrays[1], y[1], mean=half, std=half)
    if not options.site:
        return raw
    of_train, of_test = (owner[own] for owner, own in zip(owners, rows, strict=True))
    return replace(raw, groups=Groups(of_train, of_test, names))


def _read_labels(name: str, part: Any, label: str) -> np.ndarray:
    return labels.clean(list(part[label]) if label else None, len(part), name)


def _read_sites(part: Any, site: str) -> list[str | None]:
    if not site:
        return [""] * len(part)
    return [write_value(float(v) if isinstance(v, int) else v) for v in part[site]]


def _number(root: str, sites: list[str | None], names: tuple[str, ...]) -> np.ndarray:
    """Number the sites of samples; every sample has one, and every site training samples."""
    if None in sites:
        raise DataError(f"{root}, row {sites.index(None)}: the site is missing; fill it in")
    for name in sites:
        if name not in names:
            raise _unknown_site(root, str(name))
    positions = {name: position for position, name in enumerate(names)}
    return np.array([positions[str(name)] for name in sites], np.int64)


def _unknown_site(root: str, name: str) -> DataError:
    return DataError(f"{root}: the site {name!r} has test samples and none to train on; drop them")


def _write_images(part: Any, column: str, rows: np.ndarray, folder: Path) -> list[Path]:
    """Write the images as files, which the decoder of images reads."""
    from datasets import Image

    disk.mkdir(folder, exist_ok=False)
    encoded, paths = part.cast_column(column, Image(decode=False)), []
    for row in rows.tolist():
        image = encoded[row][column]
        path = folder / f"row-{row}"
        if image["bytes"] is None:
            path = Path(image["path"])
        else:
            with disk.open_to_write(path) as file:
                disk.write(file, image["bytes"])
        paths.append(path)
    return paths


def _read_arrays(name: str, part: Any, column: str, rows: np.ndarray, kind: AnyKind) -> np.ndarray:
    """Read a column of arrays of one shape."""
    try:
        stacked = np.array(part.with_format("numpy")[rows.tolist()][column])
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: the samples are not arrays of one shape ({error})") from error
    if stacked.dtype.kind not in "biuf":
        raise DataError(f"{name}: the samples are not arrays of numbers of one shape")
    x = npz.arrange(stacked, name, kind)
    checks.check_axes(name, x)
    return checks.convert_samples(name, x)
