//! `Symbolizer` finds names for the frames and kernels of a profile. Each frame is named only once, and as late as
//! possible.
//!
//! A frame is shown as the function at its address, or as several functions if the compiler inlined calls. The
//! functions come from the symbols and debug information of the file that was mapped at the address when the frame was
//! captured. If a frame has no name, it is shown as `lib.so+0x1234` (an address in the file), or as `[unknown]+0x…` if
//! the code was in no file. A missing name is not an error. The reason why a name is missing is stored with the frame.
//! After naming, frames that are not useful to readers are hidden (see `fold`).
//!
//! The symbolizer reads only files, and never reads the memory of the process. So the symbolizer can also name profiles
//! of another process or of an earlier run.

mod backward;
mod demangle;
mod files;
mod fold;
mod generated;
mod glue;
mod modules;
mod pauses;
mod python;
mod vendor;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use backward::BackwardTime;
pub use demangle::kernel_name;
pub use generated::{GeneratedCodeSources, GeneratedNames, generated_addresses};

use backward::{attach_backward_to_forward, is_engine};
use files::{FunctionSymbol, SymbolFiles, Symbols};
use fold::{CodeOrigin, NameTraits, StackName};
use glue::Glue;
use gpuflame_model::profile::{
    FrameId, OTHER_STACKS, PYTHON_NOT_READ, Profile, ShownFrame, ShownFrameId, ShownFrameKind,
    SourceLocation, StringId, Unnamed,
};
use gpuflame_model::record::{
    Chunk, CodeId, ContextId, Frame, FrameFunction, FrameKind, IdMap, LabelId, LabelKind, NameId, RangeId,
    hash_one,
};
use modules::ModuleIndex;

/// Options for how stacks are displayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolizeOptions {
    /// Whether to show frames of CUDA's libraries, of stubs that compilers generate, and of the start code that calls
    /// `main`. Default: false.
    pub internal_frames: bool,
    /// Whether the name of a Python frame contains the line that was being executed, instead of the first line of the
    /// function. Default: false.
    pub python_lines: bool,
    /// Whether native frames are hidden in stacks that have Python frames. Default: false.
    pub python_only: bool,
    /// Whether launches of PyTorch's backward pass are moved under the forward pass, if NVTX ranges link the two passes
    /// (see `backward`). Default: false.
    pub backward_under_forward: bool,
}

/// Finds the names of frames and kernels in a profile. The symbolizer stores the names that it found. So if the profile
/// has grown and is named again, only the new frames take time. Use a separate symbolizer for each profile.
#[derive(Debug, Default)]
pub struct Symbolizer {
    options: SymbolizeOptions,
    /// Names of the profile's frames, indexed by [`FrameId::index`].
    frames: Vec<FrameNames>,
    /// Hashes of the symbols of the profile's kernels.
    kernels: IdMap<u64, ()>,
    /// Number of frames without a name, for each reason.
    misses: BTreeMap<Unnamed, u64>,
    tied: BackwardTime,
    /// Value of [`Profile::renumbered`] at the time when the profile was last named.
    renumbered: u32,
    /// Rows with the functions that were found in files. The rows are written to a recording. The field is `None` if no
    /// recording needs the rows.
    found: Option<FunctionRows>,
}

/// Rows that define the functions of native frames, for a recording of the named profile.
#[derive(Debug, Default)]
struct FunctionRows {
    chunk: Chunk,
    /// Id of the path of each source file, keyed by the hash of the path.
    paths: IdMap<u64, u32>,
    /// Complete chunks of rows, as bytes.
    bytes: Vec<u8>,
}

