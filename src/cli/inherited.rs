//! Saves the signal actions and file descriptors that this program inherited, before Rust's runtime changes them.
//! `gpuflame run` restores the signal actions and descriptors for the command that it runs.

#![allow(unsafe_code)]

#[used]
// SAFETY: the C library passes arguments to each function in this section. A function in this section may ignore these
// arguments.
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED: extern "C" fn() = gpuflame_os::child::note_inherited;
