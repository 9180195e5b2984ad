//! Flags that limit a report to a GPU, a stream and a time range. All verbs that show streams have these flags.

use clap::Args;

use super::console::usage_error;
use super::times::parse_micros;
use gpuflame_model::error::Result;
use gpuflame_model::profile::format_nanos;

/// Flags that select a GPU, a stream and a time range. The documentation of each verb defines its time 0.
#[derive(Debug, Args)]
pub(super) struct StreamFlags {
    /// Show only this GPU.
    #[arg(long)]
    pub(super) device: Option<u32>,
    /// Show only streams with this id.
    #[arg(long)]
    pub(super) stream: Option<u32>,
    /// Show only the time after this moment, counted like the times in the output: `10ms`, `1.5s` or `200us`. A time
    /// without a unit is in microseconds.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    from: Option<i64>,
    /// Show only the time before this moment, counted like the times in the output.
    #[arg(long, value_name = "TIME", value_parser = parse_micros)]
    to: Option<i64>,
}

impl StreamFlags {
    /// Returns an error if `--from` is not before `--to`.
    ///
    /// # Errors
    /// Returns `Setting`.
    pub(super) fn check(&self) -> Result<()> {
        match (self.from(), self.to()) {
            (Some(from), Some(to)) if from >= to => {
                let [from, to] = [from, to].map(format_nanos);
                Err(usage_error(format!("--from {from} is not before --to {to}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the start of the time range to show, in ns.
    pub(super) fn from(&self) -> Option<u64> {
        self.from.map(i64::unsigned_abs)
    }

    /// Returns the end of the time range to show, in ns.
    pub(super) fn to(&self) -> Option<u64> {
        self.to.map(i64::unsigned_abs)
    }

    /// Whether the flags select this GPU.
    pub(super) fn wants_device(&self, device: u32) -> bool {
        self.device.is_none_or(|wanted| wanted == device)
    }

    /// Whether the flags select this stream of this GPU.
    pub(super) fn wants_stream(&self, device: u32, stream: u32) -> bool {
        self.wants_device(device) && self.stream.is_none_or(|wanted| wanted == stream)
    }
}
