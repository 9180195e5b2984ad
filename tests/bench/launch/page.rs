//! Writes the benchmark's tables into the documentation. The performance page gets all tables, and `docs/cost.md` gets
//! the table for a depth of 64.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- `cargo bench` writes this table. -->\n";
const END: &str = "<!-- End of the table. -->\n";

/// A table in Markdown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table(String);

impl Table {
    pub(crate) fn new(columns: &[String]) -> Self {
        let mut table = Self::default();
        table.row(columns);
        table.row(
            &columns
                .iter()
                .enumerate()
                .map(|(at, _)| if at == 0 { "---" } else { "---:" }.to_owned())
                .collect::<Vec<_>>(),
        );
        table
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// Describes this machine's processor, cores and kernel for the documentation.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpu.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "an unknown processor".to_owned());
    let numbers = ["cpu family", "model"].map(|name| field(name).unwrap_or_default());
    let place = if cpu.contains("hypervisor") { " in a virtual machine" } else { "" };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{model} (family {}, model {}), {cores} cores{place}, Linux {}",
        numbers[0],
        numbers[1],
        kernel.trim()
    )
}

/// Writes `text` between the marks in `file`, a path in the repository.
pub(crate) fn write(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let old = fs::read_to_string(&path).expect("the page exists");
    let (before, rest) = old.split_once(BEGIN).expect("the page has the marks");
    let (_, after) = rest.split_once(END).expect("the page has the marks");
    fs::write(path, format!("{before}{BEGIN}{text}{END}{after}")).expect("the page can be written");
}
