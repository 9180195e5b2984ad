//! Tests the CUDA runtime calls that PyTorch makes besides launches: each call works, or gpusim reports it as not
//! simulated.

use gpusim_selftest::Run;

#[test]
fn functions_that_pytorch_looks_up_are_available() {
    let outcome = Run::new("torch", &[]).client("10", "2:311").outcome().expect_success();
    assert_eq!((outcome.total("count"), outcome.total("delivered")), (3, 3));
    assert_eq!(outcome.stderr, "", "what is not simulated is named on request only");
}

#[test]
fn functions_that_are_not_simulated_are_reported_once_on_request() {
    let outcome = Run::new("torch", &[]).env("GPUSIM_LOG", "missing").outcome().expect_success();
    let said = "gpusim: cuNoSuchThing is not simulated\ngpusim: cudaLibraryGetGlobal is not simulated\n";
    assert_eq!(outcome.stderr, said);
}

#[test]
fn kernels_and_variables_of_a_cubin_are_read_from_the_cubin() {
    let outcome = Run::new("cubin", &[]).client("10", "3:6,3:7").outcome().expect_success();
    // first_d700 ran twice and second_d300 once.
    assert_eq!((outcome.total("count"), outcome.total("total_ns")), (3, 1_700));
    let modules = outcome.lines("module").into_iter();
    let modules: Vec<_> = modules.map(|l| ["id", "number", "bytes"].map(|key| l.number(key))).collect();
    // The program loads the cubin twice and unloads it twice. After that, the program loads four images that are not
    // cubins; loads and unloads the cubin and another image; and loads three more images that are not cubins. The cubin
    // consists of a 64-byte header, 128 bytes of names, 4 symbols of 24 bytes and 7 section headers of 64 bytes.
    const BYTES: u64 = 64 + 128 + 4 * 24 + 7 * 64;
    let loaded = |number, bytes| [6, number, bytes];
    let of_cubin = [1, 2].map(|number| [loaded(number, BYTES), [7, number, 0]]);
    let others = [3, 4, 5, 6].map(|number| loaded(number, 0));
    let of_variables = [loaded(7, BYTES), loaded(8, 0), [7, 7, 0], [7, 8, 0]];
    let of_logs = [9, 10, 11].map(|number| loaded(number, 0));
    assert_eq!(modules, [of_cubin.as_flattened(), &others, &of_variables, &of_logs].concat());
}
