//! Lists, for each version of CPython, the offsets (in bytes) of the fields of CPython's objects that a walk reads.
//!
//! The offsets for versions up to 3.12 were taken from the headers of each version. All releases of a version, such as
//! 3.12.1 and 3.12.2, have the same offsets. CPython 3.13 and later publish the offsets themselves, in a table at the
//! start of `_PyRuntime`. The layout of the published table also depends on the version. For a version that is not
//! listed here, no layout is guessed, and no Python frames are recorded.
//!
//! ```text
//! 3.9, 3.10   thread -> frame -> f_back -> ...                          each frame is one evaluator call
//! 3.11        thread -> cframe (C stack) -> frame -> previous -> ...    a frame with `is_entry` is its call's first
//! 3.12        thread -> cframe (C stack) -> frame -> previous -> ...    } a shim frame that the evaluator keeps on
//! 3.13        thread -> frame -> previous -> ...                        } the C stack precedes a call's first frame
//! 3.14        as 3.13; the lowest bits of the code object reference encode how it is held
//! 3.15        as 3.14; the outermost frame is part of the thread's state, and not a function's
//! ```

/// Offsets for one version of CPython, and how to interpret the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Major and minor version of CPython, as in `0x030b`.
    pub version: u16,
    /// Offset in `_PyRuntime` of a pointer to the state of the thread that finalizes the interpreter. The pointer is
    /// null until a thread begins to finalize the interpreter.
    pub(super) finalizing: u32,
    /// Offset in a thread's state of the pointer to the thread's innermost frame. In versions with cframes, this is the
    /// offset of the pointer to the innermost cframe.
    pub(super) thread: u32,
    pub(super) cframe: Option<CFrame>,
    pub(super) frame: FrameLayout,
    pub(super) code: CodeLayout,
    pub(super) text: TextLayout,
}

/// Offsets in a cframe, the struct that the evaluator keeps on the C stack in 3.11 and 3.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CFrame {
    pub(super) bytes: u32,
    pub(super) frame: u32,
    pub(super) previous: u32,
}

/// Offsets in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameLayout {
    /// Number of bytes at the start of a frame that a walk reads. These bytes must be readable.
    pub(super) bytes: u32,
    pub(super) previous: u32,
    pub(super) code: u32,
    pub(super) position: u32,
    /// Offset of two adjacent words of a frame that one operation compares. One word is `previous`; the other word is
    /// `code` or `position`, depending on the CPython version.
    pub(super) link: u32,
    /// Offset of the owner byte, which shows whether a thread, a generator or the evaluator owns the frame.
    pub(super) owner: u32,
    pub(super) unit: Unit,
    pub(super) boundary: Boundary,
}

impl FrameLayout {
    /// Returns this frame layout, with constants for the offsets that are equal in all versions since 3.12. Call this
    /// function only for CPython 3.12 or later.
    #[inline(always)]
    const fn with_shim_constants(&self) -> Self {
        let (previous, code, position, link) = (8, 0, 56, 0);
        let (unit, boundary) = (Unit::Address, Boundary::Shim);
        Self { previous, code, position, link, unit, boundary, bytes: self.bytes, owner: self.owner }
    }
}

/// Meaning of a frame's position field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The position is the index of an instruction in the code object. The variant contains the number of bytes by
    /// which the address grows if the index grows by 1.
    Index(u32),
    /// The position is the address of an instruction in the code object.
    Address,
}

/// Ways to recognize the first frame of an evaluator call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Each frame is the first frame of an evaluator call.
    Each,
    /// A byte at this offset in the frame is nonzero if the frame is the first frame of an evaluator call. The owner
    /// byte directly follows this byte.
    Flag(u32),
    /// The frame that precedes the first frame of an evaluator call is a shim, that is, a frame of the evaluator and
    /// not of a function.
    Shim,
}

/// Values of the owner byte for frames of generators, and for frames of the evaluator (shims). Frames with values
/// larger than `OWNED_BY_EVALUATOR` do not belong to functions either.
pub(super) const OWNED_BY_GENERATOR: u8 = 1;
pub(super) const OWNED_BY_EVALUATOR: u8 = 3;

/// Tag bits of a frame's reference to its code object. These bits are not part of the object's address. Since 3.14,
/// these bits encode how the frame holds the code object.
pub(super) const HOLD_BITS: u64 = 3;
#[cfg(test)]
pub(super) const FIRST_WITH_HOLD_BITS: u16 = 0x030e;

