"""Runs trials one after another: keeps what is finished, and continues past those that fail.

`coterie compare`, `coterie sweep` and `coterie reproduce` all run here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from coterie.core.errors import CheckpointError, ConfigError, CoterieError, Interrupted, RunFailed
from coterie.core.formatting import counted
from coterie.engine import rundir
from coterie.engine.record import MetricsFile, Recorder, RoundEvent
from coterie.experiment.config import Config
from coterie.experiment.outputs import find_damage
from coterie.experiment.run import execute
from coterie.reproduce.plan import Study, is_finished, locate_run
from coterie.reproduce.scores import Score, Scores, score_run

Failure = tuple[str, CoterieError]  # the name of a trial, and why it failed


@dataclass(frozen=True)
class Trial:
    """One run: its configuration, the folder that keeps it, and what it belongs to."""

    name: str
    config: Config
    folder: Path
    row: str
    column: str = ""
    point: str = ""  # of a grid
    seed: int = 0  # counted from 0


@dataclass(frozen=True)
class Ended:
    """A trial that has ended, with its rounds or with the error that stopped it."""

    trial: Trial
    position: int  # among all trials, from 1
    kept: bool  # finished before, by this command or another
    history: Sequence[RoundEvent] = ()
    error: CoterieError | None = None
    damage: str | None = None  # of a run that was kept, and is restored now

    def describe(self, total: int, text: str) -> str:
        """Format the line about it: `[2/6] name: text`."""
        kept = " (kept)" if self.kept else ""
        if self.damage and self.error is None:
            kept = f" (restored: {self.damage})"
        return f"[{self.position}/{total}] {self.trial.name}: {text}{kept}"


Watch = Callable[[Trial], AbstractContextManager[Sequence[Recorder]]]


def run_trials(
    trials: Iterable[Trial], watch: Watch = lambda trial: nullcontext(()), verify: bool = False
) -> Iterator[Ended]:
    """Run every trial that is not finished yet; one that fails does not stop the others.

    `trials` is asked for the next one only when the caller has taken the last one's result.
    `watch` gives the recorders that see a run. `verify` checks that a finished run has the data
    that are here now; else its rounds are read without looking at the data. What a finished run
    left is looked at in either case, and restored where it is damaged.
    """
    broken: dict[Path, CoterieError] = {}  # several trials may share a run
    for position, trial in enumerate(trials, start=1):
        kept = is_finished(trial.folder)
        damage = find_damage(trial.folder) if kept else None
        try:
            if trial.folder in broken:
                raise broken[trial.folder]
            if kept and not verify and damage is None:
                history = _read_history(trial.folder)
            else:
                with watch(trial) as recorders:
                    result = execute(trial.config, trial.folder, resume=True, recorders=recorders)
                history = result.history
        except Interrupted:
            raise
        except CoterieError as error:
            broken[trial.folder] = error
            yield Ended(trial, position, kept, error=error, damage=damage)
        else:
            yield Ended(trial, position, kept, history, damage=damage)


def _read_history(folder: Path) -> Sequence[RoundEvent]:
    """Read the rounds of a finished run."""
    try:
        if history := MetricsFile(folder / "metrics.jsonl").read():
            return history
        raise CheckpointError("it has no rounds")
    except CheckpointError as error:
        remedy = "delete it, and it is run again"
        raise CheckpointError(f"{folder} is damaged; {remedy}: {error}") from error


@contextmanager
def explain_interrupts(remedy: str) -> Iterator[None]:
    """Turn an interrupt into one line that says how to resume."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"interrupted; {remedy}") from None


def raise_failures(failures: Sequence[Failure], total: int) -> None:
    """Raise an error if a run failed; where all failed alike, one of their kind."""
    if not failures:
        return
    name, reason = failures[0]
    alike = len(failures) == total and len({type(error) for _, error in failures}) == 1
    kind = type(reason) if alike else RunFailed
    raise kind(f"{len(failures)} of {total} runs failed; {name}: {reason}") from reason


def list_trials(scores: Scores, out: Path) -> Iterator[Trial]:
    """List the runs of a study in order: every cell on the first seed, then on the second, ...

    On the first seed all points of a grid are run, on the others the chosen one. Scores are read
    when a run is asked for, so that a choice may depend on the runs before.
    """
    study = scores.study
    most = max((cell.seeds for cell in study.cells), default=0)
    for position, cell in product(range(most), study.cells):
        seed = study.first + position
        chosen = scores.choose(cell) if 0 < position < cell.seeds else None
        for point in cell.points if position == 0 else [chosen] if chosen else []:
            config = study.config(cell, point, seed)
            folder = locate_run(out, config)
            if cell.asked or is_finished(folder):
                name = ", ".join(filter(None, (cell.name, point.name, f"seed {seed}")))
                yield Trial(name, config, folder, cell.row.name, cell.column.name, point.name, seed)


def run_study(
    study: Study,
    out: Path,
    resume: bool = False,
    renew: Callable[[Scores], object] = lambda scores: None,
    say: Callable[[str], object] = lambda text: None,
    watch: Watch = lambda trial: nullcontext(()),
) -> tuple[Scores, list[Failure]]:
    """Run the study's trials, and return their scores and failures.

    After every run `renew` is called with the scores so far, and `say` with a line about the run.
    """
    scores, failures = Scores(study), list[Failure]()
    trials = list_trials(scores, out)
    if not resume:
        list(_refuse_unfinished(list_trials(scores, out)))  # before anything is run
        trials = _refuse_unfinished(trials)  # a choice may lead to more of them
    with explain_interrupts("to resume, repeat the command with --resume"):
        for ended in run_trials(trials, watch):
            score, text = _score_trial(study, ended)
            if score.failure:
                failures.append((ended.trial.name, ended.error or RunFailed(score.failure)))
            scores.add(ended.trial.row, ended.trial.column, ended.trial.point, score)
            renew(scores)
            say(ended.describe(study.total, text))
    return scores, failures


def _score_trial(study: Study, ended: Ended) -> tuple[Score, str]:
    """Score a trial, and describe the score in a few words."""
    trial, cell = ended.trial, study.cell(ended.trial.row, ended.trial.column)
    assert cell is not None  # the trial was made of it
    score = Score(trial.seed, str(trial.folder), failure=str(ended.error))
    if ended.error is None:
        score = score_run(ended.history, cell, trial.seed, str(trial.folder))
    if score.failure:
        return score, f"failed: {score.failure}"
    rounds = counted(score.rounds, "round")
    return score, f"{cell.metric} {score.value:.4f}, {rounds}, {score.seconds:.2f} s a round"


def _refuse_unfinished(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Pass trials on; refuse one that an earlier command began and did not finish."""
    seen = set[Path]()
    for trial in trials:
        begun = rundir.is_used(trial.folder) and not is_finished(trial.folder)
        if begun and trial.folder not in seen:
            raise ConfigError(f"{trial.folder} holds an unfinished run; add --resume to finish it")
        seen.add(trial.folder)
        yield trial
