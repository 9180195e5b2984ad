//! Selects the frames of a stack that readers want to see.
//!
//! Between the user's code and the API call are frames of CUDA's libraries and of compiler stubs, and below `main` is the
//! start code of the C and Rust runtimes. These frames are folded away, so that a stack reads
//! `main;decode;forward;cudaLaunchKernel`, unless no frame would be left. In stacks with Python functions the interpreter's
//! own frames are folded as well, and in all stacks the frames listed in `glue`. If a stack has no Python functions but the
//! trampolines of such functions (`-X perf`), as in samples, the trampolines are shown in place of the functions.

use std::path::Path;

use super::glue::{Glue, OPERATOR_PREFIX, is_name_of};
use super::vendor::VENDORS;

/// Origin of a frame, which the name of its module's file determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeOrigin {
    /// User code, and all libraries other than those of the next variants.
    Code,
    /// Libraries of a vendor, and gpuflame's own library (see `vendor`).
    Vendor,
    /// The C and C++ runtimes, whose frames are start code at the root.
    Runtime,
    /// CPython, and the libraries through which CPython calls C functions.
    Interpreter,
    /// A function of a Python program, which is in no module.
    Python,
}

impl CodeOrigin {
    /// Origin of a function without a file, which its name determines.
    pub(super) fn from_generated(function: &str) -> Self {
        if function.starts_with(TRAMPOLINE) { Self::Interpreter } else { Self::Code }
    }

