"""Classify handwritten digits, searching over the shape and the training of a small network.

Runs on a cluster and off it. The data come with `scikit-learn` (UCI ML hand-written digits, 1797 images
of 8 by 8 pixels), so nothing is downloaded and one trial takes a few seconds.
"""

from __future__ import annotations

import logging
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
from sklearn import datasets, metrics, model_selection, neural_network

import determined as det
from determined import core

logger = logging.getLogger("digits")

# What a trial gets off-cluster; on a cluster the searcher chooses.
DEFAULTS: dict[str, Any] = {
    "epochs": 16,
    "learning_rate": 0.003,
    "hidden_units": 64,
    "l2": 0.0001,
    "batch_size": 32,
}
CLASSES = np.arange(10)
# Same for all trials, so that their results compare.
SPLIT_SEED = 0


def load_data() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    images, labels = datasets.load_digits(return_X_y=True)
    # Pixels run from 0 to 16.
    train_x, val_x, train_y, val_y = model_selection.train_test_split(
        images / 16.0, labels, test_size=0.2, random_state=SPLIT_SEED, stratify=labels
    )
    return train_x, train_y, val_x, val_y


def build_model(hparams: dict[str, Any], seed: int) -> neural_network.MLPClassifier:
    if hparams["hidden_units"] < 1:
        raise det.InvalidHP(f"hidden_units must be at least 1, not {hparams['hidden_units']}")
    return neural_network.MLPClassifier(
        hidden_layer_sizes=(int(hparams["hidden_units"]),),
        learning_rate_init=hparams["learning_rate"],
        alpha=hparams["l2"],
        batch_size=int(hparams["batch_size"]),
        random_state=seed,
    )


def save(context: core.Context, model: neural_network.MLPClassifier, epochs: int) -> None:
    with context.checkpoint.store_path({"steps_completed": epochs}) as (path, storage_id):
        # The model holds its optimiser and its random generator: training goes on where it stopped.
        with (pathlib.Path(path) / "model.pkl").open("wb") as file:
            pickle.dump({"model": model, "epochs": epochs}, file)
        logger.info("epoch %d: checkpoint %s", epochs, storage_id)


def restore(context: core.Context, storage_id: str) -> tuple[neural_network.MLPClassifier, int]:
    with context.checkpoint.restore_path(storage_id) as path:
        with (pathlib.Path(path) / "model.pkl").open("rb") as file:
            state = pickle.load(file)
    return state["model"], state["epochs"]


def train(
    context: core.Context, hparams: dict[str, Any], seed: int, latest_checkpoint: str | None
) -> dict[str, float]:
    """Trains to `hparams["epochs"]` and returns the last validation metrics (none if all was done)."""
    train_x, train_y, val_x, val_y = load_data()
    if latest_checkpoint is None:
        model, done = build_model(hparams, seed), 0
    else:
        model, done = restore(context, latest_checkpoint)
        logger.info("going on after epoch %d from checkpoint %s", done, latest_checkpoint)

    result: dict[str, float] = {}
    for epoch in range(done + 1, hparams["epochs"] + 1):
        # partial_fit() goes over the data once.
        model.partial_fit(train_x, train_y, classes=CLASSES)
        context.train.report_training_metrics(
            steps_completed=epoch, metrics={"loss": model.loss_, "epochs": epoch}
        )

        probabilities = model.predict_proba(val_x)
        accuracy = metrics.accuracy_score(val_y, CLASSES[probabilities.argmax(axis=1)])
        result = {
            "accuracy": accuracy,
            "validation_error": 1.0 - accuracy,
            "validation_loss": metrics.log_loss(val_y, probabilities, labels=CLASSES),
            # What the searcher counts in: `time_metric: epochs`.
            "epochs": epoch,
        }
        context.train.report_validation_metrics(steps_completed=epoch, metrics=result)
        context.train.report_progress(epoch / hparams["epochs"])

        preempted = context.preempt.should_preempt()
        if preempted or epoch % 4 == 0 or epoch == hparams["epochs"]:
            save(context, model, epoch)
        if preempted:
            # Paused, moved, or stopped by the search: either way the work so far is safe.
            logger.info("asked to stop after epoch %d", epoch)
            break
    return result


def main() -> None:
    # stdout, because the default, stderr, is shown as errors by some viewers.
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT, stream=sys.stdout)
    info = det.get_cluster_info()
    if info is not None and info.task_type == "TRIAL":
        hparams, seed = {**DEFAULTS, **info.trial.hparams}, info.trial.trial_seed
        latest_checkpoint = info.latest_checkpoint
    else:
        hparams, seed, latest_checkpoint = DEFAULTS, 1, None

    # MANUAL: nothing here writes TensorBoard files, and the PyPI package would import torch for them.
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        result = train(context, hparams, seed, latest_checkpoint)
        logger.info("finished: %s", result)


if __name__ == "__main__":
    main()
