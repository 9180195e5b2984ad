//! Decoders for the fields of rows.

/// Remaining bytes of a payload. Each decoder returns `None` if too few bytes remain.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        self.0.split_off(..length)
    }

    /// Next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Next two bytes, little-endian.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Next four bytes, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Next eight bytes, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Optional 32-bit number: a flag byte, then the value.
    pub fn option(&mut self) -> Option<Option<u32>> {
        let (is_there, value) = (self.u8()?, self.u32()?);
        Some((is_there != 0).then_some(value))
    }

    /// Optional 64-bit number: a flag byte, then the value.
    pub fn long_option(&mut self) -> Option<Option<u64>> {
        let (is_there, value) = (self.u8()?, self.u64()?);
        Some((is_there != 0).then_some(value))
    }

    /// Byte string: its length in four bytes, then the bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// LEB128 number; `None` if it does not fit into 64 bits.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte of a varint has room for one bit.
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}
