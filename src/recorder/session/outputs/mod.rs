//! Writes the output files of a session, and chooses their names. Some outputs are written while the application runs.
//! Pictures and tables are written when the process exits.

pub(super) mod draw;
pub(super) mod generated;
pub(super) mod growing_outputs;
pub(super) mod output_files;
pub(super) mod provenance;
pub(super) mod window_output_queue;
