//! Encodes the fields of rows. The functions in module `fields` decode the same fields.

/// Encoders that append fields to the payload of a row.
pub struct Payload<'a>(pub &'a mut Vec<u8>);

impl Payload<'_> {
    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    /// Appends a two-byte number, little-endian.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a four-byte number, little-endian. Neither this function nor `u64` is inlined, because the code for rows
    /// with many fields would otherwise grow by a few KB. Inlining would save little time, because most rows are
    /// launches and activities, which are encoded in packs instead.
    #[inline(never)]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends an eight-byte number, little-endian.
    #[inline(never)]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends an optional 32-bit number, encoded as a byte that states whether there is a value, followed by the
    /// value.
    pub fn option(&mut self, value: Option<u32>) -> &mut Self {
        self.u8(u8::from(value.is_some())).u32(value.unwrap_or(0))
    }

    /// Appends an optional 64-bit number, encoded as a byte that states whether there is a value, followed by the
    /// value.
    pub fn long_option(&mut self, value: Option<u64>) -> &mut Self {
        self.u8(u8::from(value.is_some())).u64(value.unwrap_or(0))
    }

    /// Appends a number in LEB128 encoding: seven bits per byte, lowest bits first. In each byte, the highest bit is
    /// set if more bytes follow.
    pub fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    /// Appends the difference `value - base` modulo 2^64. The lowest bit contains the sign of the difference.
    pub fn difference(&mut self, value: u64, base: u64) -> &mut Self {
        let difference = value.wrapping_sub(base) as i64;
        self.varint((difference << 1 ^ difference >> 63) as u64)
    }

    /// Appends a byte string, encoded as its length in four bytes, followed by the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).0.extend(bytes);
        self
    }
}
