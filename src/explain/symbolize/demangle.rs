//! Demangles symbols. C++ names are shown without parameters and return types, and Rust names are shown without hashes.
//!
//! Parameters are omitted because a name in a flame graph identifies a place, not a signature. With parameters, the
//! name of a symbol in a large C++ library would have 354 bytes on average. Symbols come from untrusted files, and a
//! short symbol may demangle to an exponentially long name. So if a name would exceed [`MAX_NAME_BYTES`], the symbol is
//! shown mangled.

use std::borrow::Cow;
use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// Maximum length of a demangled name in bytes. The limit is higher than the longest genuine names found so far (about
/// 10 KB). No other code truncates names, so a lower limit is not needed.
const MAX_NAME_BYTES: usize = 16 << 10;

/// Name that is shown for a kernel whose symbol is blank. Without this name, tables would have a blank cell, and flame
/// graphs would have a frame without text.
const KERNEL_WITHOUT_NAME: &str = "[kernel without a name]";

/// Returns the displayed name of a kernel: `gemm<float, 128>` for `_Z4gemmIfLi128EEvPT_`. A symbol that cannot be
/// demangled is returned unchanged, and a blank symbol gets a name in brackets.
pub fn kernel_name(symbol: &str) -> Cow<'_, str> {
    if symbol.trim().is_empty() {
        return Cow::Borrowed(KERNEL_WITHOUT_NAME);
    }
    demangle_cpp(symbol).or_else(|| static_kernel_name(symbol)).map_or(Cow::Borrowed(symbol), Cow::Owned)
}

/// Returns the name of a `static` kernel, for a program that consists of separately compiled files. The symbol of such
/// a kernel contains the file's name with a hash, followed by the kernel's own symbol:
/// `__nv_static_35__bde6f193_17_main_cu__Z6reducePf`.
fn static_kernel_name(symbol: &str) -> Option<String> {
    let rest = symbol.strip_prefix("__nv_static_")?;
    rest.match_indices("__Z").find_map(|(at, _)| demangle_cpp(&rest[at + 1..]))
}

/// Returns the name of a C++ or Rust function. A symbol that cannot be demangled is returned unchanged.
pub(super) fn function_name(symbol: &str) -> String {
    demangle_rust(symbol).or_else(|| demangle_cpp(symbol)).unwrap_or_else(|| symbol.to_owned())
}

fn demangle_rust(symbol: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut text = BoundedText::default();
    // The alternate form (`#`) of a Rust name omits the hash.
    fmt::write(&mut text, format_args!("{name:#}")).ok()?;
    Some(text.0)
}

fn demangle_cpp(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") && !symbol.starts_with("__Z") {
        return None;
    }
    // Some symbol tables append a version to the symbol, which is not part of the mangled name.
    let symbol = symbol.split_once("@@").map_or(symbol, |(symbol, _)| symbol);
    let options = DemangleOptions::new().no_params().no_return_type().hide_expression_literal_types();
    let mut text = BoundedText::default();
    Symbol::new(symbol).ok()?.structured_demangle(&mut text, &options).ok()?;
    // A word `const` at the end of the name belongs to the omitted parameters.
    let length = text.0.strip_suffix(" const").unwrap_or(&text.0).len();
    text.0.truncate(length);
    Some(text.0)
}

/// A buffer for the text of a name. Writing fails if the text would become longer than [`MAX_NAME_BYTES`].
#[derive(Default)]
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_lose_parameters_and_return_types_and_keep_template_arguments() {
        for (symbol, name) in [
            ("_Z13matmul_kernelPfS_i", "matmul_kernel"),
            ("_Z4gemmIfLi128EEvPT_S1_i", "gemm<float, 128>"),
            ("_ZN3lib4gemmIfLb1EEEvPKT_", "lib::gemm<float, true>"),
            ("_ZN12_GLOBAL__N_15fusedEPf", "(anonymous namespace)::fused"),
            ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
            ("__nv_static_35__bde6f193_17_simpleMultiGPU_cu_main__Z12reduceKernelPfS_i", "reduceKernel"),
            ("__nv_static_35__bde6f193_9__Z_cu_main__Z4gemmIfLi128EEvPT_S1_i", "gemm<float, 128>"),
            ("__nv_static_35__bde6f193_9_x_cu_main", "__nv_static_35__bde6f193_9_x_cu_main"),
            ("_Znonsense", "_Znonsense"),
            ("", "[kernel without a name]"),
            (" ", "[kernel without a name]"),
        ] {
            assert_eq!(kernel_name(symbol), name);
        }
    }

    #[test]
    fn cpp_and_rust_functions_are_demangled() {
        for (symbol, name) in [
            ("_ZN3foo3barEi", "foo::bar"),
            ("_ZZN4main3fooEvENKUlvE_clEv", "main::foo()::{lambda()#1}::operator()"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_ZN3foo3barEi.part.0", "foo::bar"),
            ("_ZNSt6thread11_State_implIvE6_M_runEv@@GLIBCXX_3.4", "std::thread::_State_impl<void>::_M_run"),
            ("main", "main"),
        ] {
            assert_eq!(function_name(symbol), name);
        }
    }

    #[test]
    fn a_symbol_with_exponential_expansion_stays_mangled() {
        // The test's symbols have names of the form f<A1, A2, A3>, where A1 is a<int, int>, and each further argument
        // is a<P, P> with P as the previous argument. So each argument of the name is twice as long as the previous
        // argument.
        let explode = |levels: u32| {
            let pairs: String = (1..levels).map(|i| format!("S0_IS{0}_S{0}_E", base36(i))).collect();
            format!("_Z1fI1aIiiE{pairs}Evv")
        };
        assert_eq!(kernel_name(&explode(2)), "f<a<int, int>, a<a<int, int>, a<int, int> > >");
        assert_eq!(kernel_name(&explode(30)), explode(30));
    }

    fn base36(mut value: u32) -> String {
        let mut text = Vec::new();
        loop {
            text.push(char::from_digit(value % 36, 36).unwrap().to_ascii_uppercase());
            value /= 36;
            if value == 0 {
                return text.into_iter().rev().collect();
            }
        }
    }
}