impl FunctionRows {
    /// Adds the rows for `frame` if its file was searched for symbols. A frame without a name gets a row only if its
    /// file has no symbol for it. If the file itself was not found, no row is added, because the machine on which the
    /// recording is read may have the file.
    fn add(&mut self, frame: Frame, found: &FrameToName) {
        let FrameToName::Code { symbols: Some(symbols), module: Some(_), .. } = found else { return };
        match symbols {
            Ok(functions) => functions.iter().for_each(|it| {
                let (mut file, line) = it.source.as_ref().map_or(("", 0), |(file, line)| (&**file, *line));
                let next = self.paths.len() as u32 + 1;
                let path =
                    if file.is_empty() { 0 } else { *self.paths.entry(hash_one(file)).or_insert(next) };
                if path != next {
                    file = "";
                }
                let function = FrameFunction { name: &it.name, start: it.start, file, line };
                self.chunk.function(frame, &function, path);
            }),
            Err(Unnamed::NoSymbol) => self.chunk.function(frame, &FrameFunction::default(), 0),
            Err(_) => {}
        }
        if self.chunk.len() >= MAX_CHUNK_BYTES {
            self.bytes.extend(self.chunk.take());
        }
    }
}

/// Size in bytes at which a chunk of rows is finished and a new chunk begins.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Names of a frame, outermost first: the function that was compiled on its own, then the functions that were inlined
/// into it.
#[derive(Clone, Debug)]
struct FrameNames {
    names: Vec<ShownName>,
    /// Identifies the function by a combination of the module and the function's start address in the module's file.
    /// The field is `None` if the start address or the module is unknown.
    start: Option<u64>,
    origin: CodeOrigin,
    is_label: bool,
    /// The displayed frame, if the captured frame is the label of an API call.
    call: Option<ShownFrameId>,
    /// Whether the frame's file was not searched for symbols, because the frame is probably hidden. See
    /// [`Symbolizer::name_hidden`].
    is_hidden: bool,
}

#[derive(Clone, Copy, Debug)]
struct ShownName {
    frame: ShownFrameId,
    /// Hash of the kernel's mangled symbol. The hash is enough to recognize the symbol, and takes less memory than the
    /// symbol's text.
    symbol: u64,
    glue: Glue,
    traits: NameTraits,
}

impl ShownName {
    fn new(profile: &mut Profile, frame: ShownFrame, symbol: &str, glue: Glue) -> Self {
        let traits = NameTraits::new(profile.strings().get(frame.name));
        Self { frame: profile.intern_shown(frame), symbol: hash_one(symbol), glue, traits }
    }
}

