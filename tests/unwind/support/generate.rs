//! Writes libraries of random C functions. Such functions make stacks that the author of a test would not think of.
//!
//! Each function calls a callback, which returns the next function to call, or null if the function must return.
//! Therefore the same libraries can build any stack. Functions in a library differ in their frame sizes, saved
//! registers, `alloca`, over-aligned locals and number of arguments. Libraries differ in whether they keep frame
//! pointers and realign the stack.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::build::{Library, compile};
pub(crate) use super::random::Random;

/// Number of functions per library.
pub(crate) const FUNCTIONS: usize = 64;

/// Callback of a generated function: returns the next function to call, or null to return.
pub(crate) type Next = extern "C-unwind" fn(&mut Program) -> Option<Function>;
pub(crate) type Function = extern "C-unwind" fn(&mut Program, i64, i64) -> i64;

/// State that every generated function passes to the next function. The C code declares the first three fields.
#[repr(C)]
pub(crate) struct Program {
    pub(crate) next: Next,
    /// Size, in units of 16 bytes, by which the next frame with a variable size is enlarged.
    pub(crate) growth: i64,
    /// Frame pointer of the function that calls the callback, if this function keeps a frame pointer.
    pub(crate) frame: *const usize,
    pub(crate) state: *mut std::ffi::c_void,
}

/// Options for compiling a generated library.
pub(crate) const OMIT: &[&str] = &["-O2", "-fomit-frame-pointer"];
pub(crate) const KEEP: &[&str] = &["-O2", "-fno-omit-frame-pointer", "-DFRAMES"];
pub(crate) const REALIGN: &[&str] = &["-O2", "-mpreferred-stack-boundary=6", "-mincoming-stack-boundary=4"];
pub(crate) const UNOPTIMISED: &[&str] = &["-O0", "-fomit-frame-pointer"];

/// Writes, compiles and loads one library, and returns its functions.
pub(crate) fn library(seed: u64, options: &[&str]) -> Vec<Function> {
    let path = source_file(seed);
    let library = Library::open(&compile(&path, options));
    (0..FUNCTIONS)
        .map(|number| {
            // SAFETY: every generated function has this type.
            unsafe { std::mem::transmute::<_, Function>(library.symbol(&format!("f{number}"))) }
        })
        .collect()
}

fn source_file(seed: u64) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("generated-{seed}.c"));
    let text = source(seed);
    if fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
        let thread = std::thread::current().id();
        let fresh = path.with_extension(format!("{}-{thread:?}.tmp", std::process::id()));
        fs::write(&fresh, text).expect("the target folder is writable");
        fs::rename(&fresh, &path).expect("the source moves into place");
    }
    path
}

fn source(seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut text = String::from(
        "#include <alloca.h>\n#include <string.h>\n\
         struct p; typedef long (*f)(struct p *, long, long);\n\
         struct p { f (*next)(struct p *); long growth; void *frame; };\n\
         #ifdef FRAMES\n#define NEXT (p->frame = __builtin_frame_address(0), p->next(p))\n\
         #else\n#define NEXT p->next(p)\n#endif\n\
         #define KEEP __asm__ volatile(\"\" ::: \"memory\")\n",
    );
    for number in 0..FUNCTIONS {
        function(&mut text, number, &mut random);
    }
    text
}

fn function(text: &mut String, number: usize, random: &mut Random) {
    let room = 16 + random.below(8) * 64;
    let kept = random.below(6);
    let align = if random.below(100) < 5 { "__attribute__((aligned(64)))" } else { "" };
    let grows = random.below(4) == 0;
    let spills = random.below(20) == 0;
    let values: Vec<_> = (0..kept).map(|value| format!("k{value}")).collect();
    let out = text;
    if random.below(5) == 0 {
        // This function has so few local values that the compiler does not use rbp, which therefore keeps the caller's
        // value.
        let _ = writeln!(
            out,
            "long f{number}(struct p *p, long a, long b) {{ f n; char room[{room}]; memset(room, 1, sizeof room);\n\
             while ((n = NEXT)) {{ n(p, room[3], 2); KEEP; }} return room[1]; }}"
        );
        return;
    }
    if spills {
        let _ = writeln!(
            out,
            "static __attribute__((noinline)) long g{number}(struct p *p, long a, long b, long c, long d, long e, long s, long t) {{\n\
             char room[{room}] {align}; f n; long r = s; memset(room, 1, sizeof room);\n\
             while ((n = NEXT)) r += n(p, a + t, b) + room[r & 7]; KEEP; return r + c + d + e + room[3]; }}"
        );
        let _ = writeln!(
            out,
            "long f{number}(struct p *p, long a, long b) {{ long r = g{number}(p, a, b, a+1, b+1, 3, a*b, 7); KEEP; return r + b; }}"
        );
        return;
    }
    let _ = writeln!(out, "long f{number}(struct p *p, long a, long b) {{");
    let _ = writeln!(
        out,
        "  char room[{room}] {align}; f n; long r = 0, turn = b; memset(room, (int)a, sizeof room);"
    );
    for (index, value) in values.iter().enumerate() {
        let _ = writeln!(out, "  long {value} = a * {} + b;", index + 3);
    }
    if grows {
        let _ = writeln!(out, "  char *more = alloca(p->growth * 16); memset(more, 1, 8); r += more[b & 7];");
    }
    let mix = values.iter().map(|value| format!(" + {value}")).collect::<String>();
    let _ = writeln!(out, "  while ((n = NEXT)) {{");
    let _ = writeln!(out, "    if (turn++ & 1) r += n(p, a + 1, r{mix}); else r -= n(p, r ^ b, a{mix}) * 2;");
    let _ = writeln!(out, "    r += room[r & 7]; KEEP;\n  }}");
    let _ = writeln!(out, "  KEEP; return r{mix} + room[b & 7];\n}}");
}
