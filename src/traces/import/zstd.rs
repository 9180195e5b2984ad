//! Decompresses a zstd file, one frame after another, and verifies the checksum of each frame that has one.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Maximum window size in bytes that is accepted. The window is memory that the decoder fills before it returns the
/// first byte. At compression levels up to 20, the window does not exceed this size.
const MAX_WINDOW_BYTES: u64 = 32 << 20;

/// Whether a file that begins with `head` is compressed by zstd.
pub(super) fn is_zstd(head: &[u8]) -> bool {
    // A zstd file may also begin with a skippable frame, which contains no compressed data.
    matches!(head, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// A reader that returns the decompressed content of all frames.
pub(super) struct ZstdFrames<R> {
    input: R,
    decoder: FrameDecoder,
    /// Whether the decoder is inside a frame.
    is_open: bool,
    zeros: u64,
}

impl<R: BufRead> ZstdFrames<R> {
    pub(super) fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { input, decoder, is_open: false, zeros: 0 }
    }

    pub(super) fn input(&self) -> &R {
        &self.input
    }

    /// Returns the number of zero bytes after frames that were skipped.
    pub(super) fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Begins to read the next frame. Returns false if there is no more input.
    fn begin_frame(&mut self) -> Result<bool> {
        loop {
            let next = self.input.fill_buf()?;
            if next.is_empty() {
                return Ok(false);
            }
            let count = next.iter().take_while(|byte| **byte == 0).count();
            if count == 0 {
                break;
            }
            self.input.consume(count);
            self.zeros += count as u64;
        }
        match self.decoder.reset(&mut self.input) {
            Ok(()) => self.is_open = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let skipped =
                    std::io::copy(&mut (&mut self.input).take(length.into()), &mut std::io::sink())?;
                if skipped < u64::from(length) {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(self.describe(error)),
        }
        Ok(true)
    }

    /// Converts an error of the zstd decoder. An error at the end of the input means that the file is truncated.
    fn describe(&mut self, error: FrameDecoderError) -> Error {
        if let FrameDecoderError::WindowSizeTooBig { requested, .. } = error {
            let what = format!(
                "the zstd data needs a window of {requested} bytes, and gpuflame has {MAX_WINDOW_BYTES}; unpack it first \
                 (`zstd -d --long=31 FILE`)"
            );
            return Error::new(ErrorKind::Unsupported, what);
        }
        let has_ended = self.input.fill_buf().is_ok_and(|rest| rest.is_empty());
        let kind = if has_ended { ErrorKind::UnexpectedEof } else { ErrorKind::InvalidData };
        Error::new(kind, error.to_string())
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open {
                if !self.begin_frame()? {
                    return Ok(0);
                }
            } else if self.decoder.can_collect() > 0 {
                return self.decoder.read(bytes);
            } else if self.decoder.is_finished() {
                let (expected, found) =
                    (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
                if expected.is_some() && expected != found {
                    return Err(Error::new(ErrorKind::InvalidData, "the checksum of a frame does not match"));
                }
                self.is_open = false;
            } else {
                let decoded =
                    self.decoder.decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1));
                decoded.map_err(|error| self.describe(error))?;
            }
        }
    }
}
