//! Simulated kernels, which consist of a name and a duration. The simulation never reads device code. The simulation
//! accepts any kernel name, and equal names give the same kernel. CUDA modules, not this file, decide which kernel
//! names they contain.

use crate::settings;
use crate::sync::lock;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Mutex, OnceLock};

/// Duration in ns if neither GPUSIM_KERNELS nor the kernel's name specifies a duration.
const DEFAULT_DURATION: u64 = 10_000;

/// Object to which a CUfunction, CUkernel or cudaKernel_t handle points. Kernels are never freed.
#[derive(Debug)]
pub struct Kernel {
    magic: u64,
    /// Mangled name of the kernel, as in the cubin.
    pub name: &'static CStr,
    /// Duration of the kernel in ns.
    pub duration: u64,
    /// Time in ns from the kernel's begin until the next programmatic launch may begin; `None` if that launch may begin
    /// only at the kernel's end.
    pub trigger: Option<u64>,
    /// Time in ns for which a programmatically launched kernel runs before it waits for the previous kernel; `None` if
    /// it never waits while it runs.
    pub preamble: Option<u64>,
    /// Whether GPUSIM_LEAVE_OUT contains the name of the kernel.
    pub is_left_out: bool,
}

const MAGIC: u64 = u64::from_le_bytes(*b"kernel\0\x01");

impl Kernel {
    /// Returns the kernel with this mangled name.
    pub fn of_name(name: &CStr) -> &'static Kernel {
        static KERNELS: OnceLock<Mutex<HashMap<&'static CStr, &'static Kernel>>> = OnceLock::new();
        let mut kernels = lock(KERNELS.get_or_init(Mutex::default));
        if let Some(kernel) = kernels.get(name) {
            return kernel;
        }
        let name: &'static CStr = Box::leak(CString::from(name).into_boxed_c_str());
        let settings = settings::get();
        let text = name.to_string_lossy();
        let is_left_out = settings.leave_out.contains(&unqualified(&text));
        let duration = match is_left_out {
            true => 0,
            false => duration(&text, &settings.kernels, settings.durations_by_name),
        };
        let (trigger, preamble) = (time_in_name(&text, 't'), time_in_name(&text, 's'));
        let kernel = Kernel { magic: MAGIC, name, duration, trigger, preamble, is_left_out };
        let kernel: &'static Kernel = Box::leak(Box::new(kernel));
        kernels.insert(name, kernel);
        kernel
    }

    /// Returns the kernel to which a handle points, or `None` if the handle does not point to a kernel.
    pub fn of_handle(handle: *const c_void) -> Option<&'static Kernel> {
        let kernel = handle.cast::<Kernel>();
        if kernel.is_null() || !kernel.is_aligned() {
            return None;
        }
        // SAFETY: programs pass the result of cuModuleGetFunction or a similar call; the first word is checked.
        let kernel = unsafe { &*kernel };
        (kernel.magic == MAGIC).then_some(kernel)
    }

    /// Returns the handle by which a program refers to this kernel.
    pub fn handle(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

fn duration(mangled: &str, table: &[(String, u64)], by_name: bool) -> u64 {
    let name = unqualified(mangled);
    let listed = table.iter().find(|(key, _)| *key == name).map(|(_, duration)| *duration);
    let suffix = || name.rsplit_once("_d").and_then(|(_, ns)| ns.parse().ok());
    listed.or_else(suffix).unwrap_or_else(|| if by_name { of_name(mangled) } else { DEFAULT_DURATION })
}

/// Returns the number after `_t` or `_s` (as `letter` selects) in a name such as `_Z16gemm_t500_d3000v`.
fn time_in_name(mangled: &str, letter: char) -> Option<u64> {
    let name = unqualified(mangled);
    name.split('_').skip(1).find_map(|word| word.strip_prefix(letter)?.parse().ok())
}

/// Derives a duration of 1 to 20 us from a name. A name gives the same duration in every run, and different names
/// rarely give equal durations.
fn of_name(mangled: &str) -> u64 {
    // FNV-1a
    let hash = mangled
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    1_000 + hash % 19_001
}

/// Returns the function's name without namespaces and parameters: `_ZN2at4gemmIfEEvPT_` -> `gemm`. A name that is not
/// mangled is returned unchanged.
fn unqualified(mangled: &str) -> String {
    let Ok(symbol) = cpp_demangle::Symbol::new(mangled) else { return mangled.to_owned() };
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let full = symbol.demangle_with_options(&options).unwrap_or_else(|_| mangled.to_owned());
    let (mut depth, mut last) = (0, String::new());
    for c in full.chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            ':' if depth == 0 => last.clear(),
            _ if depth == 0 => last.push(c),
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unqualified_name_drops_namespaces_templates_and_parameters() {
        for (mangled, name) in [
            ("gemm", "gemm"),
            ("_Z4gemmPfi", "gemm"),
            ("_ZN2at6native4reluEPf", "relu"),
            ("_ZN2at4gemmIfLi3EEEvPT_", "gemm"),
            ("_ZN12_GLOBAL__N_14tinyEv", "tiny"),
            ("_ZN2at3opsINS_1AEE8run_d500Ev", "run_d500"),
        ] {
            assert_eq!(unqualified(mangled), name, "{mangled}");
        }
    }

    #[test]
    fn the_table_overrides_the_suffix_and_the_suffix_overrides_the_default() {
        let table = [("gemm_d7".to_owned(), 120_000)];
        let durations = ["_Z7gemm_d7v", "_Z7relu_d9v", "_Z4relu", "x_d"].map(|n| duration(n, &table, false));
        assert_eq!(durations, [120_000, 9, 10_000, 10_000]);
    }

    #[test]
    fn kernels_without_a_duration_get_one_derived_from_their_name() {
        let table = [("gemm".to_owned(), 120_000)];
        let [listed, suffix, relu, gelu] =
            ["gemm", "relu_d9", "relu", "gelu"].map(|n| duration(n, &table, true));
        assert_eq!((listed, suffix), (120_000, 9));
        assert!(relu != gelu && [relu, gelu].iter().all(|ns| (1_000..=20_000).contains(ns)), "{relu} {gelu}");
    }

    #[test]
    fn a_name_holds_the_times_of_a_programmatic_launch() {
        let kernel = Kernel::of_name(c"_Z19gemm_t500_s20_d3000v");
        assert_eq!((kernel.trigger, kernel.preamble, kernel.duration), (Some(500), Some(20), 3_000));
        let plain = Kernel::of_name(c"_Z10gemm_d3000v");
        assert_eq!((plain.trigger, plain.preamble), (None, None));
    }

    #[test]
    fn a_handle_that_is_not_a_kernel_is_rejected() {
        let other = [0u64; 8];
        assert!(Kernel::of_handle(other.as_ptr().cast()).is_none());
        assert!(Kernel::of_handle(std::ptr::null()).is_none());
        let kernel = Kernel::of_name(c"same");
        assert!(std::ptr::eq(Kernel::of_handle(kernel.handle()).unwrap(), Kernel::of_name(c"same")));
    }
}