/// Offsets in a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeLayout {
    pub(super) bytes: u32,
    /// Offset of the function's qualified name; before 3.11, of the plain name.
    pub(super) name: u32,
    pub(super) file: u32,
    pub(super) lines: u32,
    pub(super) first_line: u32,
    /// Offset of the instructions, or 0 if the instructions are not inside the code object.
    pub(super) instructions: u32,
    /// Offset of the number of leading instructions during which a frame is not complete yet. 0 if frames are always
    /// complete in this version.
    pub(super) traceable: u32,
    /// Offset of a four-byte version number that is unique per code object. 0 if code objects have no such number in
    /// this version of CPython.
    pub(super) version: u32,
}

/// Offsets in a string or bytes object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextLayout {
    /// Offsets of the characters in a string with only ASCII characters (`ascii`), and in any other string (`wide`).
    pub(super) ascii: u32,
    pub(super) wide: u32,
}

/// Offsets of the fields by which the states of all Python threads of the process are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadList {
    /// Offset in `_PyRuntime` of the pointer to the first interpreter.
    pub(super) interpreters: u32,
    /// Offsets in an interpreter of the pointers to the next interpreter and to the interpreter's first thread.
    pub(super) next_interpreter: u32,
    pub(super) threads: u32,
    /// Offsets in a thread's state of the pointer to the next thread's state, and of the thread's id in the C library
    /// (`pthread_t`).
    pub(super) next: u32,
    pub(super) identity: u32,
}

impl ThreadList {
    /// Returns the offsets for a CPython version number such as `0x030b07f0`. `table` is the start of `_PyRuntime`.
    /// Returns `None` if the offsets are not known.
    pub(super) fn for_version(version: u64, table: &[u8; TABLE_BYTES]) -> Option<Self> {
        let known = |interpreters, threads, identity| {
            Some(Self { interpreters, next_interpreter: 0, threads, next: 8, identity })
        };
        let version = (version >> 16) as u16;
        // Distance in the published table from the entry for the thread's frame to the entry for the thread's id. Since
        // 3.15, three more entries are between the entry for the frame and the entry for the id.
        let identity = match version {
            0x0309 | 0x030a => return known(32, 8, 176),
            0x030b => return known(40, 16, 152),
            0x030c => return known(40, 72, 136),
            0x030d | 0x030e => 8,
            _ => 32,
        };
        let offsets = DEBUG_OFFSETS.iter().find(|offsets| offsets.version == version)?;
        let offset = |at: usize| {
            let word = table.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)?;
            u32::try_from(word).ok().filter(|offset| *offset < 1 << 20)
        };
        Some(Self {
            interpreters: offset(40)?,
            next_interpreter: offset(64)?,
            threads: offset(72)?,
            next: offset(offsets.thread - 16)?,
            identity: offset(offsets.thread + identity)?,
        })
    }
}

/// Offset of the pointer to an object's type. The offset of this pointer is the same in all versions up to 3.15,
/// except in free-threaded builds.
pub(super) const TYPE: u64 = 8;
pub(super) const LENGTH: u64 = 16;
pub(super) const HASH: u64 = 24;
pub(super) const STATE: u64 = 32;
pub(super) const BYTES: u64 = 32;

const BEFORE_3_11: Layout = Layout {
    version: 0x0309,
    finalizing: 16,
    thread: 24,
    cframe: None,
    frame: FrameLayout {
        bytes: 112,
        previous: 24,
        code: 32,
        position: 104,
        link: 24,
        // CPython 3.9 and 3.10 have no owner byte. For these versions, the offset refers to a byte of the pointer to
        // the frame's type, because this byte never changes.
        owner: 8,
        unit: Unit::Index(1),
        boundary: Boundary::Each,
    },
    code: CodeLayout {
        bytes: 128,
        name: 112,
        file: 104,
        lines: 120,
        first_line: 40,
        instructions: 0,
        traceable: 0,
        version: 0,
    },
    text: TextLayout { ascii: 48, wide: 72 },
};

