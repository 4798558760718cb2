"""What the PyPI package's launcher imports of DeepSpeed; `bin/deepspeed` is a double of its own launcher."""

__version__ = "0.16.0"
