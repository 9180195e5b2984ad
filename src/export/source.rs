//! The source location of a stack, and its programming language.

use std::borrow::Cow;

use super::compose::stack;
use super::options::{GraphStacks, NameFolding};
use gpuflame_model::profile::{Profile, SampleSite, ShownFrameKind};

/// A source line that contains a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// Function that contains the line, as its frame is shown.
    pub function: Cow<'a, str>,
    /// Programming language; empty if unknown.
    pub language: &'static str,
    /// Source file, with its folder if known.
    pub file: &'a str,
    /// Line number.
    pub line: u32,
}

/// Returns the source line of the innermost frame that has a source line.
pub fn source_line(profile: &Profile, site: SampleSite, names: NameFolding) -> Option<SourceLine<'_>> {
    let mut frames = stack(profile, site, GraphStacks::Both, names);
    while let Some(frame) = frames.pop() {
        let source = frame.id.and_then(|id| profile.shown_frame(id).source);
        if let Some(source) = source.filter(|source| source.line > 0) {
            let file = profile.strings().get(source.file);
            let language = language(frame.kind, file);
            return Some(SourceLine { function: frame.text, language, file, line: source.line });
        }
    }
    None
}

/// Languages and their file extensions.
const LANGUAGES: [(&str, &[&str]); 9] = [
    ("Python", &["py", "pyx"]),
    ("C", &["c", "h"]),
    ("C++", &["cc", "cpp", "cxx", "C", "hpp", "hh", "hxx", "cu", "cuh", "inl", "ipp", "tcc"]),
    ("Rust", &["rs"]),
    ("Go", &["go"]),
    ("Fortran", &["f", "f90", "F90"]),
    ("Julia", &["jl"]),
    ("assembly", &["S", "s", "asm"]),
    ("JavaScript", &["js", "mjs", "ts"]),
];

fn language(kind: ShownFrameKind, file: &str) -> &'static str {
    // Python code need not come from a file (`<string>`), so its language is known by the kind of frame.
    if kind == ShownFrameKind::Python {
        return "Python";
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    let Some((_, end)) = name.rsplit_once('.') else { return "" };
    LANGUAGES.iter().find(|(_, ends)| ends.contains(&end)).map_or("", |(language, _)| language)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_follows_from_the_file_extension() {
        let of = |file| language(ShownFrameKind::Code, file);
        assert_eq!(
            ["/src/a.cu", "b.rs", "x/y.c", "Makefile", "", "a.b/c"].map(of),
            ["C++", "Rust", "C", "", "", ""]
        );
        assert_eq!(language(ShownFrameKind::Python, "<string>"), "Python");
    }
}
