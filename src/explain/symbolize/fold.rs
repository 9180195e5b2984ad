//! Decides which frames of a stack are shown, and which frames are hidden (folded away).
//!
//! Between the user's code and the API call, there are frames of CUDA's libraries and of stubs that the compiler
//! generated. At the root of the stack, before `main`, is the start code of the C and Rust runtimes. The frames of
//! libraries, stubs and start code are hidden (unless no frame would be left), so that a stack reads
//! `main;decode;forward;cudaLaunchKernel`. In stacks with Python functions, the interpreter's frames are hidden as
//! well. The frames listed in `glue` are hidden in all stacks. CPU samples contain CPython's trampolines for Python
//! functions (`-X perf`), but not the Python functions themselves. In CPU samples, the trampolines are therefore shown
//! as Python functions.

use std::path::Path;

use super::glue::{Glue, OPERATOR_PREFIX, is_name_of};
use super::vendor::VENDORS;

/// Kind of code to which a frame belongs, derived from the file name of the frame's module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeOrigin {
    /// The user's code, and all libraries to which no other variant applies.
    Code,
    /// Libraries of a GPU vendor, and gpuflame's library (see `vendor`).
    Vendor,
    /// The C and C++ runtimes. At the root of a stack, frames of these libraries are start code.
    Runtime,
    /// CPython, and the libraries through which CPython calls C functions.
    Interpreter,
    /// A Python function, which does not belong to a module.
    Python,
}

impl CodeOrigin {
    /// Returns the kind of code for a generated function (which is in no file), derived from the function's name.
    pub(super) fn from_generated(function: &str) -> Self {
        if function.starts_with(TRAMPOLINE) { Self::Interpreter } else { Self::Code }
    }

    pub(super) fn from_path(path: &Path) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        // The name of a library file may contain a version or hash: `libcuda.so.1`, `libcudart.so.12`,
        // `libcudart-d0da41ae.so.11.0`.
        let is = |stem: &str| {
            file.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
        };
        if VENDORS.iter().flat_map(|vendor| vendor.libraries).any(|stem| is(stem)) {
            Self::Vendor
        } else if ["libc", "libpthread", "ld", "ld-linux", "libstdc++", "libc++"].into_iter().any(is) {
            Self::Runtime
        } else if is_interpreter(&file) {
            Self::Interpreter
        } else {
            Self::Code
        }
    }
}

/// Prefix of the names of CPython's trampolines for Python functions. Under `-X perf`, CPython calls each Python
/// function through a trampoline with a name such as `py::forward:/srv/model.py`.
const TRAMPOLINE: &str = "py::";

/// Whether a file belongs to CPython. Examples are `python3.11`, `python3.14d` (a debug build), `libpython3.11.so.1.0`,
/// `_ctypes.cpython-311-x86_64-linux-gnu.so` and `libffi.so.8`.
fn is_interpreter(file: &str) -> bool {
    // The letters `d` and `t` after the version mark debug builds and builds without the GIL.
    let is_version = |rest: &str| {
        rest.trim_end_matches(['d', 't']).bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_library = |stem: &str| file.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.'));
    file.starts_with("libpython")
        || file.strip_prefix("python").is_some_and(is_version)
        || ["_ctypes", "libffi"].into_iter().any(is_library)
}

/// Properties of a function that follow from its name. The properties are determined once per name, because a name may
/// occur in thousands of stacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameTraits {
    /// Whether the function is start code in stacks that do not contain Rust's marker (see `is_rust_marker`).
    is_start: bool,
    /// Whether the function is start code in stacks that contain Rust's marker.
    is_rust_start: bool,
    /// Whether the function is Rust's marker, which is the last function of Rust's start code, both for `main` and for
    /// threads.
    is_rust_marker: bool,
    is_operator: bool,
}

impl NameTraits {
    pub(super) fn new(text: &str) -> Self {
        Self {
            is_start: is_start(text, false),
            is_rust_start: is_start(text, true),
            is_rust_marker: text.contains("::__rust_begin_short_backtrace"),
            is_operator: text.starts_with(OPERATOR_PREFIX),
        }
    }
}

