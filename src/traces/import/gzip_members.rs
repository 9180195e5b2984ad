//! Inflates a gzip file, one member after another. Zero bytes after a member, which may come from tapes and full disks,
//! are skipped and counted. Any other data after a member is an error, because another program may have written to the
//! file.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

use flate2::bufread::GzDecoder;

/// A reader that returns the inflated content of all members.
pub(super) struct GzipMembers<R> {
    state: State<R>,
    zeros: u64,
}

enum State<R> {
    /// The reader is inside a member.
    Inside(Box<GzDecoder<R>>),
    /// The reader is between two members, or after the last member.
    After(R),
    /// Placeholder that is stored while the state is being replaced.
    Changing,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(input: R) -> Self {
        Self { state: State::Inside(Box::new(GzDecoder::new(input))), zeros: 0 }
    }

    /// Returns the reader of the compressed bytes. The result is `None` only if a read has panicked.
    pub(super) fn input(&self) -> Option<&R> {
        match &self.state {
            State::Inside(member) => Some(member.get_ref()),
            State::After(input) => Some(input),
            State::Changing => None,
        }
    }

    /// Returns the number of zero bytes that were skipped after members.
    pub(super) fn zeros(&self) -> u64 {
        self.zeros
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            match &mut self.state {
                State::Inside(member) => match member.read(bytes)? {
                    0 => {
                        if let State::Inside(member) = std::mem::replace(&mut self.state, State::Changing) {
                            self.state = State::After((*member).into_inner());
                        }
                    }
                    count => return Ok(count),
                },
                State::After(input) => {
                    let next = input.fill_buf()?;
                    match next.first() {
                        None => return Ok(0),
                        Some(0) => {
                            let count = next.iter().take_while(|byte| **byte == 0).count();
                            input.consume(count);
                            self.zeros += count as u64;
                        }
                        Some(0x1f) => {
                            if let State::After(input) = std::mem::replace(&mut self.state, State::Changing) {
                                self.state = State::Inside(Box::new(GzDecoder::new(input)));
                            }
                        }
                        Some(_) => {
                            return Err(Error::new(
                                ErrorKind::InvalidData,
                                "other data follows the last member",
                            ));
                        }
                    }
                }
                State::Changing => return Ok(0),
            }
        }
    }
}
