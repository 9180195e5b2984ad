//! Output files of a session: outputs that are written while the application runs, pictures and tables that are written
//! on exit, and the names of all these files.

pub(super) mod draw;
pub(super) mod generated;
pub(super) mod growing_outputs;
pub(super) mod output_files;
pub(super) mod provenance;
pub(super) mod window_output_queue;
