"""Randomness is addressed, not consumed.

Every draw of a run is a function of `(run seed, purpose, round, client)`. No generator state is
ever saved: a resumed run, another executor, another order of clients draw the same numbers.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_LOW32 = 0xFFFFFFFF
NOBODY = -1  # the client of a draw that belongs to the server or to the run as a whole


def _words(text: str) -> tuple[int, int]:
    """Two 32-bit words that stand for a purpose."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def generator(seed: int, purpose: str, round: int = 0, client: int = NOBODY) -> np.random.Generator:
    """The numpy generator of one address: 128 bits of seed, so that no two addresses meet."""
    key = (*_words(purpose), round & _LOW32, (client + 1) & _LOW32)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def derive(seed: int, purpose: str, round: int = 0, client: int = NOBODY) -> int:
    """A run seed for a run inside this one (a federated evaluator has rounds of its own)."""
    return int(generator(seed, purpose, round, client).integers(2**62))


def mix32(index: int) -> int:
    """A bijection of the 32-bit integers (the finaliser of MurmurHash3): no two indices collide."""
    index &= _LOW32
    index ^= index >> 16
    index = index * 0x85EBCA6B & _LOW32
    index ^= index >> 13
    index = index * 0xC2B2AE35 & _LOW32
    return index ^ index >> 16


def torch_seed(seed: int, purpose: str, index: int) -> int:
    """The 32 bits that torch's CPU generator takes, different for every index of one purpose.

    torch looks at the low 32 bits of a seed only, and a hash of the address would collide after
    some ten thousand tasks; adding a constant and a bijection keep distinct indices distinct.
    """
    low, _ = _words(f"{seed}:{purpose}")
    return mix32(index + low)


@contextmanager
def scoped(seed: int) -> Iterator[None]:
    """Seed the global generators (dropout, initialisation, user code), and put them back after."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    cpu = torch.default_generator.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        # torch.manual_seed would format a stack for devices that are not there: a millisecond
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
