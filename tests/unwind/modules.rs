//! Tests the module map, which records the file that was loaded at each address and when it was loaded. Libraries may
//! be loaded and unloaded between two updates of the map.
//!
//! Only one test runs at a time, because every test loads and unloads libraries and the loader's counters are shared by
//! the whole process.
#![cfg(target_arch = "x86_64")]

#[path = "support/build.rs"]
mod build;
#[path = "support/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "support/seen.rs"]
mod seen;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use build::{Library, compile};
use gpuflame_model::record::{Frame, FrameKind, Module};
use gpuflame_unwind::{self as unwind, ModuleMap};
use seen::{SEEN, call, look, twins, use_new_unwinder};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns the module to which a frame's address belonged when the frame was captured. The returned module covers the
/// address and has the frame's epoch.
fn module_of(frame: Frame, modules: &[Module]) -> Option<&Module> {
    let FrameKind::Native { address, epoch } = frame.kind() else { return None };
    modules.iter().rev().find(|module| module.epoch == epoch && (module.start..module.end).contains(&address))
}

fn names(frames: &[Frame], modules: &[Module]) -> Vec<String> {
    let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = |frame: &Frame| module_of(*frame, modules).and_then(|module| file(&module.path));
    frames.iter().map(|frame| name(frame).unwrap_or_default()).collect()
}

#[test]
fn a_library_loaded_and_unloaded_between_refreshes_is_in_the_map() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let mut map = ModuleMap::new();
    let mut modules = Vec::new();
    map.refresh(&mut modules);
    let mut stacks = Vec::new();
    for path in twins().iter().cycle().take(2000) {
        let library = Library::open(path);
        call(library, "twin");
        library.close();
        stacks.push((SEEN.take().0, path.file_name().expect("a file").to_string_lossy().into_owned()));
    }
    map.refresh(&mut modules);
    for (frames, file) in stacks {
        let names = names(&frames, &modules);
        assert_eq!(names[0], file);
        assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
    }
}

#[test]
fn stacks_stay_equal_while_other_libraries_are_loaded_and_unloaded() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(true);
    let library = Library::open(&compile("cases.c", &["-O2"]));
    let mut stacks = BTreeSet::new();
    let mut held = 0;
    for turn in 0..2000 {
        for name in ["plain", "realigned", "with_alloca", "slow_frames"] {
            call(library, name);
            stacks.insert(SEEN.take().0);
        }
        let twin = Library::open(&twins()[turn % 2]);
        call(twin, "twin");
        twin.close();
        if turn == 100 {
            held = unwind::bytes_held();
        }
    }
    assert_eq!(stacks.len(), 4);
    assert_eq!(
        unwind::bytes_held(),
        held,
        "nothing grows with the number of times that something was unloaded"
    );
}

#[test]
fn a_module_is_reported_as_new_once() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(false);
    let mut map = ModuleMap::new();
    let mut modules = Vec::new();
    map.refresh(&mut modules);
    let before = modules.len();
    // Open a library that no other test in this process loads.
    let library = Library::open(&compile("twin.c", &["-O2", "-DNEWS"]));
    call(library, "twin");
    map.refresh(&mut modules);
    assert_eq!(modules.len(), before + 1);
    let build_id = &modules[before].build_id;
    assert_eq!(build_id.len(), 20, "{build_id:x?}");
    call(library, "twin");
    map.refresh(&mut modules);
    assert_eq!(modules.len(), before + 1);
    library.close();
    map.refresh(&mut modules);
    assert_eq!(modules.len(), before + 1);
}

#[test]
fn generated_code_on_a_stack_gets_a_module_without_a_path() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    use_new_unwinder(false);
    let mut map = ModuleMap::new();
    let mut modules = Vec::new();
    map.refresh(&mut modules);
    // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];
    // SAFETY: the mapping is new, and the code is written before it is called.
    let page = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0).cast::<u8>();
        page.copy_from(code.as_ptr(), code.len());
        std::mem::transmute::<*mut u8, extern "C-unwind" fn(extern "C-unwind" fn())>(page)(look);
        page as u64
    };
    let frames = SEEN.take().0;
    map.refresh(&mut modules);
    let module = module_of(frames[0], &modules).expect("the page is in the map");
    assert_eq!(module.path.as_os_str(), "");
    assert!(module.start <= page && page < module.end);
}
