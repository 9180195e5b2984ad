//! Shortens kernel names to the form that people use. For example, a name of 250 characters is shortened to
//! `vectorized_elementwise_kernel<GeluCUDAKernelImpl>`.
//!
//! The short name of a template kernel consists of its function and, if possible, its computation. The computation is
//! the innermost named functor in the template arguments. Namespaces, number types, sizes, layouts, lambdas and
//! parameters are omitted. The rules apply to the demangler's output and need no list of kernels. Names that cannot be
//! parsed are not shortened. Sums must be keyed by full names, because several kernels may have the same short name.

use std::collections::BTreeSet;
use std::collections::HashMap;

/// Maximum nesting depth of templates to parse. The names of real kernels have up to 12 levels. The maximum depth is
/// needed because a file may contain any text as a name.
const MAX_DEPTH: usize = 32;
/// Maximum number of distinct names that are shortened. A picture has a few hundred names. Finding duplicates among
/// 10,000 short names takes a megabyte of memory.
const MAX_NAMES: usize = 10_000;

/// Returns the short name of a kernel; `None` if the name cannot be shortened.
pub fn short_kernel(name: &str) -> Option<String> {
    shortened(name).filter(|short| short.len() < name.len())
}

fn shortened(name: &str) -> Option<String> {
    // If a kernel is not a template, its name is exactly what the author chose, so the name is not shortened.
    if !name.contains(['<', '(']) {
        return None;
    }
    let path = NamePath::parse(without_return_type(name)?)?;
    let own = path.naming_part()?;
    let name = path.distinct_name(own);
    let computed: Vec<_> =
        own.arguments().filter_map(|argument| Functor::parse(argument, MAX_DEPTH)).collect();
    let computed = computed.iter().find(|functor| functor.is_function).or(computed.first());
    Some(computed.map_or_else(|| name.clone(), |functor| format!("{name}<{}>", functor.name)))
}

/// Returns the short names of `names`. If several names would have the same short name, their short names are left out.
/// If there are more than `MAX_NAMES` names, returns an empty map. A file with more names is only read by programs, so
/// the names may be long.
pub fn short_kernels<'a>(names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, String> {
    let mut different = BTreeSet::new();
    for name in names {
        different.insert(name);
        if different.len() > MAX_NAMES {
            return HashMap::new();
        }
    }
    let mut owners: HashMap<String, Option<&str>> = HashMap::new();
    for &whole in &different {
        if let Some(short) = short_kernel(whole) {
            owners.entry(short).and_modify(|owner| *owner = None).or_insert(Some(whole));
        }
    }
    for whole in different {
        owners.get_mut(whole).into_iter().for_each(|owner| *owner = None);
    }
    owners.into_iter().filter_map(|(short, whole)| Some((whole?, short))).collect()
}

/// Removes the return type from a name such as `void at::f<int>(int)`. A return type is `void` or a template. Returns
/// `None` if the text before the name is something else.
fn without_return_type(name: &str) -> Option<&str> {
    let blanks = find_outside_brackets(name, b' ').filter(|at| !name[at + 1..].starts_with("const"));
    let Some(blank) = blanks.last() else { return Some(name) };
    let before = &name[..blank];
    let is_type = before == "void" || before.contains('<') && NamePath::parse(before).is_some();
    is_type.then(|| &name[blank + 1..])
}

/// Functor in a kernel's template arguments, which shows what the kernel computes.
struct Functor<'a> {
    name: &'a str,
    /// True for a lambda, a function or a type named like a functor; false for any other type.
    is_function: bool,
}

impl<'a> Functor<'a> {
    fn parse(argument: &'a str, depth_left: usize) -> Option<Self> {
        let depth_left = depth_left.checked_sub(1)?;
        let path = NamePath::parse(argument.trim())?;
        let own = path.naming_part().filter(|own| !own.is_data_type() && !path.is_in_data_library())?;
        let inner = own.arguments().filter_map(|argument| Self::parse(argument, depth_left));
        let inner = { inner }.find(|functor| functor.is_function);
        let is_function = path.has_lambda || own.is_function();
        Some(inner.unwrap_or(Self { name: own.name, is_function }))
    }
}

