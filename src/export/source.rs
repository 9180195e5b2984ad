//! Determines the source line and the programming language of a stack.

use std::borrow::Cow;

use super::compose::stack;
use super::frame::ComposedFrame;
use super::options::{GraphStacks, NameFolding};
use gpuflame_model::profile::{Profile, SampleSite, ShownFrameKind};

/// A line of source code in a function of the stack: the line from which the next function was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// Name of the function that contains the line, as shown in its frame.
    pub function: Cow<'a, str>,
    /// Programming language; empty if unknown.
    pub language: &'static str,
    /// Path of the source file, or the part of the path that is known.
    pub file: &'a str,
    /// Line number.
    pub line: u32,
}

/// Returns the source line of the innermost frame whose source line is known.
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

/// The line of user code that was being executed when the stack was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutedLine {
    /// Path of the source file, or the part of the path that is known.
    pub file: String,
    /// Line number. Traces of other tools contain only the first line of a function. For such traces, the line number
    /// is the number of that line.
    pub line: u32,
    /// Name of the function that contains the line, as shown in its frame.
    pub function: String,
}

/// Returns the line of the innermost frame of user code. If no frame is user code, returns the line of the innermost
/// frame for which a line is known.
pub fn executed_line(profile: &Profile, site: SampleSite, names: NameFolding) -> Option<ExecutedLine> {
    line_of(profile, &stack(profile, site, GraphStacks::Both, names))
}

fn line_of(profile: &Profile, frames: &[ComposedFrame<'_>]) -> Option<ExecutedLine> {
    let mut innermost = None;
    for frame in frames.iter().rev() {
        let source = frame.id.and_then(|id| profile.shown_frame(id).source);
        let Some(source) = source.filter(|source| source.line > 0) else { continue };
        let (file, line) = (profile.strings().get(source.file), source.line);
        let found = || ExecutedLine { file: file.to_owned(), line, function: frame.text.to_string() };
        if !is_library_file(file) {
            return Some(found());
        }
        innermost.get_or_insert_with(found);
    }
    innermost
}

/// Returns the name of the innermost function of user code at a site, as shown in its frame. If the executed line is in
/// user code, returns the function that contains the line. If the executed line is not in user code, returns the
/// innermost function outside the C and C++ libraries.
pub fn user_function(profile: &Profile, site: SampleSite, names: NameFolding) -> Option<String> {
    let frames = stack(profile, site, GraphStacks::Both, names);
    user_function_of(profile, &frames, line_of(profile, &frames).as_ref())
}

fn user_function_of(
    profile: &Profile,
    frames: &[ComposedFrame<'_>],
    line: Option<&ExecutedLine>,
) -> Option<String> {
    if let Some(line) = line.filter(|line| !is_library_file(&line.file)) {
        return Some(line.function.clone());
    }
    let is_user_code = |frame: &&ComposedFrame<'_>| {
        let module = frame.id.and_then(|id| profile.shown_frame(id).module);
        let path = module.map_or("", |module| profile.strings().get(module));
        is_function(frame) && !frame.text.contains("+0x") && !is_system_library(path)
    };
    frames.iter().rev().find(is_user_code).map(|frame| frame.text.to_string())
}

/// Whether a frame is native code of a system library, of CUDA or of PyTorch, as its file or module shows.
pub fn is_library_frame(profile: &Profile, frame: &ComposedFrame<'_>) -> bool {
    const LIBRARIES: [&str; 9] = [
        "libcuda",
        "libcudnn",
        "libcublas",
        "libnccl",
        "libtorch",
        "libc10",
        "libpython",
        "libgomp",
        "libcu",
    ];
    let Some(shown) = frame.id.map(|id| profile.shown_frame(id)) else { return false };
    if frame.kind != ShownFrameKind::Code {
        return false;
    }
    let module = shown.module.map_or("", |module| profile.strings().get(module));
    let name = module.rsplit('/').next().unwrap_or(module);
    shown.source.is_some_and(|source| is_library_file(profile.strings().get(source.file)))
        || is_system_library(module)
        || LIBRARIES.iter().any(|library| name.starts_with(library))
        || name.starts_with("python3")
}

/// Whether a module is the dynamic loader or one of the C and C++ libraries.
fn is_system_library(path: &str) -> bool {
    const NAMES: [&str; 8] =
        ["libc.so", "libc-", "libpthread", "libm.so", "librt", "ld-", "libstdc++", "libgcc_s"];
    let file = path.rsplit('/').next().unwrap_or(path);
    NAMES.iter().any(|name| file.starts_with(name))
}

/// Whether a file belongs to the interpreter, to an installed package, or to PyTorch.
fn is_library_file(file: &str) -> bool {
    const FOLDERS: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "/usr/include/"];
    const ROOTS: [&str; 7] =
        ["torch/", "site-packages/", "dist-packages/", "<", "/pytorch/", "/rustc/", "/usr/src/"];
    // Folders in the paths that glibc's debug information contains, such as `../sysdeps/unix/..` and `./nptl/..`.
    const GLIBC: [&str; 10] =
        ["nptl/", "sysdeps/", "csu/", "elf/", "io/", "libio/", "malloc/", "misc/", "posix/", "time/"];
    // In some traces, the names of the interpreter's files have no folder.
    const FILES: [&str; 6] =
        ["runpy.py", "threading.py", "contextlib.py", "functools.py", "selectors.py", "asyncio/"];
    let of_glibc = file.strip_prefix("./").or_else(|| file.strip_prefix("../"));
    let of_glibc = of_glibc.map(|rest| rest.strip_prefix("../").unwrap_or(rest));
    of_glibc.is_some_and(|rest| GLIBC.iter().any(|folder| rest.starts_with(folder)))
        || FOLDERS.iter().any(|folder| file.contains(folder))
        || ROOTS.iter().chain(&FILES).any(|start| file.starts_with(start))
}

