//! Tests `Symbolizer` with real files: the test program itself, its C library, and programs that the tests compile if a
//! compiler is installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::skip::skip;
use gpuflame_model::record::{
    CodeObject, ContextFlags, ContextId, LabelId, Module, ModuleEpoch, NameId, RangeId, Reader, Row, ThreadId,
};

/// Returns the modules of this process that contain code, in the form that `capture` would describe them, but without
/// build ids.
fn own_modules() -> Vec<Module> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut modules: Vec<Module> = Vec::new();
    let mut first = std::collections::HashMap::new();
    for line in maps.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [range, permissions, offset, .., path] = fields[..] else { continue };
        if !path.starts_with('/') {
            continue;
        }
        let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = range.split_once('-').map(|(start, end)| (hex(start), hex(end))).unwrap();
        // In a position-independent file, the first mapping begins at virtual address 0 of the file.
        let bias = *first.entry(path.to_owned()).or_insert(start - hex(offset));
        if permissions.contains('x') {
            let epoch = ModuleEpoch(0);
            modules.push(Module { epoch, start, end, bias, path: path.into(), build_id: Vec::new() });
        }
    }
    modules
}

#[inline(never)]
fn a_function_to_find() -> u64 {
    std::hint::black_box(17)
}

const API: LabelId = LabelId(1);

/// Returns a profile with one context. In the stack of the context, `cudaLaunchKernel` is called from `addresses` (leaf
/// first).
fn profile_of(modules: &[Module], addresses: &[u64]) -> Profile {
    let mut profile = Profile::default();
    profile.push(&Row::Label { id: API, text: "cudaLaunchKernel" });
    modules.iter().for_each(|module| profile.push(&Row::Module(module.clone())));
    let mut frames = vec![Frame::label(API)];
    frames.extend(addresses.iter().map(|&address| Frame::native_exact(address, ModuleEpoch(0))));
    let (thread, flags) = (ThreadId(1), ContextFlags(0));
    profile.push(&Row::Context { id: ContextId(2), thread, flags, frames: &frames });
    profile
}

/// Returns the displayed frames of the profile's context, leaf first.
fn frames(profile: &Profile) -> Vec<ShownFrame> {
    let shown = profile.shown(ContextId(2)).unwrap();
    profile.shown_stack(shown).map(|id| *profile.shown_frame(id)).collect()
}

/// Names the frames of the profile, and returns the displayed names of its stack, root first.
fn shown(profile: &mut Profile, options: SymbolizeOptions) -> Vec<String> {
    Symbolizer::new(options).name(profile);
    let mut names: Vec<_> =
        frames(profile).iter().map(|frame| profile.strings().get(frame.name).to_owned()).collect();
    names.reverse();
    names
}

const ALL: SymbolizeOptions = SymbolizeOptions {
    internal_frames: true,
    python_lines: false,
    python_only: false,
    backward_under_forward: false,
};

#[test]
fn a_function_of_this_program_has_its_name() {
    assert_eq!(a_function_to_find(), 17);
    let address = a_function_to_find as fn() -> u64 as usize as u64;
    let names = shown(&mut profile_of(&own_modules(), &[address + 4]), ALL);
    assert!(names[0].ends_with("symbolize::tests::a_function_to_find"), "{names:?}");
    assert_eq!(names.last().unwrap(), "cudaLaunchKernel");
}

#[test]
fn a_function_of_the_c_library_has_its_name() {
    let address = libc::getpid as unsafe extern "C" fn() -> libc::pid_t as usize as u64;
    let names = shown(&mut profile_of(&own_modules(), &[address + 1]), ALL);
    assert!(names[0].contains("getpid"), "{names:?}");
}

