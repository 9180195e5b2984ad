//! Programs that do many things at the same time. `chaos` runs programs that are generated from seeds, and `stress`
//! runs one program for a given time.

mod chaos;
mod stress;
