//! What PyTorch asks of a CUDA runtime beyond launching: answered, or named as not simulated.

use gpusim_selftest::Run;

#[test]
fn what_pytorch_asks_is_answered() {
    let outcome = Run::new("torch", &[]).client("10", "2:311").outcome().expect_success();
    assert_eq!((outcome.total("count"), outcome.total("delivered")), (3, 3));
    assert_eq!(outcome.stderr, "", "what is not simulated is named on request only");
}

#[test]
fn what_is_not_simulated_is_named_once_on_request() {
    let outcome = Run::new("torch", &[]).env("GPUSIM_LOG", "missing").outcome().expect_success();
    let said = "gpusim: cuNoSuchThing is not simulated\ngpusim: cudaLibraryGetGlobal is not simulated\n";
    assert_eq!(outcome.stderr, said);
}
