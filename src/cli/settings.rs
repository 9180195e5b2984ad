//! `gpuflame settings`: lists the environment variables that the library reads. The list comes from the table from
//! which the library parses them.

use std::fmt::Write as _;

use clap::Args;

use super::console::{Console, Outcome};
use super::page::Page;
use super::report::{self, Cell, ReportFlags, ReportFormat, Table};
use gpuflame_config::settings::SETTINGS;
use gpuflame_model::error::Result;

/// List the environment variables that the library reads.
#[derive(Debug, Args)]
#[command(after_help = format!("Example:\n  gpuflame settings --format json\n\n{}", settings_text()))]
pub(super) struct Settings {
    #[command(flatten)]
    report: ReportFlags,
}

impl Settings {
    pub(super) fn run(&self, console: Console) -> Result<Outcome> {
        self.report.output.write(console, |out| match self.report.format {
            ReportFormat::Text => Ok(out.write_all(settings_text().as_bytes())?),
            _ => report::write_tables(&[], &[settings_table()], self.report.format, Page::UNBOUNDED, out),
        })?;
        Ok(Outcome::Clean)
    }
}

fn settings_table() -> Table {
    let mut table = Table::new("settings", &["name", "values", "default", "help"]);
    for setting in SETTINGS {
        table.add_row([setting.name, setting.values, setting.default, setting.help].map(Cell::from));
    }
    table
}

/// Formats all settings, one paragraph each.
fn settings_text() -> String {
    let mut text = String::new();
    for setting in SETTINGS {
        let default = if setting.default.is_empty() { "unset" } else { setting.default };
        let _ =
            writeln!(text, "{} ({}; default: {default})\n    {}", setting.name, setting.values, setting.help);
    }
    text
}
