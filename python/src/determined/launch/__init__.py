"""Launchers: start one process for each slot of a trial, on all of its machines.

Use one in an entrypoint: `python3 -m determined.launch.torch_distributed -- python3 train.py`. Command lines
are
those of the PyPI package `determined` 0.38.1. There are `torch_distributed`, `deepspeed` and `horovod`.
"""
