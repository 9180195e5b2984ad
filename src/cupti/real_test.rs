//! Tests the few functions of a real `libcupti` (up to 13.1) that need neither a driver nor a GPU.
//! `tests/cupti-wheels.sh` runs these tests, and passes the path of the library to them.

use super::activity::tests::{RecordSizes, a_buffer_of_each_kind, expected_rows_of, read_all_with};
use super::calls::classify;
use super::names::KernelNames;
use cupti_sys::{ActivityKind, CallbackId, Domain, Library, Status};
use gpuflame_os::interpose::{self, Interposition};
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

fn library() -> Library {
    let file = std::env::var_os("GPUFLAME_TEST_CUPTI").expect("GPUFLAME_TEST_CUPTI names a libcupti");
    let file = CString::new(file.into_vec()).unwrap();
    // SAFETY: the user guarantees that the file is a libcupti.
    unsafe { Library::open(&file) }.unwrap()
}

fn next(library: &Library, buffer: *mut u8, valid: usize, record: &mut *mut u8) -> Status {
    // SAFETY: the buffer of the test has `valid` bytes, and this function only reads them.
    unsafe { library.activity_get_next_record.unwrap()(buffer, valid, record) }
}

/// Returns the size of the library's activity records of kind `kind`. Each word of the buffer contains the number of
/// this kind. Steps through the buffer, and measures the distance between two steps.
fn size(library: &Library, kind: ActivityKind) -> usize {
    let mut buffer = [kind.0; 1024];
    let (start, mut record) = (buffer.as_mut_ptr().cast::<u8>(), ptr::null_mut());
    assert_eq!(next(library, start, 4096, &mut record), Status::SUCCESS);
    assert_eq!(next(library, start, 4096, &mut record), Status::SUCCESS);
    record.addr() - start.addr()
}

#[test]
#[ignore = "needs a libcupti: run tests/cupti-wheels.sh"]
fn records_iterated_by_a_real_cupti_are_read() {
    let library = library();
    let sizes = RecordSizes {
        kernel: size(&library, ActivityKind::CONCURRENT_KERNEL),
        copy: size(&library, ActivityKind::MEMCPY),
        peer_copy: size(&library, ActivityKind::MEMCPY2),
        fill: size(&library, ActivityKind::MEMSET),
    };
    eprintln!("  {sizes:?}");
    let buffer = a_buffer_of_each_kind(sizes);
    let step = |buffer: *mut u8, valid: usize, record: &mut *mut u8| next(&library, buffer, valid, record);
    let (_, rows, tally) = read_all_with(&buffer, &step, &mut KernelNames::new());
    assert_eq!((tally.activities, tally.unreadable), (5, 0));
    assert_eq!(rows, expected_rows_of(sizes));
}

#[test]
#[ignore = "needs a libcupti: run tests/cupti-wheels.sh"]
fn launches_copies_and_fills_are_recognized_among_all_real_callback_names() {
    let library = library();
    let (mut picked, mut left, mut look_alikes) = (0, 0, Vec::new());
    for domain in [Domain::RUNTIME_API, Domain::DRIVER_API] {
        for id in 1.. {
            let mut name: *const c_char = ptr::null();
            // SAFETY: `name` has room for one pointer.
            let status = unsafe { library.get_callback_name.unwrap()(domain, CallbackId(id), &raw mut name) };
            if !status.is_success() {
                break;
            }
            // SAFETY: the library returns a C string that it owns.
            let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
            let is_like_one =
                ["Launch", "Memcpy", "Memset", "Prefetch"].iter().any(|word| name.contains(word));
            match classify(name) {
                Some(_) => picked += 1,
                None => {
                    left += 1;
                    if is_like_one {
                        look_alikes.push(name.to_owned());
                    }
                }
            }
        }
    }
    eprintln!("  {picked} calls picked, {left} left, including {} look-alikes", look_alikes.len());
    assert!(picked > 200 && picked < 350);
    // `cuSubgridScheduleLaunch` is an API call in 13.1 that no header declares.
    let explained = ["HostFunc", "Node", "cuSubgridScheduleLaunch"];
    look_alikes.retain(|name| !explained.iter().any(|word| name.contains(word)));
    assert_eq!(look_alikes, [""; 0]);
}

extern "C" fn ours() {}

/// Interposes on functions of the library by changing its symbol table, which is in read-only memory. After the
/// interposition, look-ups of these functions return our functions.
#[test]
#[ignore = "needs a libcupti: run tests/cupti-wheels.sh"]
fn our_functions_are_interposed_before_a_real_cuptis() {
    let file = CString::new(std::env::var_os("GPUFLAME_TEST_CUPTI").unwrap().into_vec()).unwrap();
    library();
    // SAFETY: the file is already loaded, so `dlopen` runs no initialiser.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let ask = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open, and the name ends with a NUL.
        unsafe { libc::dlsym(handle, name.as_ptr()) }.addr()
    };
    let ours = ours as *const () as usize;
    let asked_for =
        ["cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiSubscribe", "cuptiFinalize"];
    let places = asked_for.map(|name| Interposition { name, original: ask(name), replacement: ours });
    assert_eq!(interpose::replace_functions(&places).unwrap(), places.len());
    for Interposition { name, original, .. } in places {
        assert!(original != ours && ask(name) == ours, "{name}");
    }
}
