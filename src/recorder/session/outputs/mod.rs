//! Files of a session: outputs that grow with the run, pictures and tables that are drawn, and their names.

pub(super) mod draw;
pub(super) mod generated;
pub(super) mod growing_outputs;
pub(super) mod output_files;
pub(super) mod provenance;
pub(super) mod window_output_queue;
