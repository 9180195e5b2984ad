//! Promises that the project makes about itself: its module map, its library, its README, its examples and its tests.

#[path = "../support/mod.rs"]
mod support;

mod docs;
mod examples;
mod layers;
mod library;
mod packages;
mod portable;
mod python;
mod readme;
mod recipes;
mod sanitizers;
mod test_suite;
