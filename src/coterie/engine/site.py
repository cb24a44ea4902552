"""A site does the clients' work: it holds their data and states, and answers tasks.

A simulation has one site in every worker, each able to act for any client; the states that they
share are in the run directory, or come with the tasks (`client_files`).
"""

import functools
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core import codec, interrupts, seeds
from coterie.core.bundle import Bundle, ClientState, Payload, Tensors
from coterie.core.errors import CheckpointError, Diverged
from coterie.core.task import LONGEST_NAME, METHOD, MOST_METRICS, ClientId, Failure, Reply, Task
from coterie.data.batches import DataShard
from coterie.data.datasets import open_cached
from coterie.data.partition import Partition
from coterie.engine.client_files import MODEL, ClientFiles, RunFolder
from coterie.engine.cohort import keeps_confusion
from coterie.engine.evaluation import CONFUSION
from coterie.engine.play import is_finite
from coterie.engine.spec import Parts, Spec
from coterie.kit.context import ClientContext, Shard
from coterie.kit.networks import Frozen
from coterie.nets.heads import Network
from coterie.nets.norm import BATCH_NORMS

_FEWEST = 2  # samples that a client needs to train: losses are defined on two or more
_LONGEST_REASON, _LONGEST_TRACE = 2000, 50_000  # characters that are sent of an exception
_KEPT = "site:"  # prefix of groups of a saved state that the site loads back into networks
_NOTHING = "site:nothing"  # marks a saved state for which the method itself returned None


