//! `gpuflame decode-steps`: measures the durations of an inference server's decoding steps.

use clap::Args;

use super::console::{Console, Outcome, usage_error};
use super::input::Source;
use super::output::Target;
use super::times::parse_millis;
use super::trace::{self, TraceFlags};
use gpuflame_model::error::Result;
use gpuflame_traces::steps::{DecodeSteps as Steps, Framework};

/// Measure the decoding steps of sglang, vllm or fastdeploy.
///
/// For sglang and vllm, a step is the time between two entries into the scheduler's function, within the first half of
/// the trace. For fastdeploy, a step is a step of the profiler.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  gpuflame decode-steps vllm trace.json.gz -o steps.csv")]
pub(super) struct DecodeSteps {
    /// Framework: sglang, vllm or fastdeploy (fd).
    framework: Framework,
    /// Trace (`-`: standard input).
    input: Source,
    /// File for the milliseconds of each step, as CSV.
    #[arg(short, long, alias = "output-csv", value_name = "FILE")]
    output: Option<Target>,
    /// Minimum length of a step, such as `500us` or `2ms`. A time without a unit is in milliseconds.
    #[arg(long, alias = "min-ms", value_name = "TIME", default_value = "10ms", value_parser = parse_millis)]
    min: i64,
    /// Maximum length of a step. A time without a unit is in milliseconds.
    #[arg(long, alias = "max-ms", value_name = "TIME", default_value = "30ms", value_parser = parse_millis)]
    max: i64,
    #[command(flatten)]
    how: TraceFlags,
}

impl DecodeSteps {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        if self.min > self.max {
            return Err(usage_error("--min is above --max; swap them"));
        }
        let mut steps = Steps::new(self.framework);
        trace::read_trace(&self.input, &self.how, console, &mut steps)?;
        let latencies = steps.latencies(self.min, self.max).map_err(|error| error.within(&self.input))?;
        Target::Stdout.write(console, |out| {
            writeln!(out, "{:9} {}", "Count:", latencies.all().len())?;
            for (name, millis) in latencies.rows() {
                writeln!(out, "{:9} {millis:.3} ms", format!("{name}:"))?;
            }
            Ok(())
        })?;
        if let Some(target) = &self.output {
            target.write(console, |mut out| latencies.write(&mut out))?;
        }
        Ok(Outcome::Clean)
    }
}
