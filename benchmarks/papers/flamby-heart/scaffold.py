"""SCAFFOLD on heart disease as plain loops from many starts: FLamby's rule, the paper's, Coterie's.

python benchmarks/papers/flamby-heart/scaffold.py

A hospital steps along g(y) + shift_i. The rules differ in whose mean c is, and in who is averaged:

    option II:  shift_i = c - c_i,   c_i' = c_i - c + (x - y_i) / (K rate),   c = sum_i q_i c_i
    FLamby:     shift_i' = shift_i + (y_i - x') / (K rate),                   x' the new average
    both:       x' = sum_i p_i y_i
"""

from dataclasses import dataclass

import numpy as np
from starts import BATCH, FLAMBY, HEART, ROUNDS, STARTS, STEPS, TESTED, draw_starts, score

RATE = 0.001
HOSPITALS = len(FLAMBY.groups.names)
UNIFORM = np.full(HOSPITALS, 1 / HOSPITALS)
SAMPLES = np.array([(FLAMBY.groups.train == hospital).mean() for hospital in range(HOSPITALS)])


@dataclass(frozen=True)
class Rule:
    models: np.ndarray  # p: the weights of the average of models
    controls: np.ndarray | None = None  # q: the weights of c; None: no correction, or FLamby's
    flamby: bool = False


REFERENCE = "FedAvg, by samples"
BY_SAMPLES = "SCAFFOLD, models by samples, c by samples"
RULES = {
    REFERENCE: Rule(SAMPLES),
    "SCAFFOLD of FLamby": Rule(SAMPLES, flamby=True),
    BY_SAMPLES: Rule(SAMPLES, SAMPLES),
    "SCAFFOLD, models by samples, c uniform (Coterie)": Rule(SAMPLES, UNIFORM),
    "SCAFFOLD, models uniform, c uniform (the paper)": Rule(UNIFORM, UNIFORM),
    "FedAvg, uniform": Rule(UNIFORM),
}


def train(x: np.ndarray, rule: Rule) -> np.ndarray:
    """All starts at once; every rule sees the same batches."""
    random = np.random.default_rng(0)
    shifts, controls = np.zeros((2, HOSPITALS, *x.shape))
    for _ in range(ROUNDS):
        y = np.stack([train_locally(x, i, shifts[i], random) for i in range(HOSPITALS)])
        average = np.einsum("h,hsf->sf", rule.models, y)
        if rule.flamby:
            shifts = shifts + (y - average) / (STEPS * RATE)
        elif rule.controls is not None:
            controls = (x - y) / (STEPS * RATE) - shifts
            shifts = np.einsum("h,hsf->sf", rule.controls, controls) - controls
        x = average
    return x


def train_locally(
    start: np.ndarray, hospital: int, shift: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    mine, w, taken = FLAMBY.groups.train == hospital, start.copy(), 0
    x, y = np.column_stack([FLAMBY.x_train[mine], np.ones(mine.sum())]), FLAMBY.y_train[mine]
    while taken < STEPS:
        order = np.stack([random.permutation(len(x)) for _ in w])
        for first in range(0, len(x), BATCH):
            if taken == STEPS:
                break
            rows = order[:, first : first + BATCH]
            wrong = 1 / (1 + np.exp(-np.einsum("sbf,sf->sb", x[rows], w))) - y[rows]
            w -= RATE * (np.einsum("sb,sbf->sf", wrong, x[rows]) / rows.shape[1] + shift)
            taken += 1
    return w


def describe_hospitals() -> str:
    """Each hospital's share of the training patients, and how many of its own are sick."""
    parts = []
    for hospital, name in enumerate(FLAMBY.groups.names):
        sick = FLAMBY.y_train[FLAMBY.groups.train == hospital].mean()
        parts.append(f"{name} {SAMPLES[hospital]:.3f} ({sick:.3f} sick)")
    return ", ".join(parts)


if __name__ == "__main__":
    print(f"training patients: {describe_hospitals()}")
    starts = draw_starts(1000, STARTS)
    trained = {name: train(starts, rule) for name, rule in RULES.items()}
    scores = {
        n: score(w, FLAMBY.x_test[:TESTED], FLAMBY.y_test[:TESTED]) for n, w in trained.items()
    }
    for name, theirs in scores.items():
        own = score(trained[name], HEART.x_test, HEART.y_test)
        lead = theirs - scores[REFERENCE]
        print(
            f"{name}: {theirs.mean():.3f} ± {theirs.std():.3f}, own {own.mean():.3f}; "
            f"against FedAvg by start {lead.mean():+.4f} ± {lead.std():.4f}, "
            f"equal in {(lead == 0).sum()} of {len(lead)}"
        )
    difference = np.abs(trained["SCAFFOLD of FLamby"] - trained[BY_SAMPLES]).max()
    print(f"weights of FLamby's rule and of c by samples differ by {difference:.0e} at most")
