//! Decompresses LZ4 frames, and verifies the frames' checksums.
//!
//! ```text
//! frame := 04 22 4D 18 flags:u8 sizes:u8 [content:u64] [dictionary:u32] check:u8 block* 0:u32 [checksum:u32]
//! block := size:u32 byte[size] [checksum:u32]            the top bit of the size marks a block that is not compressed
//! ```
//!
//! A compressed block is a sequence of literal bytes and of copies from the last 64 KiB of the output. The checksums
//! are computed with XXH32.

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Bits of the flags in a frame's header: the format version (01), and which optional fields the header contains.
const VERSION_MASK: u8 = 0xc0;
const VERSION: u8 = 0x40;
const HAS_BLOCK_CHECKSUMS: u8 = 0x10;
const HAS_CONTENT_SIZE: u8 = 0x08;
const HAS_CONTENT_CHECKSUM: u8 = 0x04;
const HAS_DICTIONARY: u8 = 0x01;
/// Bit in the field with the size of a block. If the bit is set, the block is not compressed.
const IS_STORED: u32 = 1 << 31;
/// Minimum length of an LZ4 copy in bytes.
const MIN_COPY: usize = 4;

/// Decompresses one or more frames. The result has at most `limit` bytes.
///
/// # Errors A description of what is wrong with the data.
pub(super) fn decompress(mut data: &[u8], limit: usize) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::new();
    while !data.is_empty() {
        let start = out.len();
        let flags = read_header(&mut data)?;
        loop {
            let size = read_u32(&mut data)?;
            if size == 0 {
                break;
            }
            let block = take(&mut data, (size & !IS_STORED) as usize)?;
            if flags & HAS_BLOCK_CHECKSUMS != 0 && read_u32(&mut data)? != xxh32(block) {
                return Err("the checksum of a block does not match");
            }
            match size & IS_STORED {
                0 => unpack_block(block, &mut out, start, limit)?,
                _ => append(&mut out, block, limit)?,
            }
        }
        if flags & HAS_CONTENT_CHECKSUM != 0 && read_u32(&mut data)? != xxh32(&out[start..]) {
            return Err("the checksum of a frame does not match");
        }
    }
    Ok(out)
}

/// Reads the header of a frame, and returns the flags in the header.
fn read_header(data: &mut &[u8]) -> Result<u8, &'static str> {
    if take(data, 4)? != MAGIC {
        return Err("no frame begins here");
    }
    let described = *data;
    let [flags, _] = *take(data, 2)? else { return Err(TRUNCATED) };
    if flags & VERSION_MASK != VERSION {
        return Err("the frame has an unknown version");
    }
    if flags & HAS_DICTIONARY != 0 {
        return Err("the frame needs a dictionary");
    }
    if flags & HAS_CONTENT_SIZE != 0 {
        take(data, 8)?;
    }
    let length = described.len() - data.len();
    let check = take(data, 1)?[0];
    if check != (xxh32(&described[..length]) >> 8) as u8 {
        return Err("the checksum of the header does not match");
    }
    Ok(flags)
}

/// Decompresses a block. A copy in the block may refer to bytes of an earlier block in the same frame. `start` is the
/// offset in `out` at which the frame's output begins.
fn unpack_block(mut block: &[u8], out: &mut Vec<u8>, start: usize, limit: usize) -> Result<(), &'static str> {
    loop {
        let token = take(&mut block, 1)?[0];
        let literals = read_length(&mut block, token >> 4)?;
        append(out, take(&mut block, literals)?, limit)?;
        // No copy follows the last literals of a block.
        if block.is_empty() {
            return Ok(());
        }
        let [low, high] = *take(&mut block, 2)? else { return Err(TRUNCATED) };
        let distance = usize::from(u16::from_le_bytes([low, high]));
        let length = read_length(&mut block, token & 15)?.saturating_add(MIN_COPY);
        if distance == 0 || distance > out.len() - start {
            return Err("a copy begins before the data");
        }
        if length > limit.saturating_sub(out.len()) {
            return Err(TOO_LARGE);
        }
        // The source of a copy may overlap with its output; the copied bytes then repeat.
        let from = out.len() - distance;
        (from..from + length).for_each(|at| out.push(out[at]));
    }
}

const TRUNCATED: &str = "the data is truncated";
const TOO_LARGE: &str = "the data is larger than gpuflame reads";

/// Reads the length of literals or of a copy. `bits` contains the first four bits of the length, which are in the
/// token. A longer length continues in the following bytes.
fn read_length(block: &mut &[u8], bits: u8) -> Result<usize, &'static str> {
    let mut length = usize::from(bits);
    if bits == 15 {
        loop {
            let more = take(block, 1)?[0];
            length = length.saturating_add(more.into());
            if more != 255 {
                break;
            }
        }
    }
    Ok(length)
}