impl Symbolizer {
    /// Creates a symbolizer that has found no names yet.
    pub fn new(options: SymbolizeOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Creates a symbolizer that also creates rows with the functions that it finds.
    pub fn with_rows(options: SymbolizeOptions) -> Self {
        Self { found: Some(FunctionRows::default()), ..Self::new(options) }
    }

    /// Removes and returns the rows with the functions that were found in files, as bytes of a recording.
    pub fn take_rows(&mut self) -> Vec<u8> {
        let Some(FunctionRows { mut chunk, mut bytes, .. }) = self.found.take() else { return Vec::new() };
        if !chunk.is_empty() {
            bytes.extend(chunk.take());
        }
        bytes
    }

    /// Names all frames, kernels and stacks of `profile` that were not named yet.
    pub fn name(&mut self, profile: &mut Profile) {
        if self.renumbered != profile.renumbered() {
            let found = self.found.is_some().then(FunctionRows::default);
            *self = Self { renumbered: profile.renumbered(), found, ..Self::new(self.options) };
        }
        self.name_kernels(profile);
        self.name_frames(profile);
        let mut contexts = profile.contexts();
        contexts.retain(|&context| profile.shown(context).is_none());
        let waiting = self.name_stacks(profile, &contexts);
        self.name_hidden(profile, waiting.frames);
        self.name_stacks(profile, &waiting.contexts);
        if self.options.backward_under_forward {
            let engine: Vec<bool> = self.frames.iter().map(|named| self.is_engine(profile, named)).collect();
            let node = |profile: &Profile, context| self.shown_inside(profile, context, &engine);
            self.tied = attach_backward_to_forward(profile, &engine, &node);
        }
        self.name_pauses(profile);
    }

    /// Returns the GPU time of the backward pass, and the part of this time that was moved under the forward pass.
    pub fn backward_time(&self) -> BackwardTime {
        self.tied
    }

    /// Returns the number of code frames without a name, for each reason. Frames that are never shown do not count,
    /// because their names were not looked up.
    pub fn misses(&self) -> &BTreeMap<Unnamed, u64> {
        &self.misses
    }

    fn note_found(&mut self, frame: Frame, found: &FrameToName) {
        if let Some(rows) = &mut self.found {
            rows.add(frame, found);
        }
        if let FrameToName::Code { symbols: Some(Err(why)), .. } = found {
            *self.misses.entry(*why).or_default() += 1;
        }
    }

    fn name_kernels(&mut self, profile: &mut Profile) {
        let known = self.kernels.len();
        let kernels = profile.kernels();
        self.kernels.reserve(kernels.len() - known.min(kernels.len()));
        for (id, symbol) in kernels {
            self.kernels.insert(hash_one(profile.strings().get(symbol)), ());
            // Usually the kernel already has a name, because a kernel is named when its row arrives. Demangling the
            // name of a kernel takes 2 us.
            name_kernel(profile, id);
        }
        if self.kernels.len() > known {
            // If new kernels were named, a frame that was shown as user code may now turn out to be the host function
            // that launches a new kernel.
            profile.forget_shown();
        }
    }

    fn name_frames(&mut self, profile: &mut Profile) {
        let known = self.frames.len();
        let frames = profile.frames()[known..].to_vec();
        let internal = self.options.internal_frames;
        let found = find_symbols(&frames, profile, |origin| internal || origin == CodeOrigin::Code);
        for (frame, found) in frames.into_iter().zip(found) {
            self.note_found(frame, &found);
            self.frames.push(name_frame(profile, found, &self.options));
        }
    }

    /// Whether a frame belongs to autograd's engine, even if the frame is hidden.
    fn is_engine(&self, profile: &Profile, named: &FrameNames) -> bool {
        let text = |shown_name: &ShownName| profile.strings().get(profile.shown_frame(shown_name.frame).name);
        named.names.iter().any(|shown_name| is_engine(text(shown_name)))
    }

    /// Returns the shown frames between the innermost frame that `engine` marks and the leaf of the stack. The caller
    /// of this function appends these frames to Python functions. Native frames are omitted if the option `python_only`
    /// is set.
    fn shown_inside(&self, profile: &Profile, context: ContextId, engine: &[bool]) -> Vec<ShownFrameId> {
        let Some(known) = profile.context(context) else { return Vec::new() };
        let mut inside: Vec<_> =
            profile.stack(known.stack).take_while(|frame| !engine[frame.index()]).collect();
        inside.reverse();
        let shown = self.display(profile, &inside).into_iter().map(|displayed| displayed.frame);
        let is_code = |frame: &ShownFrameId| profile.shown_frame(*frame).kind == ShownFrameKind::Code;
        shown.filter(|frame| !self.options.python_only || !is_code(frame)).collect()
    }

    /// Sets the displayed frames of the stacks of `contexts`. Returns the stacks that show a frame whose file was not
    /// searched for symbols yet.
    fn name_stacks(&self, profile: &mut Profile, contexts: &[ContextId]) -> DeferredStacks {
        let mut waiting = DeferredStacks::default();
        profile.reserve_shown(contexts.len());
        let mut frames = Vec::new();
        for &context in contexts {
            let stack = profile.context(context).expect("it was listed").stack;
            frames.clear();
            frames.extend(profile.stack(stack));
            frames.reverse();
            let shown = self.display(profile, &frames);
            let known = waiting.frames.len();
            let at = shown.iter().map(|displayed| frames[displayed.depth].index());
            let hidden = at.filter(|frame| self.frames[*frame].is_hidden);
            waiting.frames.extend(hidden);
            match waiting.frames.len() > known {
                true => waiting.contexts.push(context),
                false => profile.set_shown(context, shown.into_iter().map(|displayed| displayed.frame)),
            }
        }
        waiting
    }

    /// Looks up the names of those frames of the C and C++ runtimes that are shown. The files of these runtimes are
    /// searched last, because nearly all frames in them are hidden start code. Reading the debug information of libc
    /// (if it is installed) would take 40 ms.
    fn name_hidden(&mut self, profile: &mut Profile, mut seen: Vec<usize>) {
        seen.sort_unstable();
        seen.dedup();
        let frames: Vec<Frame> = seen.iter().map(|at| profile.frames()[*at]).collect();
        let found = find_symbols(&frames, profile, |_| true);
        for ((at, frame), found) in seen.into_iter().zip(frames).zip(found) {
            self.note_found(frame, &found);
            self.frames[at] = name_frame(profile, found, &self.options);
        }
    }

    /// Returns the displayed frames of a stack. Both `frames` and the result are sorted from root to leaf.
    fn display(&self, profile: &Profile, frames: &[FrameId]) -> Vec<Displayed> {
        let (mut names, call) = self.names(profile, frames);
        let is_of = |name: &Displayed, kind| profile.shown_frame(name.frame).kind == kind;
        if self.options.python_only && names.iter().any(|name| is_of(name, ShownFrameKind::Python)) {
            names.retain(|name| !is_of(name, ShownFrameKind::Code));
        }
        if !self.options.internal_frames {
            let mut shown = fold::fold(&mut self.to_fold(profile, frames, &names, call)).into_iter();
            names.retain(|_| shown.next().unwrap_or(false));
        }
        names
    }

    /// Returns the depth of the first frame after the start code of the program or thread. `frames` are sorted from
    /// root to leaf.
    fn entry(&self, profile: &Profile, frames: &[FrameId]) -> usize {
        let (names, call) = self.names(profile, frames);
        let entry = fold::entry(&self.to_fold(profile, frames, &names, call));
        names.get(entry).map_or(frames.len(), |name| name.depth)
    }

    /// Returns all names in a stack, and the displayed frame of the stack's API call. A label at the leaf of the stack
    /// (not counting ranges) is the API call. Labels at other positions in a stack come from a trace of another tool.
    fn names(&self, profile: &Profile, frames: &[FrameId]) -> (Vec<Displayed>, Option<ShownFrameId>) {
        let mut names = Vec::with_capacity(frames.len() + SPARE_NAMES);
        for (depth, frame) in frames.iter().enumerate() {
            let all = self.frames[frame.index()].names.iter().enumerate();
            names.extend(all.map(|(inlined, name)| Displayed { depth, inlined, frame: name.frame }));
        }
        let is_range = |name: &Displayed| profile.shown_frame(name.frame).kind == ShownFrameKind::Range;
        let mut call = None;
        if let Some(name) = names.iter_mut().rev().find(|name| !is_range(name)) {
            call = self.frames[frames[name.depth].index()].call;
            name.frame = call.unwrap_or(name.frame);
        }
        (names, call)
    }

    /// Converts the names of a stack to the form that `fold` needs.
    fn to_fold<'a>(
        &self,
        profile: &'a Profile,
        frames: &[FrameId],
        names: &[Displayed],
        call: Option<ShownFrameId>,
    ) -> Vec<StackName<'a>> {
        let to_fold = |name: &Displayed| {
            let FrameNames { origin, is_label, names, .. } = &self.frames[frames[name.depth].index()];
            let (origin, is_label, known) = (*origin, *is_label, names[name.inlined]);
            let is_kernel = !is_label && self.kernels.contains_key(&known.symbol);
            // A stack without an API call is a CPU sample. In a CPU sample, frames inside an operator show the work of
            // the thread, so they are not hidden.
            let says = known.glue == Glue::InOperator && call.is_none();
            let glue = if says { Glue::Never } else { known.glue };
            let text = profile.strings().get(profile.shown_frame(name.frame).name);
            StackName { text, traits: known.traits, origin, is_label, is_kernel, glue }
        };
        names.iter().map(to_fold).collect()
    }
}