/// A qualified name such as `at::native::f<int>(int)::{lambda()#1}::operator()`, split into its parts.
struct NamePath<'a> {
    parts: Vec<Part<'a>>,
    has_lambda: bool,
}

#[derive(Clone, Copy)]
struct Part<'a> {
    name: &'a str,
    /// Template arguments: the text between `<` and `>`.
    arguments: &'a str,
}

impl<'a> NamePath<'a> {
    /// Parses a name. Returns `None` for text that is not a name, such as a number, `float const*` or `(Kind)1`.
    fn parse(text: &'a str) -> Option<Self> {
        let mut path = Self { parts: Vec::new(), has_lambda: false };
        let mut rest = text;
        loop {
            if rest.starts_with('{') {
                rest = &rest[closing_bracket(rest)?..];
                path.has_lambda = true;
            } else if let Some(after) = rest.strip_prefix("(anonymous namespace)") {
                rest = after;
            } else {
                let (part, after) = Part::parse(rest)?;
                path.parts.push(part);
                rest = after;
            }
            // Skips the parameter list of the kernel, or of a function that contains a lambda.
            while rest.starts_with('(') {
                rest = &rest[closing_bracket(rest)?..];
            }
            rest = rest.strip_prefix(" const").unwrap_or(rest);
            rest = match rest.strip_prefix("::") {
                Some(after) => after,
                None => return rest.is_empty().then_some(path),
            };
        }
    }

    /// Returns the last part that is not an operator. The returned part contains the function's name.
    fn naming_part(&self) -> Option<Part<'a>> {
        self.parts.iter().rev().find(|part| !part.name.starts_with("operator")).copied()
    }

    /// Returns the name of the part `own`. If the part's name is just `kernel`, the previous part is added, as in
    /// `gemvx::kernel`.
    fn distinct_name(&self, own: Part<'a>) -> String {
        let before = self.parts.iter().rev().skip_while(|part| part.name != own.name).nth(1);
        match before.filter(|_| own.name.eq_ignore_ascii_case("kernel")) {
            Some(before) => format!("{}::{}", before.name, own.name),
            None => own.name.to_owned(),
        }
    }

    /// Whether the name is in the namespace of a library of containers or layouts (`std` or `cute`).
    fn is_in_data_library(&self) -> bool {
        matches!(self.parts[..], [Part { name: "std" | "cute", .. }, _, ..])
    }
}

impl<'a> Part<'a> {
    /// Parses one part of a name, with its template arguments. Returns the part and the text after it.
    fn parse(text: &'a str) -> Option<(Self, &'a str)> {
        let is_in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '.' | '~' | '@' | '#');
        let mut end = text.find(|c| !is_in_name(c)).unwrap_or(text.len());
        if &text[..end] == "operator" {
            end += match &text[end..] {
                call if call.starts_with("()") => 2,
                other => other.find(|c: char| !"<>=!+-*/%^&|~,".contains(c)).unwrap_or(other.len()),
            };
        }
        let (name, rest) = text.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        if !rest.starts_with('<') {
            return Some((Self { name, arguments: "" }, rest));
        }
        let end = closing_bracket(rest)?;
        Some((Self { name, arguments: &rest[1..end - 1] }, &rest[end..]))
    }

    fn arguments(self) -> impl Iterator<Item = &'a str> {
        let mut rest = self.arguments;
        std::iter::from_fn(move || {
            let whole = rest;
            let end = find_outside_brackets(whole, b',').next();
            rest = end.map_or("", |end| &whole[end + 1..]);
            (!whole.is_empty()).then(|| end.map_or(whole, |end| &whole[..end]))
        })
    }

    /// Whether the part is named like a function or functor.
    fn is_function(self) -> bool {
        const WORDS: [&str; 5] = ["unctor", "ernel", "mpl", "Op", "_op"];
        WORDS.iter().any(|word| self.name.contains(word))
    }

    /// Whether the part has the name of a data type, a memory layout or an access method.
    fn is_data_type(self) -> bool {
        const NAMES: [&str; 14] = [
            "long",
            "short",
            "char",
            "bool",
            "unsigned",
            "signed",
            "void",
            "true",
            "false",
            "decltype",
            "Array",
            "array",
            "tuple",
            "OpaqueType",
        ];
        const WORDS: [&str; 6] = ["float16", "Float16", "half", "Half", "float8", "omplex"];
        const ENDS: [&str; 12] = [
            "State",
            "Params",
            "Iterator",
            "iterator",
            "Accessor",
            "Policy",
            "Calculator",
            "Cast",
            "Struct",
            "Config",
            "Traits",
            "Metadata",
        ];
        NAMES.contains(&self.name)
            || self.name.starts_with("Policy")
            || WORDS.iter().any(|word| self.name.contains(word))
            || ENDS.iter().any(|end| self.name.ends_with(end))
            || ["float", "double", "Float8", "fp8", "uint", "int"]
                .iter()
                .any(|begin| self.name.starts_with(begin))
    }
}

