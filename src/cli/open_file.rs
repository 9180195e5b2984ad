//! Opens a file in the desktop's browser.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::console::Console;

/// Maximum time to wait for `xdg-open`. If `xdg-open` cannot show the file, `xdg-open` fails within this time.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// Shows a file in the desktop's browser. If no browser can show the file, prints the file's path.
pub(super) fn open_in_browser(file: &Path, console: Console) {
    let mut command = Command::new("xdg-open");
    command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let why = match command.spawn().map(is_shown) {
        Ok(true) => return,
        Ok(false) => "xdg-open cannot show it",
        Err(_) => "cannot start xdg-open",
    };
    console.remark(format_args!("{why}; open {} in a browser", file.display()));
}

/// Whether `xdg-open` exits successfully or keeps running. On a machine without a desktop environment, `xdg-open`
/// replaces itself with the browser and therefore keeps running.
fn is_shown(mut child: Child) -> bool {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(OPEN_TIMEOUT / 50),
            _ => return true,
        }
    }
}