/// Number of inlined functions per stack for which memory is reserved in advance.
const SPARE_NAMES: usize = 8;

/// A displayed frame, with the position of the captured frame from which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Displayed {
    /// Position of the captured frame in its stack, counted from the root.
    depth: usize,
    /// Position of the function among the functions at the captured frame's address. Position 0 is the function that
    /// was compiled on its own; inlined functions have the next positions.
    inlined: usize,
    frame: ShownFrameId,
}

/// Sets the displayed name of a kernel that has no displayed name yet.
pub fn name_kernel(profile: &mut Profile, id: NameId) {
    let Some(symbol) = profile.kernel_text(id).filter(|_| !profile.has_shown_kernel(id)) else { return };
    let raw = profile.strings().get(symbol);
    let shown = kernel_name(raw);
    let name = match shown == raw {
        true => symbol,
        false => {
            let shown = shown.into_owned();
            profile.intern(&shown)
        }
    };
    profile.set_shown_kernel(id, name);
}

/// Stacks whose displayed frames cannot be set yet, and the frames that must be named first.
#[derive(Default)]
struct DeferredStacks {
    contexts: Vec<ContextId>,
    /// Positions in `Symbolizer::frames` of the frames that must be named.
    frames: Vec<usize>,
}

/// A frame for which a name must be found, with the data that is needed to find it.
enum FrameToName {
    Label(LabelId, LabelKind),
    Range(RangeId),
    Python(CodeId, u32),
    Code {
        /// Symbols at the frame's address; `None` if the frame's file was not searched for symbols.
        symbols: Option<Symbols>,
        /// Index of the module that contains the frame, and the frame's address in the module's file.
        module: Option<(usize, u64)>,
        address: u64,
    },
    Unknown(u8),
}

