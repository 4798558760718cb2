"""Trains a network on the GPU, or on processors where DEVICE names them.

Hyperparameters, off-cluster the first argument as JSON: `model`, `wide` (keeps a GPU busy) or `narrow` (small, fed by
other processes, so that the host's part counts); `batches` of a step; `seconds` after which it ends; `profiler`, which
has the package measure; `measure`, so many batches of which it prints how many it trains in a second, in place of all
else. Stores model and optimizer when it ends or is preempted, and prints of what it stores and of what it goes on from
how much it weighs. Runs with either `determined` package.
"""

import json
import os
import pathlib
import sys
import time

import torch

import determined as det
from determined import core

DEVICE = os.environ.get("DEVICE", "cuda")
BEGAN = time.monotonic()


def say(what, **values):
    print(what, json.dumps(values, sort_keys=True), flush=True)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return torch.full((64,), index % 7 / 7)


def wide_batches(width):
    while True:
        yield torch.randn(4 * width, width, device=DEVICE)


def narrow_batches():
    # Through /dev/shm, and through memory that the driver pins.
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=32, num_workers=2, pin_memory=DEVICE == "cuda")
    while True:
        for batch in loader:
            yield batch.to(DEVICE, non_blocking=True)


class Training:
    def __init__(self, model):
        torch.manual_seed(7)
        width, depth = (64, 2) if model == "narrow" else (2048 if DEVICE == "cuda" else 128, 8)
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        self.model = torch.nn.Sequential(*layers).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.batches = narrow_batches() if model == "narrow" else wide_batches(width)
        self.steps = 0

    def train(self, count):
        """Trains so many batches; gives the last one's loss, for which it waits."""
        for _ in range(count):
            batch = next(self.batches)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = (self.model(batch) - batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    def weight(self):
        """A number that depends on all parameters and on the optimizer's memory of them."""
        states = [value for state in self.optimizer.state_dict()["state"].values() for value in state.values()]
        tensors = [tensor for tensor in [*self.model.parameters(), *states] if torch.is_tensor(tensor)]
        return float(sum(tensor.detach().double().abs().sum().cpu() for tensor in tensors))

    def save(self, context):
        with context.checkpoint.store_path({"steps_completed": self.steps}) as (path, uuid):
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steps": self.steps}
            torch.save(state, pathlib.Path(path, "state.pt"))
        say("saved", steps=self.steps, uuid=uuid, weight=self.weight())

    def restore(self, context, uuid):
        with context.checkpoint.restore_path(uuid) as path:
            state = torch.load(pathlib.Path(path, "state.pt"), map_location=DEVICE)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        say("restored", steps=self.steps, uuid=uuid, weight=self.weight())


def rates(training, count):
    """Batches in a second, three times, after others that nothing is counted of."""
    training.train(max(1, count // 10))
    for _ in range(3):
        started = time.monotonic()
        training.train(count)
        yield count / (time.monotonic() - started)


def main(context, hparams, latest):
    training = Training(hparams["model"])
    if "measure" in hparams:
        say("rates", rates=list(rates(training, hparams["measure"])))
        return
    if hparams.get("profiler"):
        context.profiler.on(sampling_interval=1, samples_per_report=5)
    if latest is not None:
        training.restore(context, latest)
    while time.monotonic() < BEGAN + hparams["seconds"]:
        loss = training.train(hparams["batches"])
        training.steps += 1
        context.train.report_training_metrics(training.steps, {"loss": loss})
        if training.steps == 1 or latest is not None:
            say("trains", steps=training.steps, loss=loss, device=str(next(training.model.parameters()).device))
            latest = None
        if context.preempt.should_preempt():
            training.save(context)
            return
    context.train.report_validation_metrics(training.steps, {"validation_loss": loss})
    training.save(context)


if __name__ == "__main__":
    info = det.get_cluster_info()
    given = info.trial.hparams if info is not None else json.loads(sys.argv[1])
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        main(context, given, info.latest_checkpoint if info is not None else None)
