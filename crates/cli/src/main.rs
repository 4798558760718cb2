//! The `det` executable.
fn main() {}