/// Layouts of those CPython versions whose offsets were taken from CPython's headers.
const FROM_HEADERS: [Layout; 4] = [
    BEFORE_3_11,
    Layout {
        version: 0x030a,
        frame: FrameLayout { position: 96, unit: Unit::Index(2), ..BEFORE_3_11.frame },
        ..BEFORE_3_11
    },
    Layout {
        version: 0x030b,
        finalizing: 24,
        thread: 56,
        cframe: Some(CFrame { bytes: 24, frame: 8, previous: 16 }),
        frame: FrameLayout {
            bytes: 72,
            previous: 48,
            code: 32,
            position: 56,
            link: 48,
            owner: 69,
            unit: Unit::Address,
            boundary: Boundary::Flag(68),
        },
        code: CodeLayout {
            bytes: 184,
            name: 128,
            file: 112,
            lines: 136,
            first_line: 72,
            instructions: 184,
            traceable: 168,
            version: 0,
        },
        text: BEFORE_3_11.text,
    },
    Layout {
        version: 0x030c,
        finalizing: 24,
        thread: 56,
        cframe: Some(CFrame { bytes: 16, frame: 0, previous: 8 }),
        frame: FrameLayout {
            bytes: 72,
            previous: 8,
            code: 0,
            position: 56,
            link: 0,
            owner: 70,
            unit: Unit::Address,
            boundary: Boundary::Shim,
        },
        code: CodeLayout {
            bytes: 192,
            name: 128,
            file: 112,
            lines: 136,
            first_line: 68,
            instructions: 192,
            traceable: 176,
            version: 92,
        },
        text: TextLayout { ascii: 40, wide: 56 },
    },
];

/// Maximum number of bytes that are read from a code object.
pub(super) const MAX_CODE_BYTES: usize = 256;

/// Number of bytes that are read from the table that CPython 3.13 and later publish.
pub(super) const TABLE_BYTES: usize = 744;
const COOKIE: &[u8; 8] = b"xdebugpy";

/// Offsets of the entries that are read in the published table of one CPython version.
struct DebugOffsets {
    version: u16,
    thread: usize,
    /// Offset in the table of three consecutive entries about frames: `previous`, `executable` and `instr_ptr`.
    frame: usize,
    owner: usize,
    /// Offset in the table of five consecutive entries about code: `filename`, `name`, `qualname`, `linetable` and
    /// `firstlineno`.
    code: usize,
    instructions: usize,
    kind: usize,
    /// Offset in the table of the entries `ob_size` and `ob_sval` of bytes objects.
    bytes: usize,
    /// Offset in the table of three entries about strings: `state`, `length` and the size of an ASCII-only string, in
    /// this order.
    text: usize,
}

/// Offsets in the published table, for all CPython versions that publish their layout.
const DEBUG_OFFSETS: [DebugOffsets; 3] = [
    DebugOffsets {
        version: 0x030d,
        thread: 184,
        frame: 232,
        owner: 264,
        code: 280,
        instructions: 344,
        kind: 360,
        bytes: 520,
        text: 544,
    },
    DebugOffsets {
        version: 0x030e,
        thread: 208,
        frame: 256,
        owner: 288,
        code: 320,
        instructions: 384,
        kind: 408,
        bytes: 600,
        text: 624,
    },
    DebugOffsets {
        version: 0x030f,
        thread: 208,
        frame: 320,
        owner: 352,
        code: 384,
        instructions: 448,
        kind: 472,
        bytes: 696,
        text: 720,
    },
];

/// The reason why no layout is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownLayout {
    /// This CPython version is not listed in this module.
    Version,
    /// A build without the GIL, in which all objects have a different layout.
    FreeThreaded,
    /// The published table does not match the version of CPython.
    Table,
}

impl Layout {
    /// Returns the layout of a version in [`FROM_HEADERS`]. `version` is major and minor version, as in `0x030b`.
    pub(super) const fn from_headers(version: u16) -> Self {
        let mut at = 0;
        while FROM_HEADERS[at].version != version {
            at += 1;
        }
        FROM_HEADERS[at]
    }

    /// Returns the layout for a CPython version number such as `0x030b07f0`. `table` is the start of the interpreter's
    /// `_PyRuntime`.
    pub(super) fn for_version(version: u64, table: &[u8; TABLE_BYTES]) -> Result<Self, UnknownLayout> {
        let version = (version >> 16) as u16;
        match DEBUG_OFFSETS.iter().find(|offsets| offsets.version == version) {
            Some(offsets) => Self::from_debug_offsets(offsets, table),
            None => {
                FROM_HEADERS.into_iter().find(|known| known.version == version).ok_or(UnknownLayout::Version)
            }
        }
    }

