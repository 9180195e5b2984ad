//! Measures the latency of the decoding steps of an inference server. A decoding step is recognized by a Python
//! function that every decoding step calls once, or by a step of the profiler.

use std::io::Write;
use std::str::FromStr;

use crate::import::{CpuKind, CpuOp, Event, Fork, Sink, Wants};
use gpuflame_model::error::{Error, ErrorKind, Result};

/// Inference servers whose decoding steps can be recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// Each step begins when the scheduler calls `get_next_batch_to_run`.
    Sglang,
    /// Each step begins when the engine core calls `step_with_batch_queue`.
    Vllm,
    /// Each step is a slice `ProfileStep#N[15.2 ms]` that the profiler wrote.
    FastDeploy,
}

impl FromStr for Framework {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        match &*word.to_ascii_lowercase() {
            "sglang" => Ok(Self::Sglang),
            "vllm" => Ok(Self::Vllm),
            "fastdeploy" | "fd" => Ok(Self::FastDeploy),
            _ => {
                let message = format!("unknown framework `{word}`; use sglang, vllm or fastdeploy (fd)");
                Err(Error::new(ErrorKind::Setting, message))
            }
        }
    }
}

impl Framework {
    /// Whether a Python frame with this name marks the beginning of a step. Only the file and the function are
    /// compared, because the line number in the name may change with every release of the server.
    fn begins_step(self, name: &str) -> bool {
        let (file, function) = match self {
            Self::Sglang => ("sglang/srt/managers/scheduler.py", "get_next_batch_to_run"),
            Self::Vllm => ("vllm/v1/engine/core.py", "step_with_batch_queue"),
            Self::FastDeploy => return false,
        };
        name.split_once("): ").is_some_and(|(place, called)| {
            let at_file = place.rsplit_once('(').is_some_and(|(path, line)| {
                path.ends_with(file) && !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_digit())
            });
            at_file && called == function
        })
    }

    /// Returns the name of the frame or profiler step by which decoding steps are recognized. The returned name is
    /// shown in messages to the user.
    fn marker(self) -> &'static str {
        match self {
            Self::Sglang => "Python frame `…sglang/srt/managers/scheduler.py(…): get_next_batch_to_run`",
            Self::Vllm => "Python frame `…vllm/v1/engine/core.py(…): step_with_batch_queue`",
            Self::FastDeploy => "`ProfileStep#N[… ms]`",
        }
    }
}

/// A [`Sink`] that collects the decoding steps of an inference server.
#[derive(Clone, Debug)]
pub struct DecodeSteps {
    framework: Framework,
    starts: Vec<i64>,
    durations: Vec<i64>,
}

impl DecodeSteps {
    /// Creates a sink that has received no events.
    pub fn new(framework: Framework) -> Self {
        Self { framework, starts: Vec::new(), durations: Vec::new() }
    }

    fn is_step(&self, step: &CpuOp<'_>) -> bool {
        self.framework == Framework::FastDeploy
            && step.kind == CpuKind::Step
            && has_duration(&step.name.decode())
    }

    /// Returns the latencies of the steps that take `min` to `max` ns. If a step is the time between two frames, only
    /// steps in the first half of the trace are used, because the server decodes fewer requests in the second half.
    ///
    /// # Errors
    /// Returns a `Format` error if no step takes `min` to `max` ns.
    pub fn latencies(mut self, min: i64, max: i64) -> Result<Latencies> {
        if self.framework != Framework::FastDeploy {
            self.starts.sort_unstable();
            if let (Some(first), Some(last)) = (self.starts.first(), self.starts.last()) {
                let half = first + (last - first) / 2;
                self.starts.retain(|&start| start <= half);
            }
            self.durations = self.starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        }
        let found = self.durations.len();
        self.durations.retain(|duration| (min..=max).contains(duration));
        if self.durations.is_empty() {
            let what = match found {
                0 => format!("no steps found: the trace has no {}", self.framework.marker()),
                _ => format!(
                    "none of the {found} steps takes {} to {} ms; give other limits (--min-ms, --max-ms)",
                    super::micros(min / 1000),
                    super::micros(max / 1000)
                ),
            };
            return Err(Error::new(ErrorKind::Format, what));
        }
        let mut sorted = self.durations.clone();
        sorted.sort_unstable();
        Ok(Latencies { in_trace_order: self.durations, sorted })
    }
}

impl Sink for DecodeSteps {
    fn wants(&self) -> Wants {
        if self.framework == Framework::FastDeploy { Wants::STEPS } else { Wants::PYTHON }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Python(frame) if self.framework.begins_step(&frame.name.decode()) => {
                self.starts.push(frame.start)
            }
            Event::Cpu(step) if self.is_step(step) => self.durations.push(step.end - step.start),
            _ => {}
        }
    }
}

impl Fork for DecodeSteps {
    fn fork(&self) -> Self {
        Self::new(self.framework)
    }

    fn join(&mut self, later: Self) {
        self.starts.extend(later.starts);
        self.durations.extend(later.durations);
    }
}

/// Whether `name` begins with a text such as `ProfileStep#N[15.2 ms]`.
fn has_duration(name: &str) -> bool {
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let Some(rest) = name.strip_prefix("ProfileStep#") else { return false };
    let number = digits(rest);
    let Some(rest) = rest[number..].strip_prefix('[').filter(|_| number > 0) else { return false };
    let after = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    after.len() < rest.len() && after.trim_start().starts_with("ms]")
}

/// Latencies of the decoding steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    in_trace_order: Vec<i64>,
    sorted: Vec<i64>,
}

impl Latencies {
    /// Returns the latencies in ns, in the order of the trace.
    pub fn all(&self) -> &[i64] {
        &self.in_trace_order
    }

    /// Returns the rows of the table to print. Each row consists of a name and a value in ms. Percentiles between two
    /// latencies are interpolated linearly. The standard deviation is the population standard deviation.
    pub fn rows(&self) -> Vec<(&'static str, f64)> {
        let count = self.sorted.len() as f64;
        let mean = self.sorted.iter().map(|&value| i128::from(value)).sum::<i128>() as f64 / count;
        let variance = self.sorted.iter().map(|&value| (value as f64 - mean).powi(2)).sum::<f64>() / count;
        let millis = |nanos: f64| nanos / 1e6;
        vec![
            ("Mean", millis(mean)),
            ("Std Dev", millis(variance.sqrt())),
            ("Min", millis(self.sorted[0] as f64)),
            ("Max", millis(self.sorted[self.sorted.len() - 1] as f64)),
            ("Median", millis(self.percentile(50.0))),
            ("P90", millis(self.percentile(90.0))),
            ("P95", millis(self.percentile(95.0))),
            ("P99", millis(self.percentile(99.0))),
        ]
    }

    fn percentile(&self, percent: f64) -> f64 {
        let at = percent / 100.0 * (self.sorted.len() - 1) as f64;
        let (low, high) = (self.sorted[at.floor() as usize] as f64, self.sorted[at.ceil() as usize] as f64);
        low + (high - low) * at.fract()
    }

    /// Writes the header line `latency_ms`, and then one line per step.
    ///
    /// # Errors
    /// Returns any error from writing to `out`.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "latency_ms")?;
        for nanos in &self.in_trace_order {
            writeln!(out, "{}.{:06}", nanos / 1_000_000, nanos % 1_000_000)?;
        }
        Ok(())
    }
}