/// A name in a stack, with the properties that [`fold`] needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackName<'a> {
    /// The name in the form in which it is displayed.
    pub(super) text: &'a str,
    pub(super) traits: NameTraits,
    pub(super) origin: CodeOrigin,
    /// Whether the name is a label (such as the name of the API call) and not a function in the code.
    pub(super) is_label: bool,
    /// Whether the function has the same symbol as a kernel. The compiler generates this function to launch the kernel.
    pub(super) is_kernel: bool,
    /// Condition under which the frame is hidden because it is not useful to readers.
    pub(super) glue: Glue,
}

impl StackName<'_> {
    /// If the frame is a trampoline through which CPython calls a function, changes the frame to this Python function.
    fn unwrap_trampoline(&mut self) {
        if self.origin == CodeOrigin::Interpreter && self.text.starts_with(TRAMPOLINE) {
            self.origin = CodeOrigin::Python;
        }
    }
}

/// Returns, for each name in `stack`, whether to show it. `stack` is sorted from root to leaf. If `stack` contains no
/// Python function, its trampolines are changed to Python functions.
pub(super) fn fold(stack: &mut [StackName<'_>]) -> Vec<bool> {
    if !stack.iter().any(|name| name.origin == CodeOrigin::Python) {
        stack.iter_mut().for_each(StackName::unwrap_trampoline);
    }
    let stack = &*stack;
    let in_python = stack.iter().any(|name| name.origin == CodeOrigin::Python);
    let is_ours = |name: &StackName<'_>| match name.origin {
        CodeOrigin::Vendor => false,
        CodeOrigin::Interpreter => !in_python,
        _ => true,
    };
    let is_informative = |name: &StackName<'_>| name.is_label || is_ours(name) && name.glue != Glue::Always;
    let mut shown: Vec<bool> = stack.iter().map(is_informative).collect();
    hide_in_operators(stack, &mut shown);
    hide_around_operators(stack, &mut shown);
    let call_at = stack.iter().rposition(|name| !name.is_label).map_or(0, |last| last + 1);
    let api = stack.get(call_at).map_or("", |label| label.text);
    let call = (0..call_at).rev().take_while(|&at| !shown[at] || is_part_of_call(&stack[at], api)).last();
    let mut call = call.unwrap_or(call_at);
    let start = start_code(&stack[..call], in_python);
    // If all frames are glue (see `glue`), the innermost glue frame is shown, and is not treated as a part of the call.
    if !(start..call).any(|at| shown[at])
        && let Some(innermost) = (start..call_at).rev().find(|at| stack[*at].glue != Glue::Never)
    {
        shown[innermost] = true;
        call = call.max(innermost + 1);
    }
    show_operators_once(stack, &mut shown);
    if (start..call).any(|at| shown[at]) {
        shown[..start].fill(false);
        shown[call..call_at].fill(false);
    }
    shown
}

