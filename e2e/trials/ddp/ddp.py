"""Trains a line with torch's DistributedDataParallel over gloo: several processes, one model.

Hyperparameters: `steps`; `fail_at` with `fail_rank` and `fail_how` (`raise`, `exit`, `kill`), in the first run; `hold_at`, the
step from which it waits for the file `go` in E2E_DIR, or to be preempted. Each rank stores a shard of its own in
each checkpoint, and checks at its start that all shards of the one it goes on from exist. Runs with either
`determined` package.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import torch

import determined as det
from determined import core

PORTS = ("DTRAIN_SSH_PORT", "INTER_TRAIN_PROCESS_COMM_PORT_1", "INTER_TRAIN_PROCESS_COMM_PORT_2", "C10D_PORT")


def say(what, **values):
    print(what, json.dumps(values, sort_keys=True), flush=True)


def save(context, dist, model, steps):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, f"shard-{dist.rank}.pt")
        torch.save({"model": model.module.state_dict(), "steps": steps, "rank": dist.rank}, path)
        metadata = {"steps_completed": steps, "ranks": {str(dist.rank): dist.cross_rank}}
        uuid = context.checkpoint.upload(directory, metadata, shard=True)
    say("saved", steps=steps, uuid=uuid)


def restore(context, dist, model, uuid):
    with context.checkpoint.restore_path(uuid) as path:
        shards = [torch.load(found) for found in sorted(pathlib.Path(path).glob("shard-*.pt"))]
    assert [shard["rank"] for shard in shards] == list(range(dist.size)), shards
    model.module.load_state_dict(shards[dist.rank]["model"])
    return shards[dist.rank]["steps"]


def fail(how):
    say("failing", how=how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(7)
    raise ValueError("boom on purpose")


def hold(context):
    say("holding")
    go = pathlib.Path(os.environ["E2E_DIR"], "go")
    while not context.preempt.should_preempt():
        if all(context.distributed.allgather(go.exists())):
            return
        time.sleep(0.05)


def collectives(dist):
    """What each operation gives."""
    me = [dist.rank, dist.cross_rank, dist.local_rank]
    return {
        "gather": dist.gather(me),
        "allgather": dist.allgather(me),
        "broadcast": dist.broadcast(me),
        "gather_local": dist.gather_local(me),
        "allgather_local": dist.allgather_local(me),
        "broadcast_local": dist.broadcast_local(me),
    }


def main():
    info = det.get_cluster_info()
    hparams = {"steps": 4, **info.trial.hparams}
    run = int(os.environ["DET_TRIAL_RUN_ID"])
    dist = core.DistributedContext.from_torch_distributed()
    say(
        "here",
        rank=dist.rank,
        size=dist.size,
        container=info.container_rank,
        slots=info.container_slot_counts,
        addresses=info.container_addrs,
        agent=os.environ["DET_AGENT_ID"],
        ports=[int(os.environ[name]) for name in PORTS],
        interface=os.environ.get("DET_INTER_NODE_NETWORK_INTERFACE"),
        gloo=os.environ.get("GLOO_PORT_RANGE"),
        nccl=os.environ.get("NCCL_PORT_RANGE"),
    )
    torch.distributed.init_process_group("gloo")
    # Different beginnings: that all end with the same weights is the work of the framework.
    torch.manual_seed(dist.rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with core.init(distributed=dist, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        say("collectives", **collectives(dist))
        done = restore(context, dist, model, info.latest_checkpoint) if info.latest_checkpoint else 0
        say("starts", run=run, after=done)
        for step in range(done + 1, hparams["steps"] + 1):
            inputs = torch.randn(8, 4)
            loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses = dist.gather(float(loss))
            if dist.rank == 0:
                metrics = {"validation_loss": sum(losses) / len(losses)}
                context.train.report_validation_metrics(steps_completed=step, metrics=metrics)
            save(context, dist, model, step)
            if run == 1 and step == hparams.get("fail_at") and dist.rank == hparams["fail_rank"]:
                fail(hparams["fail_how"])
            if step == hparams.get("hold_at") and run == 1:
                hold(context)
            if context.preempt.should_preempt():
                say("stops", after=step)
                return
        say("weights", values=model.module.weight.flatten().tolist())


main()
