//! Decodes the fields of rows. The functions in module `payload` encode the same fields.

/// The remaining bytes of a row's payload. Each decoder returns `None` if too few bytes remain.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        self.0.split_off(..length)
    }

    /// Returns the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Returns the next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Returns the number in the next two bytes, little-endian.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Returns the number in the next four bytes, little-endian.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Returns the number in the next eight bytes, little-endian.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Returns an optional 32-bit number, encoded as a byte that states whether there is a value, followed by the
    /// value.
    pub fn option(&mut self) -> Option<Option<u32>> {
        let (is_there, value) = (self.u8()?, self.u32()?);
        Some((is_there != 0).then_some(value))
    }

    /// Returns an optional 64-bit number, encoded as a byte that states whether there is a value, followed by the
    /// value.
    pub fn long_option(&mut self) -> Option<Option<u64>> {
        let (is_there, value) = (self.u8()?, self.u64()?);
        Some((is_there != 0).then_some(value))
    }

    /// Returns a byte string, encoded as its length in four bytes, followed by the bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// Returns a number that is encoded as its difference from `base`, with the sign in the lowest bit.
    pub fn difference(&mut self, base: u64) -> Option<u64> {
        let difference = self.varint()?;
        Some(base.wrapping_add(difference >> 1 ^ (difference & 1).wrapping_neg()))
    }

    /// Returns a number that is stored in LEB128 encoding, or `None` if the number does not fit into 64 bits.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // The first nine bytes contain 63 bits, so only one bit of the tenth byte fits into a 64-bit number.
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
