"""What the PyPI package's launcher imports of DeepSpeed; `bin/deepspeed` stands for its own launcher."""

__version__ = "0.16.0"
