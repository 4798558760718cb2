//! House rules as tests, and code generation.
fn main() {}