    /// Returns this layout, with compile-time constants for the offsets that are equal in all versions since 3.12. Call
    /// this function only for CPython 3.12 or later.
    #[inline(always)]
    pub(super) fn with_shim_constants(&self) -> Self {
        debug_assert!(self.has_shims());
        Self { frame: self.frame.with_shim_constants(), ..*self }
    }

    fn has_shims(&self) -> bool {
        self.frame == self.frame.with_shim_constants()
    }

    /// Creates the layout from the table that CPython 3.13 and later publish.
    fn from_debug_offsets(offsets: &DebugOffsets, table: &[u8; TABLE_BYTES]) -> Result<Self, UnknownLayout> {
        let (words, _) = table.as_chunks::<8>();
        let word = |at: usize| u64::from_ne_bytes(words[at / 8]);
        if words[0] != *COOKIE || (word(8) >> 16) as u16 != offsets.version {
            return Err(UnknownLayout::Table);
        }
        if word(16) != 0 {
            return Err(UnknownLayout::FreeThreaded);
        }
        // Check the fields for which this module assumes the same offset in all versions: the type, and the length of
        // strings and bytes.
        let is_as_before = word(offsets.kind) == TYPE
            && word(offsets.bytes) == LENGTH
            && word(offsets.bytes + 8) == BYTES
            && word(offsets.text) == STATE
            && word(offsets.text + 8) == LENGTH;
        let offset = |at: usize| u32::try_from(word(at)).ok().filter(|offset| *offset < 4096);
        let all = || {
            let owner = offset(offsets.owner)?;
            let instructions = offset(offsets.instructions)?;
            let ascii = offset(offsets.text + 16)?;
            let first_line = offset(offsets.code + 32)?;
            Some(Self {
                version: offsets.version,
                finalizing: offset(32)?,
                thread: offset(offsets.thread)?,
                cframe: None,
                frame: FrameLayout {
                    bytes: (owner + 1).next_multiple_of(8),
                    previous: offset(offsets.frame)?,
                    code: offset(offsets.frame + 8)?,
                    position: offset(offsets.frame + 16)?,
                    link: 0,
                    owner,
                    unit: Unit::Address,
                    boundary: Boundary::Shim,
                },
                code: CodeLayout {
                    bytes: instructions,
                    name: offset(offsets.code + 16)?,
                    file: offset(offsets.code)?,
                    lines: offset(offsets.code + 24)?,
                    first_line,
                    instructions,
                    traceable: instructions.checked_sub(16)?,
                    // The code object's unique version number is at the same offset as in 3.12, or absent.
                    version: if first_line == 68 { 92 } else { 0 },
                },
                // A non-ASCII string has two more words: a pointer to its UTF-8 form, and the length of the UTF-8
                // form.
                text: TextLayout { ascii, wide: ascii + 16 },
            })
        };
        all()
            .filter(|_| is_as_before)
            .filter(Self::has_shims)
            .filter(Self::is_within)
            .ok_or(UnknownLayout::Table)
    }