class Site:
    """Answers tasks for the clients of a partition."""

    def __init__(self, spec: Spec, partition: Partition, files: ClientFiles | None = None) -> None:
        self.spec, self.partition, self.parts = spec, partition, Parts(spec)
        self._files = files or RunFolder(Path(spec.folder), partition, self.parts.programs)
        self.dataset, nets = open_cached(Path(spec.data)), self.parts.nets(METHOD)
        if nets["model"].unit_images:
            self.dataset = self.dataset.without_normalisation()
        self._make_shard = functools.partial(
            DataShard, self.dataset, device=spec.device, in_lanes=nets.in_lanes
        )

    def run(self, task: Task) -> Reply:
        """Answer a task; an exception becomes a reply with `error`.

        `SystemExit` and `KeyboardInterrupt` that the client's own code raises are exceptions like
        others, on every executor: one client does not end the run. A signal to stop (Ctrl-C) that
        comes during the task ends it with `KeyboardInterrupt`, even if the client's code caught it.
        """
        with interrupts.watch() as seen:
            reply = self._run(task, seen)
        if seen.came:
            interrupts.settle()
            raise KeyboardInterrupt
        return reply

    def _run(self, task: Task, seen: interrupts.Interrupts) -> Reply:
        start = time.perf_counter()
        shard = self._shard(task)
        try:
            if task.op == "update" and len(shard) < _FEWEST:
                failure = Failure("skipped", f"it has {len(shard)} training samples")
                return Reply(task.client, error=failure)
            with self.parts.arithmetic(), seeds.scoped(task.round.torch_seed(task.client)):
                return self._answer(task, shard, start)
        except Diverged as error:
            failure = Failure("diverged", str(error))
        except CheckpointError as error:
            failure = Failure("disk", str(error))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if seen.came:
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
            if out_of_memory(error):
                failure = Failure("lost", f"out of memory with {len(shard)} samples: {reason}")
            else:
                failure = Failure("failed", reason, traceback.format_exc()[-_LONGEST_TRACE:])
        finally:
            self.parts.nets(_program(task)).release()
        return Reply(task.client, error=failure, seconds=time.perf_counter() - start)

    def _answer(self, task: Task, shard: DataShard, start: float) -> Reply:
        state, kept = _unpack(self._files.load(task))  # 5
        ctx = self._context(task, shard, kept)
        if task.op != "update":
            metrics, up = self._inspect(task, ctx, state)
            codec.check(up)
            seconds = time.perf_counter() - start
            return Reply(task.client, up, shard.tests, metrics, seconds=seconds)
        stage = self.parts.stage(task.program, task.round.stage)
        assert stage.client  # a stage in which clients are asked has one
        up, state = stage.client(ctx, task.down, state)  # 6
        packed = _pack(state, ctx.keeps)
        for what, bundle in (("upload", up), ("state", packed)):
            if not is_finite(bundle):
                raise Diverged(f"its {what} is not finite")
        codec.check(up)  # what cannot be sent is a failure under every executor
        metrics = _clean_metrics(ctx.metrics)
        digest = ""
        if packed.tensors or packed.scalars:
            self._files.save(task, packed)  # 7
            digest = packed.digest()
        seconds = time.perf_counter() - start
        return Reply(task.client, up, len(shard), metrics, seconds=seconds, state=digest)

    def _inspect(
        self, task: Task, ctx: ClientContext, state: ClientState | None
    ) -> tuple[Mapping[str, float], Payload]:
        """Do a task that trains nothing: evaluate a model, write it, or begin a program.

        The model is the client's own, where the method makes one, or the global one.
        """
        program = self.parts.programs.get(task.program)
        weights = None
        if program is None or program.own_models or "evaluated" not in task.down:
            weights = self.parts.method.personal(ctx, task.down, state)
        weights = task.down["evaluated"] if weights is None else weights
        net = ctx.frozen(weights)
        if task.client in self.spec.unseen and ctx.nets.local_buffers and len(ctx.data) >= _FEWEST:
            estimate_statistics(net.net, weights, ctx.data)
        if task.op == "personal":
            # with the names that this client keeps: the file alone is its whole model
            self._files.save(task, Bundle({MODEL: net.net.state_dict()}))
            return {}, Bundle()
        if program is None:
            return self._evaluate(task, ctx, net)
        self._files.save(task, program.begin(net, ctx.data))
        return {}, Bundle()

    def _evaluate(
        self, task: Task, ctx: ClientContext, net: Frozen
    ) -> tuple[dict[str, float], Payload]:
        """Run the evaluators that are due on a client's model."""
        everything = functools.cache(self._everything)  # evaluators share what they compute on it
        alone = "evaluated" not in task.down and task.client not in self.spec.unseen
        counts = task.round.last or keeps_confusion(len(self.partition.clients), self.spec.classes)
        metrics: dict[str, float] = {}
        confusion: dict[str, Tensor] = {}
        for name, evaluator in self.parts.due_evaluators(task.round).items():
            tested = evaluator.all_tests or len(self.partition.test[task.client])
            if evaluator.where == "client" and tested:
                data: Shard = ctx.data
                if evaluator.all_tests:
                    data = self._shard_with_all_tests(task.client)
                elif evaluator.pools:
                    data = everything(task.client)
                seed = seeds.derive(self.spec.seed, "evaluate", client=task.client)
            elif evaluator.where == "server" and alone:
                data, seed = everything(None), seeds.derive(self.spec.seed, "evaluate")
            else:  # no data of its own to test on; or the server tests its global model itself
                continue
            data = data.labelled() if evaluator.labels else data
            measured = evaluator(net, data, seed)
            cleaned = _clean_metrics(measured)
            metrics.update({f"{name}/{metric}": value for metric, value in cleaned.items()})
            matrix = evaluator.confusion(net, data) if counts and measured else None
            if matrix is not None:
                confusion[name] = matrix
        return metrics, Bundle({CONFUSION: confusion} if confusion else {})

    def _context(self, task: Task, shard: DataShard, kept: Mapping[str, Tensors]) -> ClientContext:
        return ClientContext(
            id=task.client,
            round=task.round,
            own=task.own,
            data=shard,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.parts.nets(_program(task)),
            draw_fresh=lambda key: self.parts.fresh(_program(task), task.client, key),
            kept=kept,
            folder=self._files.spool(task),
        )

    def _everything(self, client: ClientId | None) -> DataShard:
        """Make a shard of all data of clients that train, for models that only clients have.

        With a client, the test data are its own, and all samples are shifted as its own are.
        """
        shares, unseen = self.partition, self.spec.unseen
        own = [rows for other, rows in shares.train.items() if other not in unseen]
        train = np.sort(np.concatenate(own))
        if client is None:
            return self._make_shard(train, self._all_tests())
        shift = self.partition.shifts.get(client)
        return self._make_shard(train, self.partition.test[client], shift=shift)

    def _shard_with_all_tests(self, client: ClientId) -> DataShard:
        """Make a shard of a client's training samples and the whole test set, shifted as it is."""
        shift = self.partition.shifts.get(client)
        return self._make_shard(self.partition.train[client], self._all_tests(), shift=shift)

    def _all_tests(self) -> np.ndarray:
        """List the test samples of all clients that train."""
        test = np.arange(len(self.dataset.y_test))
        for other in self.spec.unseen:
            test = np.setdiff1d(test, self.partition.test[other])
        return test

    def _shard(self, task: Task) -> DataShard:
        train, test = self.partition.train[task.client], self.partition.test[task.client]
        shift = self.partition.shifts.get(task.client)
        shard = self._make_shard(train, test, shift=shift, augment=self.parts.augment)
        program = self.parts.programs.get(task.program)
        return shard.labelled() if program is not None and program.labels else shard