/// Names of the innermost frames of a stack: the innermost call, function and module. A name is `None` if it was not
/// recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InnermostFrames {
    /// Name of the called API function or built-in function, if the stack ends with such a call.
    pub call: Option<String>,
    /// Innermost function whose name is known. If no name is known, the innermost address
    /// (`libcublasLt.so.13+0x71ba61d`).
    pub function: Option<String>,
    /// Innermost PyTorch module (`nn.Module`). If there is no PyTorch module, the file that contains the innermost
    /// function, even if the function's name is unknown.
    pub module: Option<String>,
}

/// Prefix of frames that represent PyTorch modules in traces of torch.profiler.
const MODULE_PREFIX: &str = "nn.Module: ";
/// Prefix of frames that represent functions not written in Python in traces of torch.profiler.
const BUILT_IN_PREFIX: &str = "<built-in";

/// Returns the innermost frames at a site. For the time between two calls, the names have the form `[between A and
/// B]`.
pub fn innermost_frames(profile: &Profile, site: SampleSite, names: NameFolding) -> InnermostFrames {
    let SampleSite::Between { after, before, .. } = site else {
        return innermost_of_stack(profile, &stack(profile, site, GraphStacks::Both, names));
    };
    let [first, second] = [after, before].map(|context| {
        let frames = stack(profile, SampleSite::Context(context), GraphStacks::Both, names);
        innermost_of_stack(profile, &frames)
    });
    let call = |frames: &InnermostFrames| frames.call.clone().unwrap_or_else(|| "unknown".to_owned());
    InnermostFrames {
        call: Some(format!("[between {} and {}]", call(&first), call(&second))),
        function: merge_names(first.function, second.function),
        module: merge_names(first.module, second.module),
    }
}

/// Returns the name for the time between two calls. The first call was made in `first`, and the second call in
/// `second`.
fn merge_names(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first?, second?) {
        (first, second) if first == second => Some(format!("[between two calls in {first}]")),
        (first, second) => Some(format!("[between {first} and {second}]")),
    }
}

fn is_built_in(frame: &ComposedFrame<'_>) -> bool {
    frame.text.starts_with(BUILT_IN_PREFIX)
}

/// Whether a frame is a function of the program or of a library. Calls, ranges and PyTorch modules are not functions.
fn is_function(frame: &&ComposedFrame<'_>) -> bool {
    matches!(frame.kind, ShownFrameKind::Code | ShownFrameKind::Python)
        && !is_built_in(frame)
        && !frame.text.starts_with(MODULE_PREFIX)
}

fn innermost_of_stack(profile: &Profile, frames: &[ComposedFrame<'_>]) -> InnermostFrames {
    let is_call = |frame: &&ComposedFrame<'_>| frame.kind == ShownFrameKind::Call || is_built_in(frame);
    let is_not_range = |frame: &&ComposedFrame<'_>| frame.kind != ShownFrameKind::Range;
    let innermost = frames.iter().rev().find(is_function);
    let is_named = |frame: &&ComposedFrame<'_>| !frame.text.contains("+0x");
    let function = frames.iter().rev().filter(is_function).find(is_named).or(innermost);
    let torch_module = frames.iter().rev().find(|frame| frame.text.starts_with(MODULE_PREFIX));
    let file = |frame: &ComposedFrame<'_>| {
        let shown = profile.shown_frame(frame.id?);
        let file = shown.module.or(shown.source.map(|source| source.file))?;
        Some(profile.strings().get(file).to_owned())
    };
    InnermostFrames {
        call: frames.iter().rfind(is_not_range).filter(is_call).map(|frame| frame.text.to_string()),
        function: function.map(|frame| frame.text.to_string()),
        module: torch_module
            .map(|frame| frame.text[MODULE_PREFIX.len()..].to_owned())
            .or_else(|| innermost.and_then(file)),
    }
}

/// The end of a stack: its innermost frames, and the executed line.
#[derive(Clone, Debug, Default)]
pub struct StackEnd {
    /// Innermost frames of each kind.
    pub innermost: InnermostFrames,
    /// Result of [`user_function`] for the stack.
    pub user_function: Option<String>,
    /// Result of [`executed_line`] for the stack.
    pub line: Option<ExecutedLine>,
}

impl StackEnd {
    /// Returns the end of the stack that consists of `frames`, root first. A caller that needs several results for a
    /// stack should compose the frames only once, because composing takes longer than all other work of this module.
    pub fn of(profile: &Profile, frames: &[ComposedFrame<'_>]) -> Self {
        let line = line_of(profile, frames);
        Self {
            innermost: innermost_of_stack(profile, frames),
            user_function: user_function_of(profile, frames, line.as_ref()),
            line,
        }
    }

    /// Returns the end of the stack at `site`, which must have only one stack.
    pub(super) fn at(profile: &Profile, site: SampleSite) -> Self {
        Self::of(profile, &stack(profile, site, GraphStacks::Both, NameFolding::Kept))
    }
}

/// Programming languages and the extensions of their source files.
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
    // Python code need not be in a file (the file is then `<string>`), so Python is recognised by the kind of the
    // frame.
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
