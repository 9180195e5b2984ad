//! Places in the code of the host, and what their names tell: whether the host loaded data, compiled, waited for a lock, and
//! so on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::thresholds::{MAX_LAUNCH_CALL_NS, MAX_LAUNCH_GAP_NS, MIN_LOADING_NS};
use gpuflame_export::{
    NameFolding, executed_line, folded_names, idle_place, innermost_frames, user_function,
};
use gpuflame_model::profile::{Cause, Leaf, LeafFrame, Profile, Sample, SampleSite, ShownFrameKind};

/// Activity of the host in a place. Places with the same class and the same function are one reason for lost time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Garbage(String),
    Compilation(String),
    Profiler,
    Allocation(String),
    Loader(String),
    Lock(String),
    Copy(String),
    /// Launched work, or did something short between launches.
    Launching,
    Other(String),
}

impl Class {
    /// Whether the class follows from names in the stack.
    pub(super) fn is_named(&self) -> bool {
        !matches!(self, Self::Copy(_) | Self::Launching | Self::Other(_))
    }
}

/// A place in the code, with its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Names of all frames, root first. For a time between two calls, the frames of both calls.
    pub(super) frames: Vec<String>,
    /// Call of an API at which the stack ends; empty for a time between two calls.
    pub(super) call: String,
    /// Innermost function of user code; empty if it is unknown.
    pub(super) function: String,
    /// Function that called `function`; empty if it is unknown.
    pub(super) caller: String,
    /// Innermost function of any code, if it is not `function`.
    pub(super) within: String,
    /// Innermost range of the user within `function`, such as one of `record_function`; empty if there is none.
    pub(super) range: String,
    /// Executed line of user code, such as `train.py:88`; empty if it is unknown.
    pub(super) line: String,
    /// The place in words, such as `between cudaMemcpy and cudaLaunchKernel in step`.
    pub(super) words: String,
}

/// Returns the places of sites, each of which is described once.
pub(super) struct Places<'a> {
    profile: &'a Profile,
    /// Names of ranges.
    ranges: BTreeSet<&'a str>,
    known: RefCell<BTreeMap<SampleSite, std::rc::Rc<Place>>>,
}

impl<'a> Places<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        let ranges = profile.shown_frames().iter().filter(|frame| frame.kind == ShownFrameKind::Range);
        let ranges = ranges.map(|frame| profile.strings().get(frame.name)).collect();
        Self { profile, ranges, known: RefCell::default() }
    }

    pub(super) fn of(&self, site: SampleSite) -> std::rc::Rc<Place> {
        if let Some(place) = self.known.borrow().get(&site) {
            return place.clone();
        }
        let place = std::rc::Rc::new(self.describe(site));
        self.known.borrow_mut().insert(site, place.clone());
        place
    }

    fn describe(&self, site: SampleSite) -> Place {
        let (profile, names) = (self.profile, NameFolding::Kept);
        let sides = match site {
            SampleSite::Between { after, before, .. } => {
                vec![SampleSite::Context(after), SampleSite::Context(before)]
            }
            site => vec![site],
        };
        let frames: Vec<String> = sides
            .iter()
            .flat_map(|side| folded_names(profile, *side, names))
            .map(|name| name.into())
            .collect();
        let own = *sides.last().unwrap_or(&site);
        let innermost = innermost_frames(profile, own, names);
        let function =
            user_function(profile, own, names).filter(|name| !name.contains("0x")).unwrap_or_default();
        let within = innermost.function.filter(|name| *name != function && !name.contains("0x"));
        let line = executed_line(profile, own, names);
        let sample = Sample::new(site, Leaf::new(&[LeafFrame::Idle(Cause::HostLate)]));
        let caller = caller(&frames, &function);
        let range = self.range(&frames, &function);
        Place {
            caller,
            range,
            frames,
            call: innermost.call.filter(|_| sides.len() == 1).unwrap_or_default(),
            within: within.unwrap_or_default(),
            line: line.map_or_else(String::new, |line| format!("{}:{}", line.file, line.line)),
            words: idle_place(profile, &sample).unwrap_or_default(),
            function,
        }
    }
}

impl Places<'_> {
    /// Returns the innermost range after the last frame called `function`. Steps, and labels of time between slices, are ranges, too.
    fn range(&self, frames: &[String], function: &str) -> String {
        let is_users = |frame: &&String| {
            self.ranges.contains(&***frame) && !frame.starts_with('[') && !frame.starts_with("ProfilerStep")
        };
        let inner = frames.iter().rev().take_while(|frame| *frame != function);
        inner.filter(|_| !function.is_empty()).find(is_users).cloned().unwrap_or_default()
    }
}

