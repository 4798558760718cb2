//! Hyperparameter search: single, random, grid, ASHA, adaptive ASHA.