/// Finds the symbols of frames: those that the recorded process stored in the profile, and otherwise those in the files
/// of the modules. Each file is searched once for all addresses in it, and only if `is_asked` returns true for the kind
/// of code in the file.
fn find_symbols(
    frames: &[Frame],
    profile: &Profile,
    is_asked: impl Fn(CodeOrigin) -> bool,
) -> Vec<FrameToName> {
    let modules = profile.modules();
    let map = ModuleIndex::new(modules);
    let mut by_module: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
    let mut found: Vec<FrameToName> = Vec::with_capacity(frames.len());
    for (at, frame) in frames.iter().enumerate() {
        found.push(match frame.kind() {
            FrameKind::Label(label) => FrameToName::Label(label, frame.label_kind()),
            FrameKind::Range(range) => FrameToName::Range(range),
            FrameKind::Python { code, at } => FrameToName::Python(code, at),
            FrameKind::Unknown(tag) => FrameToName::Unknown(tag),
            FrameKind::Native { address, epoch } => {
                let module = map.find(address, epoch).map(|m| (m, address.wrapping_sub(modules[m].bias)));
                if let Some(functions) = profile.functions(*frame).filter(|_| module.is_some()) {
                    let symbols = Some(stored_symbols(functions));
                    found.push(FrameToName::Code { symbols, module, address });
                    continue;
                }
                let is_asked =
                    module.is_none_or(|(module, _)| is_asked(CodeOrigin::from_path(&modules[module].path)));
                if let Some((module, in_file)) = module.filter(|_| is_asked) {
                    by_module.entry(module).or_default().push((at, in_file));
                }
                // The code of a frame without a module is generated, or is in one of several files that cannot be
                // distinguished.
                let why = match frame.is_of_unknown_module() {
                    true => Unnamed::ModuleUnknown,
                    false => Unnamed::Generated,
                };
                FrameToName::Code { symbols: is_asked.then_some(Err(why)), module, address }
            }
        });
    }
    let files = SymbolFiles::new();
    for (module, asked) in by_module {
        let addresses: Vec<u64> = asked.iter().map(|&(_, address)| address).collect();
        for ((at, _), answer) in asked.iter().zip(files.symbols(&modules[module], &addresses)) {
            if let FrameToName::Code { symbols, .. } = &mut found[*at] {
                *symbols = Some(answer);
            }
        }
    }
    found.iter_mut().for_each(|found| found.look_up_generated(profile));
    found
}

/// Converts functions that the recorded process stored in the profile to symbols.
fn stored_symbols<'a>(functions: impl Iterator<Item = FrameFunction<'a>>) -> Symbols {
    let symbols = functions.filter(|function| !function.name.is_empty()).map(|function| FunctionSymbol {
        name: function.name.to_owned(),
        start: function.start,
        source: (!function.file.is_empty()).then(|| (function.file.to_owned(), function.line)),
    });
    let symbols: Vec<_> = symbols.collect();
    if symbols.is_empty() { Err(Unnamed::NoSymbol) } else { Ok(symbols) }
}

