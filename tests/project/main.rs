//! Promises that the project makes about itself: its module map, its library, its README, its examples and its tests.

#[path = "../support/mod.rs"]
mod support;

mod docs;
mod examples;
mod layers;
mod library;
mod packages;
mod python;
mod readme;
mod sanitizers;
mod test_suite;
