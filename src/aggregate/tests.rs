//! Sums worked out by hand.