impl FrameToName {
    /// Looks up the names of functions whose code is in no file. The code generator may have written these names to a
    /// map or jitdump.
    fn look_up_generated(&mut self, profile: &Profile) {
        if let Self::Code { symbols, module, address } = self
            && *symbols == Some(Err(Unnamed::Generated))
            && let Some(name) = profile.generated(*address)
        {
            *symbols = Some(Ok(vec![FunctionSymbol { name: name.to_owned(), start: None, source: None }]));
            *module = None;
        }
    }
}

fn name_frame(profile: &mut Profile, found: FrameToName, options: &SymbolizeOptions) -> FrameNames {
    match found {
        FrameToName::Label(LabelId::OTHER_STACKS, _) => FrameNames {
            is_label: true,
            ..one_name(profile, OTHER_STACKS, ShownFrameKind::Loss, CodeOrigin::Code)
        },
        // The label at this frame replaces Python functions, so the interpreter's frames around the label are hidden.
        FrameToName::Label(LabelId::PYTHON_NOT_READ, _) => {
            one_name(profile, PYTHON_NOT_READ, ShownFrameKind::Loss, CodeOrigin::Python)
        }
        FrameToName::Label(label, kind @ (LabelKind::Python | LabelKind::Range)) => {
            let text = profile.label(label).unwrap_or("[label lost]").to_owned();
            let kind = if kind == LabelKind::Range { ShownFrameKind::Range } else { ShownFrameKind::Python };
            let source = python::parse_location(&text).filter(|_| kind == ShownFrameKind::Python);
            let source = source.map(|(file, line)| SourceLocation { file: profile.intern(file), line });
            let frame = ShownFrame { source, ..ShownFrame::new(kind, profile.intern(&text)) };
            FrameNames { is_label: true, ..one_frame(profile, frame, &text, CodeOrigin::Code) }
        }
        FrameToName::Label(label, LabelKind::Call) => {
            let text = profile.label(label).unwrap_or("[label lost]").to_owned();
            let call = ShownFrame::new(ShownFrameKind::Call, profile.intern(&text));
            let call = Some(profile.intern_shown(call));
            FrameNames {
                is_label: true,
                call,
                ..one_name(profile, &text, ShownFrameKind::Code, CodeOrigin::Code)
            }
        }
        FrameToName::Range(range) => {
            let text = profile.range(range).unwrap_or("[range]").to_owned();
            FrameNames { is_label: true, ..one_name(profile, &text, ShownFrameKind::Range, CodeOrigin::Code) }
        }
        FrameToName::Python(code, at) => name_python(profile, code, at, options.python_lines),
        FrameToName::Unknown(tag) => {
            let text = format!("[frame of unknown kind: {tag}]");
            FrameNames { is_label: true, ..one_name(profile, &text, ShownFrameKind::Loss, CodeOrigin::Code) }
        }
        FrameToName::Code { symbols, module, address } => {
            name_code(profile, symbols, module, address, options.internal_frames)
        }
    }
}

fn name_python(profile: &mut Profile, code: CodeId, at: u32, with_lines: bool) -> FrameNames {
    let Some(code) = profile.code(code) else {
        return one_name(profile, "[function lost]", ShownFrameKind::Python, CodeOrigin::Python);
    };
    let line = python::line(&code, at);
    let text = python::text(&code, if with_lines { line } else { code.first_line });
    let libraries = profile.modules().iter().map(|module| &*module.path);
    let glue = glue::python_glue(code.file, code.name, libraries);
    let file = code.file.to_owned();
    let source = (!file.is_empty()).then(|| SourceLocation { file: profile.intern(&file), line });
    let frame = ShownFrame { source, ..ShownFrame::new(ShownFrameKind::Python, profile.intern(&text)) };
    let shown_name = ShownName::new(profile, frame, &text, glue);
    FrameNames {
        names: vec![shown_name],
        origin: CodeOrigin::Python,
        is_label: false,
        call: None,
        start: None,
        is_hidden: false,
    }
}

