//! The search as the rest of the system meets it: events in, actions out.

mod previews;
mod properties;
mod scenarios;
mod worked_examples;
mod world;