#[test]
fn a_frame_without_a_symbol_shows_its_module_and_offset() {
    let module = |start, path: &str| Module {
        epoch: ModuleEpoch(0),
        start,
        end: start + 0x1000,
        bias: start - 0x500,
        path: path.into(),
        build_id: Vec::new(),
    };
    let modules = [module(0x1000, "/no/such/lib.so"), module(0x3000, ""), module(0x5000, "/dev/null")];
    let mut profile = profile_of(&modules, &[0x1010, 0x3010, 0x5010, 0x9000]);
    let names = shown(&mut profile, ALL);
    assert_eq!(
        names,
        ["[unknown]+0x9000", "null+0x510", "[unknown]+0x510", "lib.so+0x510", "cudaLaunchKernel"]
    );
    let why: Vec<_> = frames(&profile).iter().rev().map(|frame| frame.unnamed).collect();
    let (generated, gone) = (Some(Unnamed::Generated), Some(Unnamed::FileGone));
    assert_eq!(why, [generated, Some(Unnamed::FileUnreadable), generated, gone, None]);
}

#[test]
fn a_file_that_was_replaced_gives_no_names() {
    let mut modules = own_modules();
    modules.iter_mut().for_each(|module| module.build_id = vec![1, 2, 3]);
    let address = a_function_to_find as fn() -> u64 as usize as u64;
    let mut profile = profile_of(&modules, &[address + 4]);
    let names = shown(&mut profile, ALL);
    assert_eq!(frames(&profile)[1].unnamed, Some(Unnamed::FileReplaced));
    let file = Path::new("/proc/self/exe").canonicalize().unwrap();
    let file = file.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(names[0].starts_with(&format!("{file}+0x")), "{names:?}");
}

#[test]
fn naming_a_grown_profile_again_names_its_new_frames() {
    let mut profile = profile_of(&[], &[0x10, 0x20]);
    let mut symbolizer = Symbolizer::new(ALL);
    symbolizer.name(&mut profile);
    let frames = [Frame::native_exact(0x10, ModuleEpoch(0)), Frame::native_exact(0x30, ModuleEpoch(0))];
    let (thread, flags) = (ThreadId(1), ContextFlags(0));
    profile.push(&Row::Context { id: ContextId(3), thread, flags, frames: &frames });
    symbolizer.name(&mut profile);
    let shown = profile.shown(ContextId(3)).unwrap();
    let name = |id| profile.strings().get(profile.shown_frame(id).name);
    assert_eq!(
        profile.shown_stack(shown).map(name).collect::<Vec<_>>(),
        ["[unknown]+0x10", "[unknown]+0x30"]
    );
    assert_eq!(symbolizer.misses(), &[(Unnamed::Generated, 3)].into());
}

#[test]
fn a_rust_threads_stack_starts_at_its_thread_function() {
    #[inline(never)]
    fn given_to_the_thread() -> Vec<u64> {
        let mut addresses = Vec::new();
        backtrace::trace(|frame| {
            addresses.push((frame.ip() as u64).saturating_sub(1));
            !frame.ip().is_null()
        });
        addresses
    }
    let addresses = std::thread::spawn(given_to_the_thread).join().unwrap();
    let names = shown(&mut profile_of(&own_modules(), &addresses), SymbolizeOptions::default());
    assert!(names[0].contains("given_to_the_thread"), "{names:#?}");
    let all = shown(&mut profile_of(&own_modules(), &addresses), ALL);
    assert!(all.len() > names.len() + 3, "{all:#?}");
}

/// A temporary folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpuflame-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Errors while the folder is removed from /tmp are ignored, because they must not make the test fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles `source` with `compiler`, and returns the path of the program. Returns `None` if the compiler is not
/// installed.
fn compile(folder: &Folder, compiler: &str, source: &str, arguments: &[&str]) -> Option<PathBuf> {
    let (input, output) = (folder.0.join("source.cc"), folder.0.join("program"));
    std::fs::write(&input, source).unwrap();
    let run = Command::new(compiler).args(arguments).arg("-o").arg(&output).arg(&input).status();
    match run {
        Ok(status) if status.success() => Some(output),
        other => {
            skip(&format!("{compiler} does not compile the test's program: {other:?}"));
            None
        }
    }
}

