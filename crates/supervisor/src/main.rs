//! The first process of every task.
fn main() {}