fn append(out: &mut Vec<u8>, bytes: &[u8], limit: usize) -> Result<(), &'static str> {
    if bytes.len() > limit.saturating_sub(out.len()) {
        return Err(TOO_LARGE);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

fn take<'a>(data: &mut &'a [u8], length: usize) -> Result<&'a [u8], &'static str> {
    let (taken, rest) = data.split_at_checked(length).ok_or(TRUNCATED)?;
    *data = rest;
    Ok(taken)
}

fn read_u32(data: &mut &[u8]) -> Result<u32, &'static str> {
    let (bytes, rest) = data.split_first_chunk().ok_or(TRUNCATED)?;
    *data = rest;
    Ok(u32::from_le_bytes(*bytes))
}

/// Returns the XXH32 checksum of the data, with the seed 0.
fn xxh32(data: &[u8]) -> u32 {
    const PRIMES: [u32; 5] = [2_654_435_761, 2_246_822_519, 3_266_489_917, 668_265_263, 374_761_393];
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let stripes = data.chunks_exact(16);
    let rest = stripes.remainder();
    let mut hash = PRIMES[4];
    if data.len() >= 16 {
        let mut lanes = [PRIMES[0].wrapping_add(PRIMES[1]), PRIMES[1], 0, 0_u32.wrapping_sub(PRIMES[0])];
        for stripe in stripes {
            for (lane, bytes) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
                let mixed = lane.wrapping_add(word(bytes).wrapping_mul(PRIMES[1]));
                *lane = mixed.rotate_left(13).wrapping_mul(PRIMES[0]);
            }
        }
        let turned = lanes.iter().zip([1, 7, 12, 18]).map(|(lane, by)| lane.rotate_left(by));
        hash = turned.fold(0, u32::wrapping_add);
    }
    hash = hash.wrapping_add(data.len() as u32);
    let words = rest.chunks_exact(4);
    let last = words.remainder();
    for bytes in words {
        let mixed = hash.wrapping_add(word(bytes).wrapping_mul(PRIMES[2]));
        hash = mixed.rotate_left(17).wrapping_mul(PRIMES[3]);
    }
    for byte in last {
        let mixed = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIMES[4]));
        hash = mixed.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// The text `hello hello hello hello, world`, as `lz4 -9` compresses it.
    const HELLO: &str = "04224d186440a7110000006d68656c6c6f200600702c20776f726c6400000000311be5b5";
    /// The same text as `HELLO`, but with a checksum for the block and not for the frame (`-BX --no-frame-crc`).
    const HELLO_BLOCK: &str = "04224d187040ad110000006d68656c6c6f200600702c20776f726c64d7f3a82400000000";
    /// The bytes 0 to 19, which are stored uncompressed.
    const STORED: &str = "04224d186440a714000080000102030405060708090a0b0c0d0e0f10111213000000009c818b82";

    #[test]
    fn frames_of_the_lz4_tool_are_unpacked() {
        let hello = b"hello hello hello hello, world";
        assert_eq!(decompress(&bytes(HELLO), LIMIT).unwrap(), hello);
        assert_eq!(decompress(&bytes(HELLO_BLOCK), LIMIT).unwrap(), hello);
        assert_eq!(decompress(&bytes(STORED), LIMIT).unwrap(), (0..20).collect::<Vec<u8>>());
        let both = [bytes(HELLO), bytes(STORED)].concat();
        assert_eq!(decompress(&both, LIMIT).unwrap(), [&hello[..], &(0..20).collect::<Vec<u8>>()].concat());
    }

    /// The test's frame contains 70,400 bytes in blocks of 64 KiB (`lz4 -9 -B4 -BD -BX`). The second block copies bytes
    /// from the first block.
    #[test]
    fn blocks_copy_from_earlier_blocks() {
        let frame = [
            bytes("04224d185440ae1b010000ff01303132333435363738396162636465661000"),
            vec![0xff; 256],
            bytes("d850626364656653de5e9c1c0000000f1000"),
            vec![0xff; 18],
            bytes("fa506263646566f48d17ad00000000be0bdac3"),
        ]
        .concat();
        assert_eq!(decompress(&frame, LIMIT).unwrap(), b"0123456789abcdef".repeat(4400));
        assert_eq!(decompress(&frame, 70_399), Err(TOO_LARGE));
    }

    #[test]
    fn every_damaged_byte_and_every_missing_end_is_an_error() {
        for frame in [HELLO, HELLO_BLOCK, STORED].map(bytes) {
            for length in 1..frame.len() {
                assert!(decompress(&frame[..length], LIMIT).is_err(), "{length} bytes of {frame:?}");
            }
            for at in 0..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x10;
                assert!(decompress(&damaged, LIMIT).is_err(), "byte {at} of {frame:?}");
            }
        }
    }
}
