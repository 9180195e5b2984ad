//! Stores the Python functions of a profile.

use super::Profile;
use crate::record::{CodeId, CodeObject, map_bytes};

/// A Python function, in the form in which the profile stores it. See [`CodeObject`] for the fields.
#[derive(Clone, Debug)]
pub(super) struct PythonCode {
    version: u16,
    first_line: u32,
    file: Box<str>,
    name: Box<str>,
    lines: Box<[u8]>,
}

impl PythonCode {
    /// Returns the function as a row with the id `id`.
    fn row(&self, id: CodeId) -> CodeObject<'_> {
        let Self { version, first_line, file, name, lines } = self;
        CodeObject { id, version: *version, first_line: *first_line, file, name, lines }
    }
}

impl Profile {
    /// Adds a function. If the profile already contains a function with the same id, that function stays.
    pub(super) fn add_code(&mut self, code: &CodeObject<'_>) {
        self.codes.entry(code.id).or_insert_with(|| PythonCode {
            version: code.version,
            first_line: code.first_line,
            file: code.file.into(),
            name: code.name.into(),
            lines: code.lines.into(),
        });
    }

    /// Returns the function of a Python frame, or `None` if the row that defines the function was lost.
    pub fn code(&self, id: CodeId) -> Option<CodeObject<'_>> {
        self.codes.get(&id).map(|code| code.row(id))
    }

    /// Returns all functions, in no particular order.
    pub fn codes(&self) -> impl Iterator<Item = CodeObject<'_>> {
        self.codes.iter().map(|(&id, code)| code.row(id))
    }

    /// Returns the heap size of all Python functions.
    pub(super) fn code_bytes(&self) -> usize {
        let texts = self.codes.values().map(|code| code.file.len() + code.name.len() + code.lines.len());
        texts.sum::<usize>() + map_bytes(&self.codes)
    }
}