@torch.no_grad()
def estimate_statistics(net: Network, given: Tensors, data: Shard) -> None:
    """Take BatchNorm statistics that are not given from training data; weights stay.

    A client that never trains has none of its own where they stay on clients.
    """
    own = [
        module
        for path, module in net.named_modules()
        if isinstance(module, BATCH_NORMS) and module.running_mean is not None
        if not f"{path}.".startswith(net.central) and f"{path}.running_mean" not in given
    ]
    momenta = [module.momentum for module in own]
    for module in own:
        module.reset_running_stats()
        module.momentum = None  # plain means over the batches
        module.train()
    for batch in data.sweep() if own else ():
        net(batch.x)
    for module, momentum in zip(own, momenta, strict=True):
        module.momentum = momentum
        module.eval()


def _clean_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain floats, the same before and after a journey."""
    cleaned: dict[str, float] = {}
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"it has {len(metrics)} metrics, at most {MOST_METRICS} are sent")
    for name, value in metrics.items():
        if not isinstance(name, str):
            raise TypeError(f"the metric {name!r} is named by {type(name).__name__}, not by text")
        if len(name) > LONGEST_NAME:
            raise ValueError(f"the name of the metric {name[:60]!r}... is {len(name)} long")
        try:
            cleaned[name] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            kind = type(value).__name__
            raise TypeError(f"the metric {name!r} is {kind}, not a number") from None
    return cleaned


def _program(task: Task) -> str:
    """Return whose networks and states a task uses: an evaluation is of the method's model."""
    return task.program if task.op == "update" else METHOD


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; on a CPU, torch raises a plain RuntimeError for it."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    messages = ("can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in messages)


def _pack(state: ClientState | None, keeps: Mapping[str, Tensors]) -> ClientState:
    """Combine the method's state with the parts of networks that the client does not share."""
    if state is None:
        state = Bundle(scalars={_NOTHING: True} if keeps else {})
    return state.replace(**{f"{_KEPT}{key}": tensors for key, tensors in keeps.items()})


def _unpack(saved: ClientState | None) -> tuple[ClientState | None, Mapping[str, Tensors]]:
    """Split a saved state into the method's state and the networks' kept parts."""
    if saved is None:
        return None, {}
    kept = {
        group.removeprefix(_KEPT): tensors
        for group, tensors in saved.tensors.items()
        if group.startswith(_KEPT)
    }
    if _NOTHING in saved.scalars:
        return None, kept
    return saved.without(*(f"{_KEPT}{key}" for key in kept)), kept
