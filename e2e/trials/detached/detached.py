"""A training loop outside the cluster, which reports with the PyPI package."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

from determined.experimental import core_v2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment")
    parser.add_argument("--trial")
    parser.add_argument("--storage", required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--go-on", type=pathlib.Path, help="wait after the last step for this file, and do one more")
    parser.add_argument("--hold", action="store_true", help="stay alive after the last step")
    parser.add_argument("--fail", action="store_true", help="fail after the last step")
    return parser.parse_args()


def distributed(rank: int, size: int) -> core_v2.DistributedContext | None:
    if size == 1:
        return None
    return core_v2.DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1, chief_ip="127.0.0.1"
    )


def main() -> None:
    args = arguments()
    core_v2.init(
        config=core_v2.Config(
            name="detached",
            hparams={"lr": 0.1},
            labels=["outside"],
            searcher={"name": "single", "metric": "loss", "smaller_is_better": True},
            external_experiment_id=args.experiment,
            external_trial_id=args.trial,
        ),
        checkpoint_storage=args.storage,
        distributed=distributed(args.rank, args.size),
        tensorboard_mode=core_v2.TensorboardMode.MANUAL,
    )
    info = core_v2.info
    done = 0
    if info.latest_checkpoint is not None:
        with core_v2.checkpoint.restore_path(info.latest_checkpoint) as path:
            done = int((path / "step").read_text())
    print(f"rank {args.rank}: run {info.trial._trial_run_id} goes on from step {done}", flush=True)
    for step in range(done + 1, done + args.steps + 1):
        if args.rank == 0:
            core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1.0 / step})
    step = done + args.steps
    if args.rank == 0:
        core_v2.train.report_validation_metrics(steps_completed=step, metrics={"loss": 1.0 / step})
        with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (pathlib.Path(path) / "step").write_text(str(step))
        core_v2.train.report_progress(0.5)
        print(f"stored checkpoint {uuid}", flush=True)
    if args.fail:
        sys.exit(3)
    if args.go_on:
        print("waiting", flush=True)
        while not args.go_on.exists():
            time.sleep(0.1)
        core_v2.train.report_training_metrics(steps_completed=step + 1, metrics={"loss": 1.0 / (step + 1)})
    if args.hold:
        print("holding", flush=True)
        while True:
            time.sleep(0.1)
    print(f"rank {args.rank}: done", flush=True)


if __name__ == "__main__":
    main()