/// Returns the address that `nm` prints for a symbol in `program`.
fn address_of(program: &Path, symbol: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(&format!(" {symbol}"))).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// Returns a module that covers all of `program`, as if it were mapped at `bias`.
fn mapped(program: &Path, bias: u64) -> Module {
    let build_id = blazesym::helper::read_elf_build_id(program).unwrap().unwrap().to_vec();
    let path = program.to_owned();
    Module { epoch: ModuleEpoch(0), start: bias, end: bias + (1 << 20), bias, path, build_id }
}

const INLINED: &str = "
volatile int sink;
namespace lib { template <typename T> inline __attribute__((always_inline)) void inner(T x) {
    for (int i = 0; i < x; i++) sink += i;
} }
static inline __attribute__((always_inline)) void middle(int x) { lib::inner<int>(x); }
__attribute__((noinline)) void outer(int x) { middle(x); }
int main(int count, char **) { outer(count); }
";

#[test]
fn inlined_calls_become_frames_outermost_first() {
    let folder = Folder::new("inlined");
    let Some(program) = compile(&folder, "c++", INLINED, &["-g", "-O2", "-Wl,--build-id"]) else { return };
    let at = address_of(&program, "_Z5outeri");
    let bias = 0x5555_0000_0000;
    // At least one of the requested addresses is inside the loop.
    let names = (0..40).step_by(4).map(|i| {
        let mut profile = profile_of(&[mapped(&program, bias)], &[bias + at + i]);
        shown(&mut profile, SymbolizeOptions::default())
    });
    let deepest = names.max_by_key(Vec::len).unwrap();
    assert_eq!(deepest, ["outer", "middle", "lib::inner<int>", "cudaLaunchKernel"]);
}

/// The test must pass no matter which of several names the symbol table lists first, and even if debug information for
/// the C library is installed.
#[test]
fn c_library_functions_have_their_public_names() {
    let libc = own_modules().into_iter().find(|module| module.path.ends_with("libc.so.6")).unwrap();
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&libc.path).output().unwrap();
    let exports = String::from_utf8(output.stdout).unwrap();
    for call in ["nanosleep", "read", "write", "poll", "select", "sigaction", "waitpid"] {
        let line = exports.lines().find(|line| line.contains(&format!(" {call}@@"))).unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let symbols = SymbolFiles::new().symbols(&libc, &[address]).remove(0).unwrap();
        assert_eq!(symbols[0].name, call, "in {}", libc.path.display());
    }
}

#[test]
fn named_frames_have_their_kind_source_line_and_module() {
    let folder = Folder::new("source");
    let Some(program) = compile(&folder, "c++", INLINED, &["-g", "-O2", "-Wl,--build-id"]) else { return };
    let at = 0x5555_0000_0000 + address_of(&program, "_Z5outeri");
    let deepest = (0..40).step_by(4).map(|i| {
        let mut profile = profile_of(&[mapped(&program, 0x5555_0000_0000)], &[at + i]);
        Symbolizer::default().name(&mut profile);
        profile
    });
    let profile = deepest.max_by_key(|profile| frames(profile).len()).unwrap();
    let text = |id| profile.strings().get(id);
    let shown: Vec<_> = frames(&profile)
        .into_iter()
        .rev()
        .map(|frame| {
            let source = frame.source.map(|source| (Path::new(text(source.file)), source.line));
            (frame.kind, frame.module.map(text), source)
        })
        .collect();
    let (file, module) = (folder.0.join("source.cc"), program.to_str());
    // Lines of the call to `middle` in `outer`, of the call to `inner` in `middle`, and of the loop in `inner`.
    let expected = [7, 6, 4].map(|line| (ShownFrameKind::Code, module, Some((file.as_path(), line))));
    assert_eq!(shown[..3], expected);
    assert_eq!(shown[3], (ShownFrameKind::Call, None, None));
}

#[test]
fn the_leaf_label_is_the_call_and_ranges_are_ranges() {
    let mut profile = Profile::default();
    for (id, text) in [(1, "main"), (2, "cudaLaunchKernel")] {
        profile.push(&Row::Label { id: LabelId(id), text });
    }
    profile.push(&Row::Range { id: RangeId(1), domain: "", text: "step" });
    let frames_of = [Frame::range(RangeId(1)), Frame::label(LabelId(2)), Frame::label(LabelId(1))];
    let (thread, flags) = (ThreadId(1), ContextFlags(0));
    profile.push(&Row::Context { id: ContextId(2), thread, flags, frames: &frames_of });
    Symbolizer::default().name(&mut profile);
    let kinds: Vec<_> = frames(&profile).iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [ShownFrameKind::Range, ShownFrameKind::Call, ShownFrameKind::Code]);
}