fn name_code(
    profile: &mut Profile,
    symbols: Option<Symbols>,
    module: Option<(usize, u64)>,
    address: u64,
    internal: bool,
) -> FrameNames {
    let Some((at, in_file)) = module else {
        if let Some(Ok(functions)) = symbols {
            return name_generated(profile, &functions, internal);
        }
        let why = symbols.and_then(Result::err);
        let word = if why == Some(Unnamed::ModuleUnknown) { "[unknown module]" } else { "[unknown]" };
        let named = unnamed(profile, &format!("{word}+0x{address:x}"), None, why);
        return FrameNames {
            names: vec![named],
            origin: CodeOrigin::Code,
            is_label: false,
            call: None,
            start: None,
            is_hidden: false,
        };
    };
    let path = &profile.modules()[at].path;
    let (origin, is_hidden) = (CodeOrigin::from_path(path), symbols.is_none());
    let path = path.to_string_lossy().into_owned();
    let module = (!path.is_empty()).then(|| profile.intern(&path));
    let file = path.rsplit('/').next().filter(|file| !file.is_empty()).unwrap_or("[unknown]");
    let outer = symbols.as_ref().and_then(|symbols| symbols.as_ref().ok()?.first()?.start);
    let start = outer.map(|start| hash_one(&(at, start)));
    let names = match symbols {
        Some(Ok(functions)) => {
            functions.iter().map(|it| named(profile, it, (module, file), internal)).collect()
        }
        other => {
            let file = file.strip_suffix(" (deleted)").unwrap_or(file);
            let why = other.and_then(Result::err);
            vec![unnamed(profile, &format!("{file}+0x{in_file:x}"), module, why)]
        }
    };
    FrameNames { names, start, origin, is_label: false, call: None, is_hidden }
}

/// Names a function whose code is in no file, with the name that the code generator wrote to a map or jitdump.
fn name_generated(profile: &mut Profile, functions: &[FunctionSymbol], internal: bool) -> FrameNames {
    let origin =
        functions.first().map_or(CodeOrigin::Code, |function| CodeOrigin::from_generated(&function.name));
    let names = functions.iter().map(|it| named(profile, it, (None, ""), internal)).collect();
    FrameNames { names, origin, is_label: false, call: None, start: None, is_hidden: false }
}

fn named(
    profile: &mut Profile,
    function: &FunctionSymbol,
    (module, file): (Option<StringId>, &str),
    internal: bool,
) -> ShownName {
    let name = demangle::function_name(&function.name);
    let glue = glue::glue(file, &name);
    let name = match glue::short_name(&name).filter(|_| !internal) {
        Some(better) => profile.intern(&better),
        None => profile.intern(&name),
    };
    let source = function
        .source
        .as_ref()
        .map(|(file, line)| SourceLocation { file: profile.intern(file), line: *line });
    let frame = ShownFrame { source, module, ..ShownFrame::new(ShownFrameKind::Code, name) };
    ShownName::new(profile, frame, &function.name, glue)
}

fn unnamed(profile: &mut Profile, text: &str, module: Option<StringId>, why: Option<Unnamed>) -> ShownName {
    let frame =
        ShownFrame { module, unnamed: why, ..ShownFrame::new(ShownFrameKind::Code, profile.intern(text)) };
    ShownName::new(profile, frame, text, Glue::Never)
}

fn one_name(profile: &mut Profile, text: &str, kind: ShownFrameKind, origin: CodeOrigin) -> FrameNames {
    let frame = ShownFrame::new(kind, profile.intern(text));
    one_frame(profile, frame, text, origin)
}

fn one_frame(profile: &mut Profile, frame: ShownFrame, text: &str, origin: CodeOrigin) -> FrameNames {
    let shown_name = ShownName::new(profile, frame, text, Glue::Never);
    FrameNames { names: vec![shown_name], origin, is_label: false, call: None, start: None, is_hidden: false }
}
