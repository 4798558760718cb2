//! Tests of the search through its public interface: events in, actions out.

mod previews;
mod properties;
mod scenarios;
mod worked_examples;
mod world;
