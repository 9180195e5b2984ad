//! Defines the captured frame of a stack, which is packed into one tagged 64-bit word.
//!
//! ```text
//!  63    60 59            48 47                                     0
//! +--------+----------------+----------------------------------------+
//! | 0      | module epoch   | return address                         |  native code
//! | 1      | instruction, 28 bits     | code object number, 32 bits  |  Python
//! | 2      | 0              | range id                               |  a range of NVTX, or of the user
//! | 3      | what it names  | label id                               |  text: an API call, `[graph]`, a loss
//! | 4      | module epoch   | exact address                          |  native code, not a return address
//! +--------+----------------+----------------------------------------+
//! ```
//!
//! The address field is large enough, because user-space addresses fit into 47 bits on x86-64 and into 48 bits on
//! aarch64 (with Linux's default address layout).

use super::ids::{CodeId, LabelId, ModuleEpoch, RangeId};

/// A captured frame of a stack, consisting of a tag and a payload. The module's documentation shows the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Frame(pub u64);

/// The unpacked content of a [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Native machine code.
    Native {
        /// Address for which a function is looked up. For a caller, the address is one byte before the return address
        /// (inside the call instruction). For an interrupted thread, it is the exact address of the interruption.
        address: u64,
        /// Epoch of the module. The epoch distinguishes modules that were mapped at the same address at different
        /// times.
        epoch: ModuleEpoch,
    },
    /// A frame that shows a text from the table of labels.
    Label(LabelId),
    /// An NVTX range, or a range of gpuflame's API, that was open when the stack was captured.
    Range(RangeId),
    /// A Python function.
    Python {
        /// Code object of the function.
        code: CodeId,
        /// Offset in bytes of the running instruction from the start of the function's instructions.
        at: u32,
    },
    /// A frame with a tag that this version does not know. Recordings of newer versions may contain such frames.
    Unknown(u8),
}

/// Kind of object that a label names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LabelKind {
    /// An API call, an operator, or a marker that gpuflame adds.
    #[default]
    Call,
    /// A Python function in another tool's trace.
    Python,
    /// A range or a step in another tool's trace.
    Range,
}

const ADDRESS_MASK: u64 = (1 << 48) - 1;
const TAG_RETURN: u64 = 0;
const TAG_PYTHON: u64 = 1;
const TAG_RANGE: u64 = 2;
const TAG_LABEL: u64 = 3;
const TAG_EXACT: u64 = 4;
const LABEL_KIND_BIT: u32 = 48;
/// Maximum instruction offset that a Python frame can store. The maximum offset is enough for a function of about
/// 10,000,000 lines.
const MAX_INSTRUCTION_OFFSET: u32 = (1 << 28) - 1;

impl Frame {
    /// Creates a frame of native code from a return address.
    pub fn native(return_address: u64, epoch: ModuleEpoch) -> Self {
        Self(tag(TAG_RETURN, epoch) | (return_address & ADDRESS_MASK))
    }

    /// Creates a frame of native code that a signal interrupted at `address`. The function is looked up at this exact
    /// address.
    pub const fn native_exact(address: u64, epoch: ModuleEpoch) -> Self {
        Self(tag(TAG_EXACT, epoch) | (address & ADDRESS_MASK))
    }

    /// Creates a frame with the text of a label.
    pub fn label(label: LabelId) -> Self {
        Self((TAG_LABEL << 60) | u64::from(label.0))
    }

    /// Creates a frame with the text of a label that names an object of `kind`.
    pub fn label_of(kind: LabelKind, label: LabelId) -> Self {
        Self(Self::label(label).0 | (kind as u64) << LABEL_KIND_BIT)
    }

    /// Returns the kind of object that a label frame names.
    pub fn label_kind(self) -> LabelKind {
        match self.0 >> LABEL_KIND_BIT & 0xfff {
            1 => LabelKind::Python,
            2 => LabelKind::Range,
            _ => LabelKind::Call,
        }
    }

    /// Creates a frame for an open range.
    pub fn range(range: RangeId) -> Self {
        Self((TAG_RANGE << 60) | u64::from(range.0))
    }

    /// Creates a frame of the Python function `code`. `at` is the offset in bytes from the start of the function's
    /// instructions.
    pub fn python(code: CodeId, at: u32) -> Self {
        Self(TAG_PYTHON << 60 | u64::from(at.min(MAX_INSTRUCTION_OFFSET)) << 32 | u64::from(code.0))
    }

    /// Whether the frame is native code whose module is unknown.
    pub fn is_of_unknown_module(self) -> bool {
        matches!(self.kind(), FrameKind::Native { epoch: ModuleEpoch::UNKNOWN, .. })
    }

    /// Returns the content of the frame.
    pub fn kind(self) -> FrameKind {
        let epoch = ModuleEpoch(((self.0 >> 48) & 0xfff) as u16);
        match self.0 >> 60 {
            TAG_RETURN => {
                FrameKind::Native { address: (self.0 & ADDRESS_MASK).wrapping_sub(1) & ADDRESS_MASK, epoch }
            }
            TAG_EXACT => FrameKind::Native { address: self.0 & ADDRESS_MASK, epoch },
            TAG_PYTHON => FrameKind::Python {
                code: CodeId(self.0 as u32),
                at: (self.0 >> 32) as u32 & MAX_INSTRUCTION_OFFSET,
            },
            TAG_RANGE => FrameKind::Range(RangeId(self.0 as u32)),
            TAG_LABEL => FrameKind::Label(LabelId(self.0 as u32)),
            other => FrameKind::Unknown(other as u8),
        }
    }
}

const fn tag(tag: u64, epoch: ModuleEpoch) -> u64 {
    let most = ModuleEpoch::UNKNOWN.0;
    let epoch = if epoch.0 > most { most } else { epoch.0 };
    (tag << 60) | ((epoch as u64) << 48)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_address_is_looked_up_one_byte_earlier() {
        let frame = Frame::native(0x7fff_1234_5678, ModuleEpoch(5));
        assert_eq!(frame.kind(), FrameKind::Native { address: 0x7fff_1234_5677, epoch: ModuleEpoch(5) });
    }

    #[test]
    fn an_interrupted_address_is_looked_up_unchanged() {
        let frame = Frame::native_exact(0x40_1000, ModuleEpoch(9000));
        assert_eq!(frame.kind(), FrameKind::Native { address: 0x40_1000, epoch: ModuleEpoch::UNKNOWN });
        assert!(frame.is_of_unknown_module());
        assert!(!Frame::native_exact(0x40_1000, ModuleEpoch::OUTSIDE).is_of_unknown_module());
        assert!(!Frame(0xfff << 48 | 3 << 60).is_of_unknown_module(), "the frame is not code");
    }

    #[test]
    fn a_label_keeps_all_its_bits() {
        assert_eq!(Frame::label(LabelId(u32::MAX)).kind(), FrameKind::Label(LabelId(u32::MAX)));
        assert_eq!(Frame::range(RangeId(u32::MAX)).kind(), FrameKind::Range(RangeId(u32::MAX)));
        let code = CodeId(u32::MAX);
        assert_eq!(Frame::python(code, 7).kind(), FrameKind::Python { code, at: 7 });
        assert_eq!(
            Frame::python(CodeId(1), u32::MAX).kind(),
            FrameKind::Python { code: CodeId(1), at: MAX_INSTRUCTION_OFFSET }
        );
    }
}
