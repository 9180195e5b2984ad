//! Recognizes glue frames, which are hidden. A glue frame is between user code and the code that the user code calls,
//! and does not help to understand either of them. Each kind of glue frame has an entry in a table of this module.
//!
//! In stacks of PyTorch, the language binding, the dispatcher and the dispatcher's wrappers are between a Python
//! function and the operator that it calls. Each pass through the dispatcher repeats the operator's frame. The frames
//! of the binding, the dispatcher and its wrappers are hidden. Each operator is displayed under one name, such as
//! `aten::linear`. Each node of the backward pass is displayed under a name such as `AddmmBackward0`. Between two
//! Python functions, there are library functions that only call a function that was passed to them. Examples are module
//! hooks and decorators. The interpreter's frames are not in these tables, because they are recognized by their file
//! (see `fold::CodeOrigin`).

use std::path::Path;

/// Condition under which a frame is glue and is therefore hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Glue {
    /// The frame is never glue.
    #[default]
    Never,
    Always,
    /// The frame is glue if it is inside an operator. A frame inside an operator is a part of the operator's
    /// implementation.
    InOperator,
    /// The frame is glue if it is directly around an operator of the same name.
    AroundOperator,
}

/// A rule for native functions. The functions are selected by prefixes of their names, and by a prefix of the name of
/// the file that contains them. An empty prefix matches any file.
struct NativeRule {
    glue: Glue,
    file: &'static str,
    functions: &'static [&'static str],
}

const NATIVE_RULES: [NativeRule; 5] = [
    // Libraries that make C++ functions callable from Python.
    NativeRule { glue: Glue::Always, file: "", functions: &["pybind11::", "void pybind11::", "nanobind::"] },
    NativeRule {
        glue: Glue::Always,
        file: "libtorch_python",
        functions: &[
            "torch::autograd::THPVariable_",
            "torch::autograd::TypeError_to_NotImplemented_",
            "torch::autograd::dispatch_",
            "torch::handle_torch_function",
            "dynamo_",
        ],
    },
    // PyTorch's dispatcher and its wrappers around the implementations of operators.
    NativeRule {
        glue: Glue::Always,
        file: "libtorch",
        functions: &[
            "c10::impl::",
            "c10::detail::",
            "c10::Dispatcher::",
            "c10::KernelFunction::",
            "c10::BoxedKernel::",
            "c10::OperatorHandle::",
            "c10::TypedOperatorHandle<",
            "c10::guts::",
            "c10::callUnboxedKernelFunction<",
            "at::_ops::",
            "at::redispatch::",
            "at::(anonymous namespace)::(anonymous namespace)::wrapper_",
            "at::(anonymous namespace)::wrapper_",
            "torch::autograd::VariableType::(anonymous namespace)::",
            "torch::ADInplaceOrView::(anonymous namespace)::",
            "torch::autograd::autogradNotImplementedFallbackImpl",
            "at::autocast::WrapFunction_<",
        ],
    },
    // Functions of autograd's engine, and functions that compute a backward node for the engine. The function
    // `Engine::thread_main`, which is at the root of the engine's threads, is not in the list.
    NativeRule {
        glue: Glue::Always,
        file: "libtorch",
        functions: &[
            "torch::autograd::Engine::evaluate_function",
            "torch::autograd::Engine::execute",
            "torch::autograd::Engine::thread_init",
            "torch::autograd::Engine::reentrant_thread_init",
            "torch::autograd::python::PythonEngine::",
            "torch::autograd::Node::operator()",
        ],
    },
    // Functions that implement PyTorch's operators. The operators and libraries that an implementing function calls
    // have frames of their own.
    NativeRule { glue: Glue::InOperator, file: "libtorch", functions: &["at::native::"] },
];

/// A rule for Python functions in one file of a package, such as `torch/_ops.py`. The functions are selected by
/// prefixes of their names. An empty prefix matches all functions.
struct PythonRule {
    glue: Glue,
    file: &'static str,
    functions: &'static [&'static str],
}

