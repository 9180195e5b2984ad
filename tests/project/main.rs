//! What the project promises of itself: its map, its library, its README, its examples.

#[path = "../support/mod.rs"]
mod support;

mod docs;
mod examples;
mod layers;
mod library;
mod python;
mod readme;
mod sanitizers;
