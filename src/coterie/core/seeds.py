"""Random numbers by address: every draw is a function of (run seed, purpose, round, client).

No generator state is ever saved or shared, so that a resumed run, another executor or another
order of clients draws the same numbers.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOW32 = 0xFFFFFFFF
NOBODY = -1  # the client of a draw that belongs to the server or to the run as a whole


def _hash(text: str) -> tuple[int, int]:
    """Hash a purpose to two 32-bit integers."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def generator(seed: int, purpose: str, round: int = 0, client: int = NOBODY) -> np.random.Generator:
    """Return the numpy generator of one address; 128 bits of key make collisions negligible."""
    key = (*_hash(purpose), round & _LOW32, (client + 1) & _LOW32)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def derive(seed: int, purpose: str, round: int = 0, client: int = NOBODY) -> int:
    """Derive a seed for a run within this one: a federated evaluator has rounds of its own."""
    return int(generator(seed, purpose, round, client).integers(2**62))


def mix32(index: int) -> int:
    """Mix the bits of a 32-bit integer by a bijection, the finaliser of MurmurHash3."""
    index &= _LOW32
    index ^= index >> 16
    index = index * 0x85EBCA6B & _LOW32
    index ^= index >> 13
    index = index * 0xC2B2AE35 & _LOW32
    return index ^ index >> 16


def torch_seed(seed: int, purpose: str, index: int) -> int:
    """Return a 32-bit seed for torch's generators, distinct for every index of one purpose.

    torch uses only the low 32 bits of a seed, and hashes of that length collide after some ten
    thousand tasks; adding a constant and applying a bijection keeps distinct indices distinct.
    After 2**32 tasks of a run torch's seeds begin again: two tasks that are so far apart draw alike
    in torch, not in numpy.
    """
    low, _ = _hash(f"{seed}:{purpose}")
    return mix32(index + low)


@contextmanager
def scoped(seed: int) -> Iterator[None]:
    """Seed the global generators (dropout, initialisation, user code); restore them afterwards."""
    import torch  # the rest of this module is used where torch is not loaded

    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    cpu = torch.default_generator.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        # torch.manual_seed formats a stack trace if there is no GPU, which takes a millisecond
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