/// Returns the frame before the last frame called `function`, if it is a function too.
fn caller(frames: &[String], function: &str) -> String {
    let at = frames.iter().rposition(|frame| frame == function).filter(|at| *at > 0 && !function.is_empty());
    let is_function = |frame: &&String| {
        !frame.starts_with('[') && !frame.starts_with("ProfilerStep") && !frame.contains("+0x")
    };
    at.map(|at| &frames[at - 1]).filter(is_function).cloned().unwrap_or_default()
}

impl Place {
    fn has_frame(&self, is: impl Fn(&str) -> bool) -> bool {
        self.frames.iter().any(|frame| is(frame))
    }

    /// Whether the garbage collector ran.
    pub(super) fn collects_garbage(&self) -> bool {
        const NAMES: [&str; 6] = [
            "<built-in function collect>",
            "gc.collect",
            "gc_collect",
            "_PyGC_Collect",
            "[garbage collection]",
            "GC_gcollect",
        ];
        self.has_frame(|frame| NAMES.iter().any(|name| frame.contains(name)))
    }

    /// Whether code for the GPU was compiled or loaded.
    pub(super) fn compiles(&self) -> bool {
        const NAMES: [&str; 22] = [
            "compile_inner",
            "convert_frame",
            "compile_fx",
            "compile_to_module",
            "codecache.py",
            "torch/_inductor/graph.py",
            "triton/compiler",
            "triton/backends",
            "numba/cuda/compiler",
            "cupy/cuda/compiler",
            "nvrtcCompileProgram",
            "nvJitLink",
            "cuLink",
            "cuModuleLoad",
            "cuLibraryLoad",
            "cudaLibraryLoad",
            "hipModuleLoad",
            "hiprtc",
            "Lazy Function Loading",
            "Runtime Triggered Module Loading",
            "torch/utils/cpp_extension",
            "XlaCompile",
        ];
        // `codecache.py: __call__` runs code that was compiled before.
        let is_run = |frame: &str| frame.ends_with("__call__");
        self.has_frame(|frame| NAMES.iter().any(|name| frame.contains(name)) && !is_run(frame))
    }

    /// Returns the class of the host's activity in this place, if it took `nanos` since the last launch.
    pub(super) fn class(&self, nanos: u64) -> Class {
        let function = || self.function.clone();
        match () {
            () if self.collects_garbage() => Class::Garbage(function()),
            () if self.compiles() => Class::Compilation(function()),
            () if self.profiles() => Class::Profiler,
            () if self.allocates() => Class::Allocation(function()),
            () if self.is_loading(nanos) => Class::Loader(self.loader()),
            () if self.waits_for_thread() => Class::Lock(function()),
            () if self.copies() || self.waits_for_gpu() => Class::Copy(function()),
            () if nanos <= MAX_LAUNCH_GAP_NS => Class::Launching,
            () if self.launches() && nanos <= MAX_LAUNCH_CALL_NS => Class::Launching,
            () if self.is_called_loader() && nanos < MIN_LOADING_NS => Class::Launching,
            () => Class::Other(function()),
        }
    }

    fn is_loading(&self, nanos: u64) -> bool {
        if self.moves_memory() || self.waits_for_gpu() {
            return false;
        }
        // A library copies the samples of a batch on the host, by operators such as `aten::copy_`.
        let is_in_loader = self.is_in_loader() && !self.call.contains("Launch");
        let may_load = !self.copies() && !self.launches() && nanos >= MIN_LOADING_NS;
        is_in_loader || (self.is_called_loader() && may_load)
    }

    /// Returns the function that loads data; empty if a library loads it.
    fn loader(&self) -> String {
        if self.is_in_loader() { String::new() } else { self.function.clone() }
    }

    /// Whether a library that loads data works or waits.
    fn is_in_loader(&self) -> bool {
        self.has_frame(is_loader_frame)
    }

    /// Whether the function's name says that it loads data: it begins with a verb such as `load`, and has a noun such as `batch`.
    fn is_called_loader(&self) -> bool {
        const VERBS: [&str; 8] = ["load", "next", "get", "fetch", "read", "prepare", "decode", "preprocess"];
        const THINGS: [&str; 8] = ["batch", "data", "sample", "image", "token", "example", "record", "input"];
        let name = self.function.rsplit(": ").next().unwrap_or_default();
        let name = name.rsplit("::").next().unwrap_or_default().to_ascii_lowercase();
        let name = name.trim_start_matches('_');
        VERBS.iter().any(|verb| name.starts_with(verb)) && THINGS.iter().any(|thing| name.contains(thing))
    }

