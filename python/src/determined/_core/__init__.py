"""The parts of `determined.core`, one file each. Import them from `determined.core`."""
