//! Tests of the project itself: its module structure, its library, its README, its examples and its tests.

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/chakra_decoder.rs"]
mod chakra_decoder;
mod docs;
mod examples;
mod flag_windows;
mod layers;
mod library;
mod packages;
mod portable;
mod python;
mod readme;
mod recipes;
mod sanitizers;
mod test_suite;
