"""What a directory holds before a run starts there: checks that change nothing, then repairs.

What cannot be computed again is checked: the configuration and the data of the newest checkpoint
must be those of this run. What can be (`partition.json`, the description of the network, copies) is
written again where it is missing or damaged.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError, ConfigError, DataError
from coterie.core.files import replace_durably
from coterie.core.formatting import list_first, shorten
from coterie.engine import rundir
from coterie.engine.checkpoints import Origin, Position
from coterie.engine.loop import Plan, Standing
from coterie.engine.record import Recorders
from coterie.experiment import cleaned
from coterie.experiment.model_file import MODEL_FILE, ModelFile, read_model_file
from coterie.experiment.outputs import MODEL, PERSONAL, describe_model, find_damage
from coterie.experiment.prepare import Experiment
from coterie.experiment.result import CONFIG
from coterie.experiment.tables import read
from coterie.report.page import marks_end

PARTITION = "partition.json"
_WIDTH = 80  # of a value in a message


def find_standing(
    experiment: Experiment, plan: Plan, allow_inexact: bool
) -> tuple[Standing | None, list[str]]:
    """Load the newest checkpoint, and refuse what is not of this run; nothing is changed.

    Also return what is wrong with later checkpoints. There is no standing before the first commit.
    """
    config = plan.folder / CONFIG
    if config.exists() and (difference := experiment.config.difference(read(config))):
        raise ConfigError(f"{plan.folder} was started with another configuration: {difference}")
    loaded = plan.checkpoints().load_newest()
    position = loaded[1] if loaded else cleaned.read(plan.folder)
    source = f"the checkpoint of round {loaded[1].round + 1}" if loaded else cleaned.CLEANED
    _check_config(experiment, plan.folder, position, source)
    _check_data(experiment, plan.folder, position)
    if loaded is None:
        return None, []
    server, position, problems = loaded
    if problems and plan.privacy is not None:
        raise CheckpointError(
            f"{problems[0]}; a private run goes back no round, as clients may have its model and "
            "a second one would cost more than epsilon says: put the checkpoint back, or remove "
            "its folder if nobody was sent the model"
        )
    position = replace(position, environment=plan.environment) if allow_inexact else position
    for name, value in plan.environment.items():
        before = position.environment.get(name, value)  # older checkpoints have fewer
        if before != value:
            raise ConfigError(
                f"the run was made with {name} {before}, this is {name} {value}: the bits would "
                "differ; --allow-inexact resumes all the same"
            )
    return Standing(server, replace(position, origin=plan.origin), ()), problems


def is_cleaned(plan: Plan) -> bool:
    """Whether a run is finished and has no checkpoints any more; refuse it if it is damaged.

    What a run writes at its end shows that it was finished: the page, `model.json` with weights, a
    model; or `cleaned.json`.
    """
    folder = plan.folder
    if plan.checkpoints().rounds():
        return False
    described = _find_model_file(folder)
    ended = marks_end(folder) or (described is not None and described.weights)
    if not (ended or any((folder / name).exists() for name in (cleaned.CLEANED, MODEL, PERSONAL))):
        return False
    if damage := cleaned.find_change(folder) or find_damage(folder):
        raise CheckpointError(
            f"{damage}, and no checkpoint in {folder} can restore it; start again with another "
            "--out"
        )
    return True


def repair(plan: Plan, standing: Standing | None, recorders: Recorders) -> Standing | None:
    """Bring the files of a run back to its newest checkpoint, with a note for what was damaged."""
    store = plan.checkpoints()
    if unknown := store.states.list_unknown():
        names = list_first([str(path) for path in unknown])
        recorders.note(f"what is no state of a client is ignored: {names}")
    if standing is None:
        if store.metrics.path.is_file() and store.metrics.path.stat().st_size:
            recorders.note(f"{plan.folder} has no checkpoint: the run begins again")
        store.metrics.truncate(0)
        return None
    for note in store.mend(standing.server, standing.position):
        recorders.note(note)
    store.discard_after(standing.position.round)
    return replace(standing, history=tuple(event.outline() for event in store.metrics.read()))


def write_start(experiment: Experiment, folder: Path, finished: bool) -> Iterator[str]:
    """Write partition, model and configuration where they are not there, and say what was lost."""
    used = rundir.is_used(folder)
    summary = experiment.summary()
    if _read_json(folder / PARTITION) != json.loads(json.dumps(summary)):
        replace_durably(folder / PARTITION, json.dumps(summary, indent=1).encode())
        if used:
            yield f"{folder / PARTITION} was missing or changed, and is written again"
    if not finished and _find_model_file(folder) is None:
        describe_model(experiment).write(folder)
        if used:
            yield f"{folder / MODEL_FILE} was missing or damaged, and is written again"
    if not (folder / CONFIG).exists():
        text = experiment.config.to_toml(experiment.dataset.class_names)
        replace_durably(folder / CONFIG, text.encode())
        if used:
            yield f"{folder / CONFIG} was missing, and is written again"


def _check_config(
    experiment: Experiment, folder: Path, position: Position | None, source: str
) -> None:
    """Refuse a configuration that is not the one of the checkpoint, by the keys that differ."""
    missing = not (folder / CONFIG).exists()
    origin = _find_origin(position)
    if origin is None:
        if missing and rundir.is_used(folder):
            raise ConfigError(
                f"{folder / CONFIG} is missing, so that nothing says what the run in {folder} is; "
                "put it back, or choose another --out"
            )
        return
    differing = [
        f"{key} is {_write(here)} here and was {_write(there)}"
        for key, there, here in experiment.config.differences(origin.config)
    ]
    if differing:
        what = f"{folder / CONFIG} is missing" if missing else f"{folder} is of another run"
        raise ConfigError(
            f"{what}: {list_first(differing)} in {source}; "
            "give the configuration that it was started with, or choose another --out"
        )


def _check_data(experiment: Experiment, folder: Path, position: Position | None) -> None:
    """Refuse data that are not those of the checkpoint, or before there is one of the start."""
    origin = _find_origin(position)
    written = _read_json(folder / PARTITION)
    before = written.get("digest") if isinstance(written, dict) else None
    if origin is not None:
        before = origin.data
    elif position is None and not marks_end(folder):
        if before is None or not (folder / CONFIG).exists():
            return  # nothing depends on it yet
    elif before is None:
        raise CheckpointError(
            f"{folder / PARTITION} cannot be read, and nothing else says which data the run was "
            "made with; put it back, or start again with another --out"
        )
    if before != experiment.data_digest():
        raise DataError(f"the data of {folder} are not the ones it was started with")


def _find_origin(position: Position | None) -> Origin | None:
    """Return what a checkpoint was made of; those of older versions do not say."""
    return position.origin if position is not None else None


def _find_model_file(folder: Path) -> ModelFile | None:
    """Read `model.json`; None if it is missing or damaged."""
    try:
        return read_model_file(folder)
    except DataError:
        return None


def _read_json(path: Path) -> Any:
    """Read a JSON file; None if it is missing or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _write(value: Any) -> str:
    return shorten(repr(value), _WIDTH)