/// Returns the positions at which `wanted` occurs in `text` outside all brackets.
fn find_outside_brackets(text: &str, wanted: u8) -> impl Iterator<Item = usize> {
    let mut depths = BracketDepth::default();
    text.bytes()
        .enumerate()
        .filter(move |(_, byte)| depths.next(*byte) == 0 && *byte == wanted)
        .map(|(at, _)| at)
}

/// Returns the position after the bracket that matches the opening bracket at the start of `text`.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depths = BracketDepth::default();
    text.bytes().position(|byte| depths.next(byte) == 0).map(|at| at + 1)
}

/// Counts open brackets. The `<` of `operator<` is counted although it is not a bracket, so a name that contains
/// `operator<` within brackets is not shortened. The `>` of `->` is not counted as a bracket.
#[derive(Default)]
struct BracketDepth {
    depth: usize,
    before: u8,
}

impl BracketDepth {
    fn next(&mut self, byte: u8) -> usize {
        match byte {
            b'<' | b'(' | b'{' | b'[' => self.depth += 1,
            b'>' if self.before == b'-' => {}
            b'>' | b')' | b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.before = byte;
        self.depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names belong to kernels of PyTorch, cuBLAS, cuDNN, CUB, vLLM and NCCL. The names have the forms that
    /// torch.profiler, Nsight Systems and gpuflame's demangler show.
    #[test]
    fn a_short_name_consists_of_the_function_and_its_functor() {
        for (name, short) in [
            (
                "at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, \
                 at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::\
                 {lambda(float)#1}, std::array<char*, 2>, false>",
                "vectorized_elementwise_kernel<GeluCUDAKernelImpl>",
            ),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<double, double, double, \
                 at::native::binary_internal::DivFunctor<double> >, at::detail::Array<char*, 3> >(int, \
                 at::native::BinaryFunctor<double, double, double, at::native::binary_internal::DivFunctor<double> >, \
                 at::detail::Array<char*, 3>)",
                "vectorized_elementwise_kernel<DivFunctor>",
            ),
            (
                "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, \
                 std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
                "vectorized_elementwise_kernel<CUDAFunctor_add>",
            ),
            (
                "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl_nocast<\
                 at::native::BUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, \
                 at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&, \
                 at::native::BUnaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, \
                 at::native::binary_internal::MulFunctor<float> > const&)::{lambda(int, bool)#1}>(int)",
                "elementwise_kernel_manual_unroll<MulFunctor>",
            ),
            (
                "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<\
                 at::native::tanh_backward_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::\
                 {lambda()#4}::operator()() const::{lambda(float, float)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
                "elementwise_kernel<tanh_backward_kernel_cuda>",
            ),
            (
                "void at::native::reduce_kernel<256, 2, at::native::ReduceOp<float, at::native::func_wrapper_t<float, \
                 at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, \
                 unsigned int, float, 4> >(at::native::ReduceOp<float>)",
                "reduce_kernel<sum_functor>",
            ),
            (
                "at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, \
                 long, 4, 4> >",
                "reduce_kernel<ArgMaxOps>",
            ),
            (
                "at::native::index_elementwise_kernel<128, 4, at::native::index_copy_kernel_impl<at::native::OpaqueType<4> \
                 >(at::TensorIterator&, long, long, long)::{lambda(int)#1}>",
                "index_elementwise_kernel<index_copy_kernel_impl>",
            ),
            (
                "at::native::(anonymous namespace)::indexSelectSmallIndex<float, long, unsigned int, 2, 2, -2>",
                "indexSelectSmallIndex",
            ),
            (
                "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, c10::BFloat16, float, int>(float)",
                "batch_norm_collect_statistics_kernel<Var>",
            ),
            (
                "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x128_32x6_nn_align4>\
                 (cutlass_80_tensorop_s1688gemm_64x128_32x6_nn_align4::Params)",
                "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x128_32x6_nn_align4>",
            ),
            (
                "void cub::DeviceRadixSortHistogramKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, \
                 long, int>(int*, long const*, int, int, int)",
                "DeviceRadixSortHistogramKernel",
            ),
            (
                "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, \
                 (vllm::Fp8KVCacheDataType)0>(__hip_bfloat16 const*, int)",
                "reshape_and_cache_flash_kernel",
            ),
            (
                "void gemv2T_kernel_val<int, int, float, 128, false, cublasGemvParams<\
                 cublasGemvTensorStridedBatched<float const>, float> >(float)",
                "gemv2T_kernel_val",
            ),
            (
                "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 7, cublasGemvParams<\
                 cublasGemvTensorStridedBatched<float const>, float> >(cublasGemvParams<float>)",
                "gemvx::kernel",
            ),
            (
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                "ncclKernel_AllReduce_RING_LL_Sum_float",
            ),
            ("std::enable_if<true, void>::type ns::scale<float>(float*)", "scale"),
            ("gemm<float, 128>", "gemm"),
        ] {
            assert_eq!(short_kernel(name).as_deref().unwrap_or(name), short, "{name}");
        }
    }

    #[test]
    fn a_short_name_shared_by_two_kernels_is_not_used() {
        let names = ["gemm<float>", "gemm<half>", "add<int>", "scale<int>", "scale", "plain"];
        let short = short_kernels(names.into_iter().chain(["add<int>"]));
        assert_eq!(short.into_iter().collect::<Vec<_>>(), [("add<int>", "add".to_owned())]);
        let many: Vec<_> = (0..20_000).map(|at| format!("k{at}<int>")).collect();
        assert!(short_kernels(many.iter().map(String::as_str)).is_empty());
    }

    #[test]
    fn names_that_do_not_parse_as_cpp_are_unchanged() {
        let deep = format!("{}int{}", "a<".repeat(5000), ">".repeat(5000));
        for name in [
            "",
            "gemm",
            "triton_poi_fused_add_0",
            "net::gemm",
            "sm90_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_kernel__5x_cublas",
            "Memcpy DtoH (Device -> Pageable)",
            "step 5 (warm-up)",
            "gemm<float",
            "gemm>float<",
            "f(",
            "::",
            "a::",
            "<>",
            "()",
            "{lambda()#1}::operator()",
            "operator()",
            "_Z4gemmIfEvPT_",
            "größe (2)",
            "gemm<[4, 4], \"a\">, copy",
        ] {
            assert_eq!(short_kernel(name), None, "{name}");
        }
        assert_eq!(
            short_kernel(&deep).as_deref(),
            Some("a<a>"),
            "no compiler writes such a name; it must not overflow the stack"
        );
    }
}