    /// Whether the host waited for another thread.
    pub(super) fn waits_for_thread(&self) -> bool {
        const NAMES: [&str; 19] = [
            "_thread.lock",
            "std::mutex",
            "absl::Mutex",
            "condition_variable",
            "unique_lock",
            "semaphore",
            "_thread.RLock",
            "'acquire' of '_thread",
            "[waits for another thread]",
            "pthread_mutex_lock",
            "pthread_cond_",
            "pthread_rwlock",
            "__lll_lock_wait",
            "___pthread_cond",
            "futex",
            "take_gil",
            "PyEval_RestoreThread",
            "PyGILState_Ensure",
            "sem_wait",
        ];
        let innermost = self.frames.len().saturating_sub(MAX_LOCK_FRAMES);
        self.frames[innermost..].iter().any(|frame| {
            let file = frame.split('(').next().unwrap_or_default();
            let is_file = |name: &str| file.rsplit('/').next() == Some(name);
            let is_module = is_file("threading.py") || is_file("queue.py");
            let starts_thread = frame.contains(": run") || frame.contains("_bootstrap");
            (is_module || NAMES.iter().any(|name| frame.contains(name))) && !starts_thread
        })
    }

    /// Whether a profiler worked.
    pub(super) fn profiles(&self) -> bool {
        const NAMES: [&str; 5] = [
            "Instrumentation",
            "Activity Buffer Request",
            "Command Buffer Full",
            "Buffer Flush",
            "cuptiActivity",
        ];
        self.has_frame(|frame| NAMES.iter().any(|name| frame.contains(name)))
    }

    /// Whether the call allocated or freed memory in a way that may wait for the GPU.
    pub(super) fn allocates(&self) -> bool {
        is_allocation(&self.call)
    }

    /// Whether the call is a copy that returns when the copy has ended.
    pub(super) fn copies_synchronously(&self) -> bool {
        let call = &*self.call;
        let is_copy = call.contains("Memcpy") || call.contains("memcpy");
        is_copy && !call.contains("Async") && (call.starts_with("cu") || call.starts_with("hip"))
    }

    /// Whether the call is one of the runtime or the driver that copies or fills. An operator may have any name.
    fn moves_memory(&self) -> bool {
        let is_call = self.call.starts_with("cu") || self.call.starts_with("hip");
        is_call && ["Memcpy", "memcpy", "Memset"].iter().any(|name| self.call.contains(name))
    }

    /// Whether the call fills memory.
    pub(super) fn fills(&self) -> bool {
        self.call.contains("Memset")
    }

    /// Whether the call launches a kernel or a graph.
    pub(super) fn is_launch_call(&self) -> bool {
        self.call.contains("Launch")
    }

    /// Whether the call copies.
    pub(super) fn copies(&self) -> bool {
        self.moves_memory() || self.call.ends_with("copy_")
    }

    /// Whether the call waits for the GPU.
    pub(super) fn waits_for_gpu(&self) -> bool {
        self.call.contains("Synchronize") || self.copies_synchronously()
    }

    /// Whether the call launches work, or is an operator that does.
    pub(super) fn launches(&self) -> bool {
        self.call.contains("Launch") || self.call.contains("::")
    }
}

/// Number of innermost frames in which a lock is searched for. Further out, `threading.py` only started the thread.
const MAX_LOCK_FRAMES: usize = 4;

fn is_allocation(call: &str) -> bool {
    const STARTS: [&str; 12] = [
        "cudaMalloc",
        "cudaFree",
        "cudaHostAlloc",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cuMemAlloc",
        "cuMemFree",
        "cuMemCreate",
        "cuMemHostAlloc",
        "hipMalloc",
        "hipFree",
        "hipHostMalloc",
    ];
    STARTS.iter().any(|start| call.starts_with(start)) && !call.contains("Async")
}

fn is_loader_frame(frame: &str) -> bool {
    const LIBRARIES: [&str; 8] = [
        "torch/utils/data",
        "dataloader",
        "DataLoader",
        "tensorflow/python/data",
        "tf_data",
        "webdataset",
        "nvidia/dali",
        "collate",
    ];
    let is_item = frame.contains("__getitem__") && frame.contains("data");
    is_item || LIBRARIES.iter().any(|name| frame.contains(name))
}