/// Returns the number of names at the root of `stack` that are start code of the program or thread.
pub(super) fn entry(stack: &[StackName<'_>]) -> usize {
    let code = &stack[..stack.iter().rposition(|name| !name.is_label).map_or(0, |last| last + 1)];
    start_code(code, stack.iter().any(|name| name.origin == CodeOrigin::Python))
}

/// Whether a frame directly around the API call belongs to the implementation of the call. Four kinds of frames belong
/// to the implementation of the call:
/// - functions of a statically linked CUDA runtime, with names like `libcudart_static_…` and `__cudart804`;
/// - C++ wrappers that have the name of the API function;
/// - the host function that launches a kernel and has the kernel's name;
/// - the callback of gpuflame.
fn is_part_of_call(name: &StackName<'_>, api: &str) -> bool {
    let bare = name.text.trim_start_matches('_');
    let is_api = bare.strip_prefix(api).is_some_and(|rest| {
        rest.starts_with('<') || VENDORS.iter().any(|vendor| vendor.versions.contains(&rest))
    });
    name.is_kernel
        || (!api.is_empty() && is_api)
        || VENDORS.iter().flat_map(|vendor| vendor.functions).any(|inner| name.text.starts_with(inner))
}

/// Hides the native functions that implement an operator. If the operator calls a Python function, all functions that
/// this Python function calls are shown again.
fn hide_in_operators(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut is_inside = false;
    for (name, shown) in stack.iter().zip(shown).filter(|(_, shown)| **shown) {
        *shown = !is_inside || name.glue != Glue::InOperator;
        is_inside = name.origin != CodeOrigin::Python && (is_inside || name.traits.is_operator);
    }
}

/// Hides functions whose only effect is to call an operator of the same name.
fn hide_around_operators(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut next = "";
    for (name, shown) in stack.iter().zip(shown).rev().filter(|(_, shown)| **shown) {
        *shown = name.glue != Glue::AroundOperator || !is_name_of(name.text, next);
        next = if *shown { name.text } else { next };
    }
}

/// If an operator's frame directly calls a frame of the same operator, hides the outer frame. Both frames then belong
/// to one call of the operator, which passes PyTorch's dispatcher twice. An operator's implementation may also call the
/// operator again, as `aten::copy_` does to convert a type. If an operator's implementation calls the operator again,
/// the frames of both calls are shown. In the second case, a frame of the operator's implementation is between the two
/// frames. This frame distinguishes the two cases even if it is hidden.
fn show_operators_once(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut last = None;
    for (name, shown) in stack.iter().zip(shown) {
        if *shown {
            let operator = name.traits.is_operator.then_some(name.text);
            *shown = operator.is_none() || operator != last;
            last = operator;
        } else if name.glue == Glue::InOperator {
            last = None;
        }
    }
}

/// Returns the number of frames at the root of a stack that are start code of the program or thread.
fn start_code(stack: &[StackName<'_>], in_python: bool) -> usize {
    let marker = stack.iter().position(|name| name.traits.is_rust_marker);
    let is_start = |name: &StackName<'_>| match name.origin {
        CodeOrigin::Runtime => true,
        CodeOrigin::Interpreter => in_python,
        CodeOrigin::Python => false,
        _ if marker.is_some() => name.traits.is_rust_start,
        _ => name.traits.is_start,
    };
    // In a stripped program, the function `_start` has no name. A nameless `_start` is recognized as an unnamed root
    // frame that calls a function of the start code.
    let nameless_entry = matches!(stack, [entry, next, ..] if is_start(next) && entry.text.contains("+0x"));
    let begin = marker.map_or(usize::from(nameless_entry), |at| at + 1);
    begin + stack[begin..].iter().take_while(|name| is_start(name)).count()
}

fn is_start(name: &str, in_rust: bool) -> bool {
    const NAMES: [&str; 8] = [
        "_start",
        "_dl_start_user",
        "clone",
        "__clone",
        "clone3",
        "__clone3",
        "start_thread",
        "execute_native_thread_routine",
    ];
    // C library functions at the root, and functions around the function that was passed to std::thread.
    const PREFIXES: [&str; 5] = [
        "__libc_start_",
        "std::thread::_State_impl<",
        "std::thread::_Invoker<",
        "std::__invoke",
        "std::invoke",
    ];
    NAMES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        // If the function `call_once` was inlined, its name in the debug information has no path.
        || (in_rust && (name.contains("FnOnce") && name.contains("call_once") || name.starts_with("call_once<")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folds the stack of a test, and returns the names that are shown. The last name in the text is the label of the
    /// API call. A prefix in the text states the kind of a name, as in `cuda!name`, `libc!name`, `python!name`,
    /// `py!name`, `glue!name`, `in!name`, `around!name` and `kernel!name`.
    fn shown(stack: &str) -> String {
        let last = stack.split(';').count() - 1;
        let names: Vec<StackName<'_>> = stack
            .split(';')
            .enumerate()
            .map(|(at, name)| {
                let (from, text) = name.split_once('!').unwrap_or(("", name));
                let origin = match from {
                    "cuda" => CodeOrigin::Vendor,
                    "libc" => CodeOrigin::Runtime,
                    "python" => CodeOrigin::Interpreter,
                    "py" | "around" => CodeOrigin::Python,
                    _ => CodeOrigin::Code,
                };
                let glue = match from {
                    "glue" => Glue::Always,
                    "in" => Glue::InOperator,
                    "around" => Glue::AroundOperator,
                    _ => Glue::Never,
                };
                let (is_label, is_kernel) = (at == last, from == "kernel");
                StackName { text, traits: NameTraits::new(text), origin, is_label, is_kernel, glue }
            })
            .collect();
        let shown = fold(&mut names.clone());
        let texts: Vec<_> =
            names.iter().zip(shown).filter(|(_, shown)| *shown).map(|(n, _)| n.text).collect();
        texts.join(";")
    }

    #[test]
    fn nvcc_stubs_are_folded_into_the_launch_call() {
        let inner = "kernel!add(float*);__device_stub__Z3addPf;__cudaLaunchKernel_helper";
        assert_eq!(shown(&format!("main;decode;{inner};cudaLaunchKernel")), "main;decode;cudaLaunchKernel");
    }

    #[test]
    fn libraries_are_classified_by_their_file_names() {
        for (path, origin) in [
            ("/usr/lib/libcuda.so.1", CodeOrigin::Vendor),
            ("/x/libcudart.so.12", CodeOrigin::Vendor),
            ("/x/libcudart-d0da41ae.so.11.0", CodeOrigin::Vendor),
            ("libcupti.so.13", CodeOrigin::Vendor),
            ("/x/target/debug/libgpuflame.so", CodeOrigin::Vendor),
            ("/x/libcudadebugger.so.1", CodeOrigin::Code),
            ("/x/libcublas.so.12", CodeOrigin::Code),
            ("/lib/x86_64-linux-gnu/libc.so.6", CodeOrigin::Runtime),
            ("/lib/libc-2.31.so", CodeOrigin::Runtime),
            ("/lib64/ld-linux-x86-64.so.2", CodeOrigin::Runtime),
            ("/lib/libcrypto.so", CodeOrigin::Code),
            ("/usr/bin/python3.11", CodeOrigin::Interpreter),
            ("/usr/bin/python3.14td", CodeOrigin::Interpreter),
            ("/usr/bin/python3-build", CodeOrigin::Code),
            ("/opt/conda/bin/python", CodeOrigin::Interpreter),
            ("/usr/lib/libpython3.12.so.1.0", CodeOrigin::Interpreter),
            ("/x/_ctypes.cpython-311-x86_64-linux-gnu.so", CodeOrigin::Interpreter),
            ("/lib/libffi.so.8", CodeOrigin::Interpreter),
            ("/x/libtorch_python.so", CodeOrigin::Code),
            ("/x/python_app", CodeOrigin::Code),
            ("", CodeOrigin::Code),
        ] {
            assert_eq!(CodeOrigin::from_path(Path::new(path)), origin, "{path}");
        }
    }

    #[test]
    fn a_c_stack_starts_at_main_and_ends_with_the_api_call() {
        let stack = "_start;libc!__libc_start_main;libc!libc.so.6+0x27249;main;decode;cuda!cudaLaunchKernel;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;decode;cudaLaunchKernel");
        let stripped = "app+0x1070;libc!libc.so.6+0x27249;app+0x1234;cudaLaunchKernel";
        assert_eq!(shown(stripped), "app+0x1234;cudaLaunchKernel");
    }

    #[test]
    fn c_runtime_frames_inside_a_stack_stay_but_cuda_frames_are_removed() {
        let stack = "main;libc!qsort;compare;cuda!cuFoo;cuda!libcuda.so.1+0x12;callback;cuMemcpyAsync";
        assert_eq!(shown(stack), "main;qsort;compare;callback;cuMemcpyAsync");
    }

    #[test]
    fn a_statically_linked_runtime_does_not_name_the_call_twice() {
        let stack = "main;run;cudaLaunchKernel;libcudart_static_38e3d;__cudart804;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;run;cudaLaunchKernel");
        assert_eq!(shown("main;__cudaLaunchKernel_ptsz;cudaLaunchKernel"), "main;cudaLaunchKernel");
        assert_eq!(shown("main;cudaLaunchKernel<char>;cuda!x;cudaLaunchKernel"), "main;cudaLaunchKernel");
        assert_eq!(
            shown("main;cudaLaunchKernelOften;cudaLaunchKernel"),
            "main;cudaLaunchKernelOften;cudaLaunchKernel"
        );
    }

    #[test]
    fn a_kernels_host_stub_is_folded_into_the_launch_call() {
        let stack =
            "main;forward;kernel!matmul;__device_stub__Z6matmulPf;cudaLaunchKernel<char>;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;forward;cudaLaunchKernel");
        assert_eq!(
            shown("main;kernel!matmul;helper;cudaLaunchKernel"),
            "main;matmul;helper;cudaLaunchKernel"
        );
    }

    #[test]
    fn a_rust_stack_starts_after_the_short_backtrace_marker() {
        let main = "_start;libc!x;main;std::rt::lang_start_internal;std::rt::lang_start::{{closure}};\
            std::sys::backtrace::__rust_begin_short_backtrace::<fn(), ()>;\
            <fn() as core::ops::function::FnOnce<()>>::call_once;demo::main;demo::run;cuLaunchKernel";
        assert_eq!(shown(main), "demo::main;demo::run;cuLaunchKernel");
        let inlined =
            "std::sys::backtrace::__rust_begin_short_backtrace;call_once<fn(), ()>;demo::main;cuLaunchKernel";
        assert_eq!(shown(inlined), "demo::main;cuLaunchKernel");
        let thread = "libc!clone3;libc!start_thread;std::sys::thread::unix::Thread::new::thread_start;\
            <Box as FnOnce>::call_once;std::thread::Builder::spawn_unchecked_::{{closure}};\
            std::sys::backtrace::__rust_begin_short_backtrace;demo::worker::{{closure}};cuLaunchKernel";
        assert_eq!(shown(thread), "demo::worker::{{closure}};cuLaunchKernel");
    }

    #[test]
    fn interpreter_frames_are_hidden_only_if_python_frames_are_present() {
        let stack = "_start;libc!__libc_start_main;python!main;python!Py_RunMain;py!<module> (a.py:1);python!method_vectorcall;\
            py!step (a.py:2);python!cfunction_call;native;cudaLaunchKernel";
        assert_eq!(shown(stack), "<module> (a.py:1);step (a.py:2);native;cudaLaunchKernel");
        let thread = "libc!clone3;libc!start_thread;python!thread_run;py!run (threading.py:1);libc!qsort;python!x;cuInit";
        assert_eq!(shown(thread), "run (threading.py:1);qsort;cuInit");
        let without =
            "_start;libc!__libc_start_main;python!main;python!cfunction_call;native;cudaLaunchKernel";
        assert_eq!(shown(without), "main;cfunction_call;native;cudaLaunchKernel");
    }

    #[test]
    fn perf_trampolines_represent_python_functions_without_python_frames() {
        let stack = "libc!__libc_start_main;python!Py_RunMain;python!py::<module>:/a.py;python!_PyEval_EvalFrameDefault;\
            python!py::nap:/a.py;python!time_sleep;libc!clock_nanosleep;";
        assert_eq!(shown(stack), "py::<module>:/a.py;py::nap:/a.py;clock_nanosleep;");
        let both = "python!Py_RunMain;python!py::nap:/a.py;py!nap (a.py:1);python!call;cuInit";
        assert_eq!(shown(both), "nap (a.py:1);cuInit");
    }

    #[test]
    fn glue_is_hidden_unless_the_stack_has_no_other_frames() {
        let stack = "main;glue!dispatch;aten::linear;glue!wrap;impl;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;aten::linear;impl;cudaLaunchKernel");
        assert_eq!(shown("_start;glue!outer;glue!inner;cudaLaunchKernel"), "inner;cudaLaunchKernel");
    }

    #[test]
    fn operator_internals_are_hidden_only_inside_an_operator() {
        let stack = "main;aten::linear;in!linear;aten::addmm;in!addmm;in!gemm;blas;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;aten::linear;aten::addmm;blas;cudaLaunchKernel");
        assert_eq!(shown("main;in!addmm;blas;cudaLaunchKernel"), "main;addmm;blas;cudaLaunchKernel");
        // Python code that an operator calls is user code, so all functions that the Python code calls are shown.
        let called_back = "main;aten::linear;in!linear;python!x;py!forward (a.py:1);in!gemm;cudaLaunchKernel";
        assert_eq!(shown(called_back), "main;aten::linear;forward (a.py:1);gemm;cudaLaunchKernel");
        // An operator that calls itself is shown twice, even if the frames of the operator's implementation are hidden.
        let again = "main;aten::copy_;glue!wrap;aten::copy_;in!copy_impl;aten::copy_;in!copy;cudaMemcpyAsync";
        assert_eq!(shown(again), "main;aten::copy_;aten::copy_;cudaMemcpyAsync");
        assert_eq!(shown("_start;in!outer;in!inner;cudaLaunchKernel"), "outer;inner;cudaLaunchKernel");
    }

    #[test]
    fn a_wrapper_directly_around_the_operator_of_its_name_is_hidden() {
        let to = |operator: &str| {
            shown(&format!(
                "py!f (a.py:1);around!relu (functional.py:9);python!x;glue!y;{operator};cudaLaunchKernel"
            ))
        };
        assert_eq!(to("aten::relu_"), "f (a.py:1);aten::relu_;cudaLaunchKernel");
        assert_eq!(to("aten::clamp"), "f (a.py:1);relu (functional.py:9);aten::clamp;cudaLaunchKernel");
        assert_eq!(
            to("py!g (b.py:1);aten::relu"),
            "f (a.py:1);relu (functional.py:9);g (b.py:1);aten::relu;cudaLaunchKernel"
        );
        assert_eq!(to("python!z"), "f (a.py:1);relu (functional.py:9);cudaLaunchKernel");
        // If the stack has no other frames, only the operator is shown.
        assert_eq!(
            shown("around!relu (functional.py:9);aten::relu;cudaLaunchKernel"),
            "aten::relu;cudaLaunchKernel"
        );
    }

    #[test]
    fn a_redispatched_operator_is_shown_once_but_recursion_is_kept() {
        let stack = "main;aten::linear;glue!wrap;aten::linear;impl;aten::linear;step;step;cudaLaunchKernel";
        assert_eq!(shown(stack), "main;aten::linear;impl;aten::linear;step;step;cudaLaunchKernel");
    }

    #[test]
    fn a_cpp_thread_starts_at_its_thread_function() {
        let stack = "libc!clone3;libc!libc.so.6+0x1;libc!libstdc++.so.6+0x2;\
            std::thread::_State_impl<std::thread::_Invoker<X> >::_M_run;std::__invoke_impl<void>;worker;cudaMemcpy";
        assert_eq!(shown(stack), "worker;cudaMemcpy");
    }

    #[test]
    fn a_stack_is_not_folded_to_nothing() {
        assert_eq!(
            shown("_start;cudaLaunchKernel;cudaLaunchKernel"),
            "_start;cudaLaunchKernel;cudaLaunchKernel"
        );
        assert_eq!(shown("cudaLaunchKernel"), "cudaLaunchKernel");
        assert_eq!(shown("cuda!a;cudaLaunchKernel"), "cudaLaunchKernel");
    }
}
