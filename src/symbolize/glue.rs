//! Native frames that stand between what people write and what it calls, and say nothing of either: a row for each kind.
//!
//! Between a function of Python and an operator lie the binding, the dispatcher and its wrappers; operators come again on
//! each way through the dispatcher. They are folded away, and an operator has one name, `aten::linear`. What the
//! interpreter itself does between two functions of Python is known by its file (see `fold::Origin`).

/// Frames whose functions begin so, in a file that begins so (empty: any).
struct Glue {
    file: &'static str,
    functions: &'static [&'static str],
}

const GLUE: [Glue; 3] = [
    // What binds C++ to Python.
    Glue { file: "", functions: &["pybind11::", "void pybind11::", "nanobind::"] },
    Glue {
        file: "libtorch_python",
        functions: &[
            "torch::autograd::THPVariable_",
            "torch::autograd::TypeError_to_NotImplemented_",
            "torch::autograd::dispatch_",
            "torch::handle_torch_function",
            "dynamo_",
        ],
    },
    // PyTorch's dispatcher, and what it is given to call.
    Glue {
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
            "at::_ops::",
            "at::redispatch::",
            "at::(anonymous namespace)::(anonymous namespace)::wrapper_",
            "at::(anonymous namespace)::wrapper_",
            "torch::autograd::VariableType::(anonymous namespace)::",
            "torch::ADInplaceOrView::(anonymous namespace)::",
        ],
    },
];

/// Whether a function says nothing to who looks at a picture; `file` is the name of its file.
pub(super) fn is_glue(file: &str, function: &str) -> bool {
    let begins = |row: &Glue| {
        file.starts_with(row.file) && row.functions.iter().any(|begin| function.starts_with(begin))
    };
    operator(function).is_none() && GLUE.iter().any(begins)
}

/// The operator that a function of PyTorch calls through the dispatcher: `linear` of `at::_ops::linear::call`.
pub(super) fn operator(function: &str) -> Option<&str> {
    let (operator, way) = function.strip_prefix("at::_ops::")?.split_once("::")?;
    matches!(way, "call" | "redispatch").then_some(operator)
}

/// How frames of operators begin. One that is the same as the one around it is the same call, further on its way.
pub(super) const OPERATOR: &str = "aten::";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_named_by_its_struct_whichever_way_it_is_called() {
        assert_eq!(operator("at::_ops::linear::call"), Some("linear"));
        assert_eq!(operator("at::_ops::add__Tensor::redispatch"), Some("add__Tensor"));
        for other in
            ["at::_ops::linear::create_linear_typed_handle", "at::native::linear", "at::_ops::linear", ""]
        {
            assert_eq!(operator(other), None, "{other}");
        }
    }

    #[test]
    fn glue_is_known_by_its_function_and_its_file() {
        assert!(is_glue("libtorch_cpu.so", "c10::impl::wrap_kernel_functor_unboxed_<X>::call"));
        assert!(is_glue("libtorch_cpu.so", "at::_ops::linear::create_linear_typed_handle"));
        assert!(is_glue("_C.cpython-311-x86_64-linux-gnu.so", "pybind11::cpp_function::dispatcher"));
        assert!(is_glue("libtorch_python.so", "dynamo__custom_eval_frame::{lambda()#1}::operator()"));
        assert!(!is_glue("app", "c10::impl::mine"), "the user's");
        assert!(!is_glue("libtorch_cpu.so", "at::native::linear"));
        assert!(!is_glue("libtorch_cpu.so", "at::_ops::linear::call"));
    }
}
