//! `gpuflame decode-steps`: durations of an inference server's decoding steps.

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::output::Target;
use super::stats::parse_millis;
use super::trace::{self, TraceFlags};
use gpuflame_model::error::Result;
use gpuflame_traces::steps::{DecodeSteps as Steps, Framework};

/// Measure the decoding steps of sglang, vllm or fastdeploy.
///
/// For sglang and vllm, a step is the time between two entries into the scheduler's function, within the
/// first half of the trace. For fastdeploy, it is the profiler's step.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame decode-steps vllm trace.json.gz --output-csv steps.csv")]
pub(super) struct DecodeSteps {
    /// Framework: sglang, vllm or fastdeploy (fd).
    framework: Framework,
    /// Trace (`-`: standard input).
    input: Source,
    /// File for the milliseconds of each step.
    #[arg(long, value_name = "FILE")]
    output_csv: Option<Target>,
    /// Minimum length of a step, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "10", value_parser = parse_millis)]
    min_ms: i64,
    /// Maximum length of a step, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "30", value_parser = parse_millis)]
    max_ms: i64,
    #[command(flatten)]
    how: TraceFlags,
}

impl DecodeSteps {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.min_ms > self.max_ms {
            return Err(usage_error("--min-ms is above --max-ms; swap them"));
        }
        let mut steps = Steps::new(self.framework);
        trace::read_trace(&self.input, &self.how, console, &mut steps)?;
        let latencies =
            steps.latencies(self.min_ms, self.max_ms).map_err(|error| error.within(&self.input))?;
        Target::Stdout.write(console, |out| {
            writeln!(out, "{:9} {}", "Count:", latencies.all().len())?;
            for (name, millis) in latencies.rows() {
                writeln!(out, "{:9} {millis:.3} ms", format!("{name}:"))?;
            }
            Ok(())
        })?;
        if let Some(target) = &self.output_csv {
            target.write(console, |mut out| latencies.write(&mut out))?;
        }
        Ok(Outcome::Clean)
    }
}
