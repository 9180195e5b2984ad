//! GPU flame graphs.