    /// Whether all fields that a walk reads are within the first `bytes` bytes of a frame and of a code object.
    fn is_within(&self) -> bool {
        let Self { frame, code, .. } = self;
        [frame.previous, frame.code, frame.position].iter().all(|at| at + 8 <= frame.bytes)
            && [code.name, code.file, code.lines, code.first_line, code.version]
                .iter()
                .all(|at| at + 8 <= code.bytes)
            && (frame.link == frame.previous || frame.link + 8 == frame.previous)
            && frame.link + 16 <= frame.bytes
            && code.bytes as usize <= MAX_CODE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of the published tables of CPython 3.13.0, 3.14.10 and 3.15.2 on x86-64, taken from the headers, as pairs
    /// (offset in the table, value).
    const TABLES: [&[(usize, u64)]; 3] = [
        &[
            (8, 0x030d_00f0),
            (32, 608),
            (184, 72),
            (232, 8),
            (248, 56),
            (264, 70),
            (280, 112),
            (288, 120),
            (296, 128),
            (304, 136),
            (312, 68),
            (344, 200),
            (360, 8),
            (520, 16),
            (528, 32),
            (544, 32),
            (552, 16),
            (560, 40),
        ],
        &[
            (8, 0x030e_0af0),
            (32, 784),
            (208, 72),
            (256, 8),
            (272, 56),
            (288, 74),
            (320, 112),
            (328, 120),
            (336, 128),
            (344, 136),
            (352, 68),
            (384, 208),
            (408, 8),
            (600, 16),
            (608, 32),
            (624, 32),
            (632, 16),
            (640, 40),
        ],
        &[
            (8, 0x030f_02f0),
            (32, 912),
            (208, 72),
            (320, 8),
            (336, 56),
            (352, 74),
            (384, 112),
            (392, 120),
            (400, 128),
            (408, 136),
            (416, 68),
            (448, 208),
            (472, 8),
            (696, 16),
            (704, 32),
            (720, 32),
            (728, 16),
            (736, 40),
        ],
    ];

    fn table_of(words: &[(usize, u64)]) -> [u8; TABLE_BYTES] {
        let mut table = [0; TABLE_BYTES];
        table[..8].copy_from_slice(COOKIE);
        for (at, word) in words {
            table[*at..at + 8].copy_from_slice(&u64::to_ne_bytes(*word));
        }
        table
    }

    /// The table that CPython 3.13 publishes.
    fn table() -> [u8; TABLE_BYTES] {
        table_of(TABLES[0])
    }

    #[test]
    fn frame_fields_are_within_the_frame_in_all_versions() {
        for layout in FROM_HEADERS {
            assert!(layout.is_within(), "{layout:?}");
            let FrameLayout { boundary, owner, .. } = layout.frame;
            assert!(
                !matches!(boundary, Boundary::Flag(flag) if owner != flag + 1),
                "the flag and the owner are read as one"
            );
            assert_eq!(
                Layout::for_version(u64::from(layout.version) << 16 | 0x07f0, &[0; TABLE_BYTES]),
                Ok(layout)
            );
        }
    }

    #[test]
    fn a_debug_offsets_table_is_accepted_only_if_its_values_are_plausible() {
        let layout = Layout::for_version(0x030d_01f0, &table()).unwrap();
        assert_eq!((layout.finalizing, layout.thread, layout.frame.bytes), (608, 72, 72));
        assert_eq!((layout.code.instructions, layout.code.traceable), (200, 184));
        assert_eq!((layout.text.ascii, layout.text.wide), (40, 56));
        for (at, word, why) in [
            (0, 0, UnknownLayout::Table),
            (8, 0x030e_00f0, UnknownLayout::Table),
            (16, 1, UnknownLayout::FreeThreaded),
            (360, 24, UnknownLayout::Table),
            (232, 1 << 40, UnknownLayout::Table),
            (248, 72, UnknownLayout::Table),
            (344, 8, UnknownLayout::Table),
            (296, 200, UnknownLayout::Table),
        ] {
            let mut table = table();
            table[at..at + 8].copy_from_slice(&u64::to_ne_bytes(word));
            assert_eq!(Layout::for_version(0x030d_00f0, &table), Err(why), "{at}");
        }
    }

    #[test]
    fn each_versions_debug_offsets_table_gives_its_layout() {
        let of = |at: usize, version| Layout::for_version(version, &table_of(TABLES[at]));
        for (at, finalizing, instructions) in [(1, 784, 208), (2, 912, 208)] {
            let layout = of(at, 0x030d_00f0 + ((at as u64) << 16)).unwrap();
            assert_eq!((layout.version, layout.finalizing), (0x030d + at as u16, finalizing));
            assert_eq!((layout.thread, layout.frame.bytes, layout.frame.owner), (72, 80, 74));
            assert_eq!((layout.frame.previous, layout.frame.code, layout.frame.position), (8, 0, 56));
            assert_eq!((layout.code.file, layout.code.name, layout.code.lines), (112, 128, 136));
            assert_eq!((layout.code.instructions, layout.code.version), (instructions, 92));
            assert_eq!(layout.text, TextLayout { ascii: 40, wide: 56 });
        }
        // The table of one version must not be accepted for another version.
        for (at, version) in [(0, 0x030e_00f0), (1, 0x030d_00f0), (1, 0x030f_00f0), (2, 0x030e_00f0)] {
            assert_eq!(of(at, version), Err(UnknownLayout::Table), "{at} {version:x}");
        }
    }

    #[test]
    fn an_unsupported_python_version_has_no_layout() {
        for version in [0x0206_0000, 0x0308_12f0, 0x0310_00f0, 0] {
            assert_eq!(Layout::for_version(version, &table()), Err(UnknownLayout::Version));
        }
    }
}