    pub(super) fn from_path(path: &Path) -> Self {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        // Any suffix of the file name is allowed: `libcuda.so.1`, `libcudart.so.12`, `libcudart-d0da41ae.so.11.0`.
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

/// Prefix of the names that CPython gives to trampolines, through which it calls functions under `-X perf`:
/// `py::forward:/srv/model.py`.
const TRAMPOLINE: &str = "py::";

/// Whether a file belongs to CPython, such as `python3.11`, `python3.14d` (a debug build), `libpython3.11.so.1.0`,
/// `_ctypes.cpython-311-x86_64-linux-gnu.so` or `libffi.so.8`.
fn is_interpreter(file: &str) -> bool {
    // The letters after the version mark debug builds and builds without the GIL.
    let is_version = |rest: &str| {
        rest.trim_end_matches(['d', 't']).bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    let is_library = |stem: &str| file.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.'));
    file.starts_with("libpython")
        || file.strip_prefix("python").is_some_and(is_version)
        || ["_ctypes", "libffi"].into_iter().any(is_library)
}

/// A name in a stack that is about to be folded.
#[derive(Clone, Copy, Debug)]
pub(super) struct StackName<'a> {
    /// Text of the name as displayed.
    pub(super) text: &'a str,
    pub(super) origin: CodeOrigin,
    /// Whether the name is the API call or another label, and not code.
    pub(super) is_label: bool,
    /// Whether the name has the symbol of a kernel. Then it is the compiler-generated function that launches the kernel.
    pub(super) is_kernel: bool,
    /// Condition under which the frame tells readers nothing.
    pub(super) glue: Glue,
}

impl StackName<'_> {
    /// Treats a trampoline, through which Python calls a function, as the function itself.
    fn unwrap_trampoline(mut self) -> Self {
        if self.origin == CodeOrigin::Interpreter && self.text.starts_with(TRAMPOLINE) {
            self.origin = CodeOrigin::Python;
        }
        self
    }
}

/// For each name of `stack`, root first, whether the name is shown.
pub(super) fn fold(stack: &[StackName<'_>]) -> Vec<bool> {
    let has_functions = stack.iter().any(|name| name.origin == CodeOrigin::Python);
    let stack = stack.iter().map(|name| if has_functions { *name } else { name.unwrap_trampoline() });
    let stack = &stack.collect::<Vec<_>>()[..];
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
    // If there is only glue, the innermost frame is shown, because it would otherwise count as a part of the call.
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

/// Number of names that are start code of the program or of the thread, from the root.
pub(super) fn entry(stack: &[StackName<'_>]) -> usize {
    let code = &stack[..stack.iter().rposition(|name| !name.is_label).map_or(0, |last| last + 1)];
    start_code(code, stack.iter().any(|name| name.origin == CodeOrigin::Python))
}

/// Whether a frame just outside the label, which is the frame that names the API call, is merely a part of the call.
/// Such frames are the call itself if CUDA's runtime is linked statically (its inner functions have names like
/// `libcudart_static_…` and `__cudart804`), C++ wrappers of the same name, the host side of a kernel, and our own
/// callback.
fn is_part_of_call(name: &StackName<'_>, api: &str) -> bool {
    let bare = name.text.trim_start_matches('_');
    let is_api = bare.strip_prefix(api).is_some_and(|rest| {
        rest.starts_with('<') || VENDORS.iter().any(|vendor| vendor.versions.contains(&rest))
    });
    name.is_kernel
        || (!api.is_empty() && is_api)
        || VENDORS.iter().flat_map(|vendor| vendor.functions).any(|inner| name.text.starts_with(inner))
}

/// Hides the implementation of operators, up to the next Python function, because operators may call Python.
fn hide_in_operators(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut is_inside = false;
    for (name, shown) in stack.iter().zip(shown).filter(|(_, shown)| **shown) {
        *shown = !is_inside || name.glue != Glue::InOperator;
        is_inside =
            name.origin != CodeOrigin::Python && (is_inside || name.text.starts_with(OPERATOR_PREFIX));
    }
}

/// Hides functions that lead to an operator of the same name.
fn hide_around_operators(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut next = "";
    for (name, shown) in stack.iter().zip(shown).rev().filter(|(_, shown)| **shown) {
        *shown = name.glue != Glue::AroundOperator || !is_name_of(name.text, next);
        next = if *shown { name.text } else { next };
    }
}

/// Hides an operator directly around the same operator, because both are one call on its way through the dispatcher. If an
/// operator's implementation calls the operator again, as `aten::copy_` does to convert, the implementation's frame is
/// between the two, whether it is shown or not.
fn show_operators_once(stack: &[StackName<'_>], shown: &mut [bool]) {
    let mut last = "";
    for (name, shown) in stack.iter().zip(shown) {
        if *shown {
            *shown = name.text != last || !last.starts_with(OPERATOR_PREFIX);
            last = name.text;
        } else if name.glue == Glue::InOperator {
            last = "";
        }
    }
}

/// Number of start code frames at the root.
fn start_code(stack: &[StackName<'_>], in_python: bool) -> usize {
    // Rust marks the end of its start code with this function, both for `main` and for threads.
    let marker = stack.iter().position(|name| name.text.contains("::__rust_begin_short_backtrace"));
    let is_start = |name: &StackName<'_>| match name.origin {
        CodeOrigin::Runtime => true,
        CodeOrigin::Interpreter => in_python,
        CodeOrigin::Python => false,
        _ => is_start(name.text, marker.is_some()),
    };
    // `_start` has no name in a stripped program. The function that `_start` calls has a name, or is recognized by its
    // file.
    let nameless_entry = matches!(stack, [entry, next, ..] if entry.text.contains("+0x") && is_start(next));
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
    // These are functions of std::thread between pthread_create and the function that was passed to std::thread.
    const PREFIXES: [&str; 5] = [
        "__libc_start_",
        "std::thread::_State_impl<",
        "std::thread::_Invoker<",
        "std::__invoke",
        "std::invoke",
    ];
    NAMES.contains(&name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        // If this function was inlined, DWARF names it without its path.
        || (in_rust && (name.contains("FnOnce") && name.contains("call_once") || name.starts_with("call_once<")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folds a test stack. The last name is the label. The prefixes in `cuda!name`, `libc!name`, `python!name`, `py!name`,
    /// `glue!name`, `in!name`, `around!name` and `kernel!name` give the kind of a name.
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
                StackName { text, origin, is_label: at == last, is_kernel: from == "kernel", glue }
            })
            .collect();
        let shown = fold(&names);
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
        // Python code that an operator calls is user code, and may call any function.
        let called_back = "main;aten::linear;in!linear;python!x;py!forward (a.py:1);in!gemm;cudaLaunchKernel";
        assert_eq!(shown(called_back), "main;aten::linear;forward (a.py:1);gemm;cudaLaunchKernel");
        // An operator that calls itself is shown twice, even if its implementation is hidden.
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
        // If there are no other frames, only the operator is left to show.
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