#[test]
fn python_frames_show_their_functions_line_or_the_executed_line() {
    // According to the line table, two bytes of code are on line 12, and two bytes on line 13.
    let code = |id, name| CodeObject {
        id: CodeId(id),
        version: 0x030b,
        first_line: 12,
        file: "/srv/model.py",
        name,
        lines: &[0x80, 0, 0xd8, 1, 2],
    };
    let stack = || {
        let mut profile = Profile::default();
        profile.push(&Row::Label { id: LabelId(2), text: "cudaLaunchKernel" });
        profile.push(&Row::Code(code(7, "Block.forward")));
        let frames = [
            Frame::label(LabelId(2)),
            Frame::native(0x1234, ModuleEpoch::OUTSIDE),
            Frame::python(CodeId(7), 2),
            Frame::python(CodeId(8), 0),
        ];
        let (thread, flags) = (ThreadId(1), ContextFlags(0));
        profile.push(&Row::Context { id: ContextId(2), thread, flags, frames: &frames });
        profile
    };
    let named = |options| shown(&mut stack(), options);
    let auto = named(SymbolizeOptions::default());
    assert_eq!(
        auto,
        ["[function lost]", "Block.forward (model.py:12)", "[unknown]+0x1233", "cudaLaunchKernel"]
    );
    let lines = named(SymbolizeOptions { python_lines: true, ..SymbolizeOptions::default() });
    assert_eq!(lines[1], "Block.forward (model.py:13)");
    let only = named(SymbolizeOptions { python_only: true, ..SymbolizeOptions::default() });
    assert_eq!(only, ["[function lost]", "Block.forward (model.py:12)", "cudaLaunchKernel"]);
    // The source location contains the executed line, even if the name contains the first line of the function.
    let mut profile = stack();
    Symbolizer::default().name(&mut profile);
    let frame = frames(&profile)[2];
    let source = frame.source.map(|source| (profile.strings().get(source.file), source.line));
    assert_eq!((frame.kind, source), (ShownFrameKind::Python, Some(("/srv/model.py", 13))));
}

#[test]
fn namespaces_are_shown_even_with_line_tables_only() {
    let folder = Folder::new("lines");
    let source = "namespace deep { __attribute__((noinline)) int function(int x) {
        for (int i = 0; i < x; i++) x ^= i * 7;
        return x;
    } }
    int main(int count, char **) { return deep::function(count); }";
    for debug in ["-g", "-g1"] {
        let Some(program) = compile(&folder, "c++", source, &[debug, "-O2", "-Wl,--build-id"]) else {
            return;
        };
        let at = 0x5555_0000_0000 + address_of(&program, "_ZN4deep8functionEi") + 2;
        let mut profile = profile_of(&[mapped(&program, 0x5555_0000_0000)], &[at]);
        assert_eq!(shown(&mut profile, ALL), ["deep::function", "cudaLaunchKernel"], "{debug}");
    }
}

#[test]
fn without_debug_information_the_symbol_table_is_enough() {
    let folder = Folder::new("symtab");
    let Some(program) = compile(&folder, "c++", INLINED, &["-O2", "-Wl,--build-id"]) else { return };
    let (outer, start) = (address_of(&program, "_Z5outeri"), address_of(&program, "_start"));
    let bias = 0x5555_0000_0000;
    let modules = [mapped(&program, bias)];
    let addresses = [bias + outer + 2, bias + start + 2];
    assert_eq!(shown(&mut profile_of(&modules, &addresses), ALL), ["_start", "outer", "cudaLaunchKernel"]);
    let folded = shown(&mut profile_of(&modules, &addresses), SymbolizeOptions::default());
    assert_eq!(folded, ["outer", "cudaLaunchKernel"]);
}