const PYTHON_RULES: [PythonRule; 11] = [
    // Functions that call a module (an `nn.Module`). The module's own function `forward` shows which module it is.
    PythonRule {
        glue: Glue::Always,
        file: "torch/nn/modules/module.py",
        functions: &["Module._wrapped_call_impl", "Module._call_impl"],
    },
    // `@torch.no_grad()` and similar decorators.
    PythonRule { glue: Glue::Always, file: "torch/utils/_contextlib.py", functions: &[""] },
    PythonRule {
        glue: Glue::Always,
        file: "torch/_ops.py",
        functions: &["OpOverload.__call__", "OpOverloadPacket.__call__", "HigherOrderOperator.__call__"],
    },
    // Hooks around `Optimizer.step`, and the wrapper that disables gradients inside it.
    PythonRule {
        glue: Glue::Always,
        file: "torch/optim/optimizer.py",
        functions: &[
            "Optimizer.profile_hook_step.<locals>.wrapper",
            "_use_grad_for_differentiable.<locals>._use_grad",
        ],
    },
    PythonRule {
        glue: Glue::Always,
        file: "torch/optim/lr_scheduler.py",
        functions: &[
            "LRScheduler.__init__.<locals>.patch_track_step_called.<locals>.wrap_step.<locals>.wrapper",
        ],
    },
    PythonRule { glue: Glue::Always, file: "torch/autograd/graph.py", functions: &["_engine_run_backward"] },
    // Functions whose only effect is to call an operator of the same name. For example, `layer_norm` is hidden if it is
    // directly around `aten::layer_norm`. Functions that call several operators, or an operator with another name, are
    // shown. The next row of the table hides the function that chooses between two variants of an operator, such as
    // `_max_pool2d` with or without indices.
    PythonRule { glue: Glue::AroundOperator, file: "torch/nn/functional.py", functions: &[""] },
    PythonRule {
        glue: Glue::Always,
        file: "torch/_jit_internal.py",
        functions: &["boolean_dispatch.<locals>.fn"],
    },
    // Functions of torch.compile that wrap a compiled function.
    PythonRule { glue: Glue::Always, file: "torch/_dynamo/eval_frame.py", functions: &[""] },
    PythonRule {
        glue: Glue::Always,
        file: "torch/_functorch/_aot_autograd/runtime_wrappers.py",
        functions: &[""],
    },
    PythonRule { glue: Glue::Always, file: "torch/_functorch/_aot_autograd/utils.py", functions: &[""] },
];

/// Returns the condition under which a Python function is glue. `file` is the absolute path of the function's source
/// file. `libraries` are the paths of the mapped ELF files.
pub(super) fn python_glue<'a>(
    file: &str,
    function: &str,
    libraries: impl IntoIterator<Item = &'a Path>,
) -> Glue {
    // Before Python 3.11, only the last part of a function's qualified name is known.
    let is = |begin: &&str| function.starts_with(begin) || begin.rsplit('.').next() == Some(function);
    let row = PYTHON_RULES.iter().find(|row| file.ends_with(row.file) && row.functions.iter().any(is));
    row.filter(|row| is_of_package(file, row.file, libraries)).map_or(Glue::Never, |row| row.glue)
}

/// Whether `path` is the file `file` of the installed package, and not a user's file with the same name. A file of the
/// package is in a folder where packages are installed. If PyTorch is used from its build folder, the package's file is
/// near mapped libraries of the package.
fn is_of_package<'a>(path: &str, file: &str, libraries: impl IntoIterator<Item = &'a Path>) -> bool {
    let Some(around) = path.strip_suffix(file).filter(|around| around.ends_with('/')) else { return false };
    let is_installed = ["/site-packages/", "/dist-packages/"].iter().any(|folder| around.ends_with(folder));
    // The conversion replaces non-UTF-8 parts of both paths in the same way, so the results can be compared.
    let is_beside = |library: &Path| {
        library.to_string_lossy().strip_prefix(around).is_some_and(|rest| rest.starts_with(LIBRARIES))
    };
    is_installed || libraries.into_iter().any(is_beside)
}

/// Folder of PyTorch's libraries inside the package, followed by the common prefix of their file names.
const LIBRARIES: &str = "torch/lib/libtorch";

/// Returns a shorter name for a PyTorch function: `aten::linear` for `at::_ops::linear::call`, `AddmmBackward0` for
/// `torch::autograd::generated::AddmmBackward0::apply`.
pub(super) fn short_name(function: &str) -> Option<String> {
    let operator = operator(function).map(|operator| format!("{OPERATOR_PREFIX}{operator}"));
    operator.or_else(|| node(function).map(str::to_owned))
}

/// Returns the name of the node of the backward pass that a function computes. Returns `None` if the function computes
/// no node.
fn node(function: &str) -> Option<&str> {
    let path = function.strip_prefix("torch::autograd::")?;
    let (node, way) = path.strip_prefix("generated::").unwrap_or(path).split_once("::")?;
    (way == "apply").then_some(node)
}

