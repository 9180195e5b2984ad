//! Programs that do everything at once: `chaos` runs programs chosen by numbers, `stress` runs one program for a given
//! time.

mod chaos;
mod stress;
