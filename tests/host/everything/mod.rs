//! Programs that do many things at the same time: `chaos` runs programs generated from seeds, `stress` runs one program
//! for a given time.

mod chaos;
mod stress;
