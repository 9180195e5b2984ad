//! Sets up a session from the settings in the environment.

use crate::capture::{self, Capture, HostCallDetails};
use crate::control::{lifecycle, output_override, window};
use gpuflame_config::Outputs;
use gpuflame_config::settings::{Output, Settings};
use gpuflame_cupti as cupti;
use gpuflame_model::error::{Error, ErrorKind, Result};
use gpuflame_model::options::{PythonFrames, Yield};
use gpuflame_model::profile::View;
use gpuflame_model::profile::views::{CPU, MEMORY, OFF_CPU, TOGETHER, WAITS};
use gpuflame_os::{self as host, file, host_signals, memory, stderr, syscall_warmup};
use gpuflame_unwind as unwind;

use super::running::Session;
use crate::session::collect::pipeline::Pipeline;
use crate::session::outputs::output_files::{self, WriteReport};
use crate::session::process::messages::{self, print_from_app};
use crate::session::process::{environment, launcher_report};

/// Sets up the session when the CUDA driver injects gpuflame, inside `cuInit`.
pub(crate) fn set_up_on_injection() -> Result<&'static Session> {
    set_up(false)
}

/// Sets up the session when the program calls gpuflame. At this time, the CUDA driver may not be loaded yet.
pub(crate) fn set_up_on_call() -> Result<&'static Session> {
    set_up(true)
}

/// Writes messages that could not be printed to stderr to a file, in the folder for the outputs. This function is used
/// if there is no session, because only a session writes these messages on exit.
pub(crate) fn write_unprinted() {
    let text = messages::take_unprinted();
    if !text.is_empty() {
        let (settings, _) = environment::settings();
        file::set_file_mode(settings.file_mode);
        let outputs = Outputs::new(&settings.output, &environment::facts()).for_all_windows();
        // If this file cannot be written, the user gets no message, because printing to stderr fails as well.
        let _ = output_files::write_ledger(&text, &outputs, &WriteReport::default());
    }
}

/// Adds the output formats that show CPU samples or off-CPU waits, if these are recorded.
fn add_sample_formats(settings: &mut Settings) {
    let is_wanted = |view: &View| {
        let of_cpu = settings.cpu_samples.is_some();
        match view {
            _ if view == &CPU => of_cpu,
            _ if view == &OFF_CPU => settings.off_cpu,
            _ => view == &TOGETHER && (of_cpu || settings.off_cpu),
        }
    };
    let drawn =
        Output::all().into_iter().filter(|output| matches!(output, Output::View(view, _) if is_wanted(view)));
    let missing: Vec<_> = drawn.filter(|output| !settings.formats.contains(output)).collect();
    settings.formats.extend(missing);
}

fn set_up(load_driver: bool) -> Result<&'static Session> {
    stderr::remember_file();
    let (settings, warnings) = environment::settings();
    if settings.disable {
        return Err(Error::new(ErrorKind::State, "GPUFLAME_DISABLE=1 switches gpuflame off"));
    }
    let report = settings.report.clone();
    launcher_report::note_call(report.as_deref());
    begin_session(settings, &warnings, load_driver)
        .inspect_err(|error| launcher_report::note_refusal(report.as_deref(), error))
}

fn begin_session(mut settings: Settings, warnings: &[String], load_driver: bool) -> Result<&'static Session> {
    if !settings.quiet {
        warnings.iter().for_each(|warning| print_from_app(warning));
    }
    file::set_file_mode(settings.file_mode);
    let by_settings = || Outputs::new(&settings.output, &environment::facts());
    let outputs = output_override::get().unwrap_or_else(by_settings);
    let ceiling = memory::limit_bytes(settings.max_mem);
    capture::limit_memory(ceiling);
    let pipeline = Pipeline::new(&settings, &outputs, ceiling);
    capture::refill_chunks();
    capture::recalibrate_clock();
    unwind::prepare();
    syscall_warmup::make_all_once(settings.cpu_samples.is_some() || settings.off_cpu);
    unwind::python::set_enabled(settings.python != PythonFrames::Off);
    capture::verify_every(settings.verify);
    if settings.launch_marker {
        window::enable_launch_marker();
    }
    add_sample_formats(&mut settings);
    let wants = |wanted: &View| {
        settings.formats.iter().any(|output| matches!(output, Output::View(view, _) if *view == wanted))
    };
    capture::select_host_call_details(HostCallDetails {
        waits: wants(&WAITS) || settings.deps,
        memory: wants(&MEMORY),
    });
    let options = cupti::Options {
        library: settings.cupti.clone(),
        load_driver,
        whole_graphs: settings.whole_graphs,
        events: settings.deps,
        unified: settings.unified,
        without_environment: host::is_privileged(),
        deference: match settings.yields {
            Yield::Nothing => cupti::Deference::None,
            Yield::Records => cupti::Deference::Records,
            Yield::Subscription => cupti::Deference::Subscription,
        },
    };
    let api = host_signals::with_all_blocked(|| cupti::subscribe::<Capture>(&options))?;
    if settings.whole_graphs && !settings.quiet {
        print_from_app(
            "GPUFLAME_GRAPH_TRACE=graph: each graph launch is one activity; its kernels, their times and \
             where they were captured are not recorded",
        );
    }
    if settings.deps && !settings.formats.contains(&Output::Recording) && !settings.quiet {
        print_from_app("GPUFLAME_DEPS=1 has no effect without a recording; add gfr to GPUFLAME_FORMATS");
    }
    if !settings.quiet {
        api.notes().iter().for_each(|note| print_from_app(note));
    }
    Session::start(settings, outputs, pipeline, api).inspect_err(|_| {
        lifecycle::end();
        api.unsubscribe();
    })
}
