//! The scanner as a whole.
