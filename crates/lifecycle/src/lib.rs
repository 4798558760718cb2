//! State machines of experiments, trials and allocations.