#[test]
fn the_host_side_of_a_kernel_is_folded_once_its_name_is_known() {
    let folder = Folder::new("stub");
    let Some(program) = compile(&folder, "c++", INLINED, &["-O2", "-Wl,--build-id"]) else { return };
    let (main, stub) = (address_of(&program, "main"), address_of(&program, "_Z5outeri"));
    let bias = 0x5555_0000_0000;
    let mut profile = profile_of(&[mapped(&program, bias)], &[bias + stub + 2, bias + main + 2]);
    let mut symbolizer = Symbolizer::default();
    symbolizer.name(&mut profile);
    let names = |profile: &Profile| frames(profile).len();
    assert_eq!(names(&profile), 3, "main, outer and the call");
    profile.push(&Row::Name { id: NameId(1), text: "_Z5outeri" });
    symbolizer.name(&mut profile);
    assert_eq!(names(&profile), 2, "main and the call");
    assert_eq!(profile.kernel(NameId(1)), Some("outer"));
}

#[test]
fn garbage_instead_of_a_file_gives_no_names() {
    let folder = Folder::new("garbage");
    let program = folder.0.join("lib.so");
    let mut bytes = std::fs::read("/proc/self/exe").unwrap();
    bytes.truncate(100_000);
    for contents in [b"".to_vec(), b"no program".to_vec(), b"\x7fELF garbage".to_vec(), bytes] {
        let is_elf = contents.starts_with(b"\x7fELF");
        std::fs::write(&program, contents).unwrap();
        let module = Module {
            epoch: ModuleEpoch(0),
            start: 0,
            end: 1 << 30,
            bias: 0,
            path: program.clone(),
            build_id: Vec::new(),
        };
        let mut profile = profile_of(&[module], &[0x4321]);
        let names = shown(&mut profile, ALL);
        assert_eq!(names, ["lib.so+0x4321", "cudaLaunchKernel"]);
        // The parser may be able to read a part of the damaged file, so the test accepts both reasons.
        let why = frames(&profile)[1].unnamed;
        assert!(
            why == Some(Unnamed::FileUnreadable) || (is_elf && why == Some(Unnamed::NoSymbol)),
            "{why:?}"
        );
    }
}

/// Reads `rows` into a profile. `rows` contains the bytes of a recording without its file header.
fn push_rows(profile: &mut Profile, rows: &[u8]) {
    let file = [&Chunk::file_header()[..], rows].concat();
    let mut reader = Reader::new(&file[..]).unwrap();
    while let Some(row) = reader.next_row().unwrap() {
        profile.push(&row);
    }
}

#[test]
fn rows_with_functions_name_frames_whose_files_are_gone() {
    let address = a_function_to_find as fn() -> u64 as usize as u64;
    let libc = libc::getpid as unsafe extern "C" fn() -> libc::pid_t as usize as u64;
    let (mut modules, addresses) = (own_modules(), [address + 4, libc + 1]);
    let mut symbolizer = Symbolizer::with_rows(ALL);
    let mut there = profile_of(&modules, &addresses);
    symbolizer.name(&mut there);
    let rows = symbolizer.take_rows();
    for module in &mut modules {
        module.path = Path::new("/gone").join(module.path.strip_prefix("/").unwrap());
    }
    let described = |profile: &Profile| -> Vec<_> {
        let text = |id| profile.strings().get(id).to_owned();
        let source = |frame: &ShownFrame| frame.source.map(|source| (text(source.file), source.line));
        frames(profile).iter().map(|frame| (text(frame.name), source(frame), frame.unnamed)).collect()
    };
    let mut elsewhere = profile_of(&modules, &addresses);
    Symbolizer::new(ALL).name(&mut elsewhere);
    assert_ne!(described(&elsewhere), described(&there));
    let mut elsewhere = profile_of(&modules, &addresses);
    push_rows(&mut elsewhere, &rows);
    Symbolizer::new(ALL).name(&mut elsewhere);
    assert_eq!(described(&elsewhere), described(&there));
}