/// Returns the condition under which a native function is glue. `file` is the name of the function's file, without
/// folders.
pub(super) fn glue(file: &str, function: &str) -> Glue {
    let is_it = |row: &&NativeRule| {
        file.starts_with(row.file) && row.functions.iter().any(|begin| function.starts_with(begin))
    };
    // Helper functions around the computation of a backward node.
    let is_of_node = file.starts_with("libtorch")
        && function.starts_with("torch::autograd::generated::")
        && function.ends_with("_apply_functional");
    match operator(function) {
        Some(_) => Glue::Never,
        None if is_of_node => Glue::Always,
        None => NATIVE_RULES.iter().find(is_it).map_or(Glue::Never, |row| row.glue),
    }
}

/// Returns the name of the operator that a PyTorch function calls through the dispatcher: `linear` for
/// `at::_ops::linear::call`.
fn operator(function: &str) -> Option<&str> {
    let (operator, way) = function.strip_prefix("at::_ops::")?.split_once("::")?;
    matches!(way, "call" | "redispatch").then_some(operator)
}

/// Whether the name of a Python frame is also the name of the operator that it calls. Examples are `layer_norm
/// (functional.py:12)` with `aten::layer_norm`, `relu` with `aten::relu_`, and `_max_pool2d` with `aten::max_pool2d`.
pub(super) fn is_name_of(python: &str, operator: &str) -> bool {
    let function = python.split(" (").next().unwrap_or(python).trim_start_matches('_');
    let own = operator.strip_prefix(OPERATOR_PREFIX).and_then(|operator| operator.strip_prefix(function));
    !function.is_empty() && own.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Prefix of the displayed names of operators.
pub(super) const OPERATOR_PREFIX: &str = "aten::";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_named_by_its_struct_for_call_and_redispatch() {
        assert_eq!(operator("at::_ops::linear::call"), Some("linear"));
        assert_eq!(operator("at::_ops::add__Tensor::redispatch"), Some("add__Tensor"));
        for other in
            ["at::_ops::linear::create_linear_typed_handle", "at::native::linear", "at::_ops::linear", ""]
        {
            assert_eq!(operator(other), None, "{other}");
        }
    }

    #[test]
    fn a_node_of_the_backward_pass_is_named_by_its_struct() {
        let name = |function| short_name(function).unwrap_or_default();
        assert_eq!(name("torch::autograd::generated::AddmmBackward0::apply"), "AddmmBackward0");
        assert_eq!(name("torch::autograd::AccumulateGrad::apply"), "AccumulateGrad");
        assert_eq!(name("at::_ops::linear::call"), "aten::linear");
        for other in [
            "torch::autograd::generated::AddmmBackward0::apply_with_saved",
            "torch::autograd::generated::details::mm_mat1_grad",
            "torch::autograd::Engine::thread_main",
            "apply",
        ] {
            assert_eq!(short_name(other), None, "{other}");
        }
    }

    const PACKAGES: &str = "/opt/venv/lib/python3.11/site-packages";

    #[test]
    fn python_functions_that_only_dispatch_calls_are_glue() {
        let glue = |file: &str, function| python_glue(&format!("{PACKAGES}/torch/{file}"), function, []);
        let is_glue = |file, function| glue(file, function) == Glue::Always;
        let module = "nn/modules/module.py";
        assert!(is_glue(module, "Module._wrapped_call_impl") && is_glue(module, "Module._call_impl"));
        assert!(!is_glue(module, "Module._apply"), "this function visits all parameters");
        let context = "utils/_contextlib.py";
        assert!(is_glue(context, "inference_mode") && is_glue(context, "f.<locals>.decorate_context"));
        assert!(is_glue("_ops.py", "OpOverload.__call__"));
        assert!(is_glue(module, "_call_impl") && is_glue("_ops.py", "__call__"), "names before Python 3.11");
        assert!(!is_glue("nn/modules/linear.py", "Linear.forward"));
        assert_eq!(python_glue("", "", []), Glue::Never);
        assert_eq!(glue("nn/functional.py", "layer_norm"), Glue::AroundOperator);
        assert!(is_glue("_jit_internal.py", "boolean_dispatch.<locals>.fn"));
        assert_eq!(glue("_jit_internal.py", "get_callable_argument_names"), Glue::Never);
    }

    #[test]
    fn a_python_wrapper_is_matched_to_the_operator_of_its_name() {
        for (python, operator) in [
            ("layer_norm (functional.py:2972)", "aten::layer_norm"),
            ("relu (functional.py:1766)", "aten::relu_"),
            ("softmax (functional.py:1)", "aten::softmax_int"),
            ("cross_entropy (functional.py:1)", "aten::cross_entropy_loss"),
            ("_max_pool2d (functional.py:1)", "aten::max_pool2d"),
        ] {
            assert!(is_name_of(python, operator), "{python}");
        }
        for (python, operator) in [
            ("multi_head_attention_forward (functional.py:1)", "aten::linear"),
            ("dropout2d (functional.py:1)", "aten::feature_dropout"),
            ("relu (functional.py:1)", "aten::relu6"),
            ("normalize (functional.py:1)", "aten::norm"),
            ("layer_norm (functional.py:1)", "layer_norm"),
            ("_ (functional.py:1)", "aten::add"),
        ] {
            assert!(!is_name_of(python, operator), "{python}");
        }
    }

    #[test]
    fn a_users_file_named_like_a_library_file_is_not_glue() {
        let libraries = |folder: &'static str| {
            [format!("{folder}/torch/lib/libtorch_python.so"), "/usr/lib/libcuda.so.1".to_owned()]
        };
        // Each case consists of the folder of the Python file, the folder of PyTorch's libraries, and whether the
        // functions in the Python file are glue.
        for (folder, torch, is_glue) in [
            (PACKAGES, PACKAGES, true),
            ("/usr/lib/python3/dist-packages", "/usr/lib/x86_64-linux-gnu", true),
            // In the next test case, PyTorch was built in a checkout, or installed by `pip install --target`.
            ("/home/me/pytorch", "/home/me/pytorch", true),
            ("/home/me/pytorch", PACKAGES, false),
            // In the next test case, the folder `torch` belongs to the user.
            ("/srv/app", PACKAGES, false),
            ("/srv/app/compat", "/srv/app", false),
            ("/opt/venv/lib/python3.11/site-packages/models/compat", PACKAGES, false),
            ("/srv/my-site-packages", PACKAGES, false),
            ("", PACKAGES, false),
        ] {
            let libraries = libraries(torch);
            for (file, function) in [
                ("nn/modules/module.py", "Module._call_impl"),
                ("utils/_contextlib.py", "decorate_context"),
                ("_functorch/_aot_autograd/utils.py", "f"),
            ] {
                let path = format!("{folder}/torch/{file}");
                let libraries = libraries.iter().map(Path::new);
                assert_eq!(python_glue(&path, function, libraries) == Glue::Always, is_glue, "{path}");
            }
        }
        let stays = |path: &str, libraries: &[&'static str]| {
            let glue = python_glue(path, "__call__", libraries.iter().map(Path::new));
            assert_eq!(glue, Glue::Never, "{path}");
        };
        // The files below do not belong to the package. The names of these files only end like names in the package
        // (`mytorch`, `my_ops.py`), or only begin like them (`_ops.pyc`).
        for path in ["mytorch/_ops.py", "torch/my_ops.py", "torch/_ops.pyc"] {
            stays(&format!("{PACKAGES}/{path}"), &[]);
        }
        stays("torch/_ops.py", &[]);
        // A file that is next to a user's libraries does not belong to PyTorch.
        stays("/srv/app/torch/_ops.py", &["/srv/app/torch/_C.so", "/srv/app/torch/libtorch.so"]);
    }

    #[test]
    fn glue_is_recognized_by_its_function_and_file() {
        let is_glue = |file, function| glue(file, function) == Glue::Always;
        assert!(is_glue("libtorch_cpu.so", "c10::impl::wrap_kernel_functor_unboxed_<X>::call"));
        assert!(is_glue("libtorch_cpu.so", "at::_ops::linear::create_linear_typed_handle"));
        let cast = "at::autocast::WrapFunction_<0, 1, at::Tensor(at::Tensor const&), &at::_ops::linear::call(at::Tensor const&)>::call";
        assert!(is_glue("libtorch_cpu.so", cast));
        assert!(!is_glue("libtorch_cpu.so", "at::autocast::cached_cast"), "this function is the cast itself");
        assert!(is_glue("_C.cpython-311-x86_64-linux-gnu.so", "pybind11::cpp_function::dispatcher"));
        assert!(is_glue("libtorch_python.so", "dynamo__custom_eval_frame::{lambda()#1}::operator()"));
        assert!(is_glue("libtorch_cpu.so", "torch::autograd::Engine::evaluate_function"));
        assert!(
            !is_glue("libtorch_cpu.so", "torch::autograd::Engine::thread_main"),
            "the root of the engine's threads"
        );
        assert!(!is_glue("app", "c10::impl::mine"), "a function of the user");
        assert_eq!(glue("libtorch_cpu.so", "at::native::linear"), Glue::InOperator);
        assert_eq!(glue("app", "at::native::mine"), Glue::Never, "a function of the user");
        assert!(!is_glue("libtorch_cpu.so", "at::_ops::linear::call"));
    }
}
