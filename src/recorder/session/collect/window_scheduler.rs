//! Opens and closes windows as the settings request: by time, by steps, by a flag file or by a signal.
//! `gpuflame_config::schedule` decides when a window opens or closes. The time and the flag file are checked by a
//! separate thread, because a file system may be slow to answer. A step that opens or closes the window does this on
//! the thread that begins the step, before the first launch of the step.
//!
//! ```text
//! thread: time, flag file, signal, limits --\
//!                                            schedule --> the window opens, closes
//! step(), a range of the name asked for ----/
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::capture;
use crate::control::{lifecycle, steps};
use gpuflame_config::schedule::{RunProgress, Schedule, WindowChange, WindowPlan};
use gpuflame_config::settings::Settings;
use gpuflame_os::descriptor;
use gpuflame_os::futex::EventCount;
use gpuflame_os::{threads, toggle_signal};

use crate::session::process::messages::print_from_app;
use crate::session::process::panic::disable_after_panic;

/// Interval between checks whether the flag file exists. Each check takes one `stat` call.
const FLAG_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks whether a window has reached one of its limits. At 300,000 launches per second, a window can
/// therefore exceed its limit on launches by 600.
const LIMIT_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum time for which the start of a step waits while another thread opens or closes the window. Usually, opening
/// or closing a window takes much less time.
const STEP_LOCK_TIMEOUT: Duration = Duration::from_millis(100);
/// Stack size in bytes of the scheduler's thread. This thread only makes system calls and compares numbers.
const STACK_BYTES: usize = 256 << 10;

/// Wakes the scheduler's thread up when it is notified.
static BELL: EventCount = EventCount::new();

/// Functions that open and close windows.
pub(crate) trait WindowControl: Sync {
    fn open(&self);
    fn close(&self);
}

/// Opens and closes windows according to the schedule from the settings.
pub(crate) struct WindowScheduler {
    schedule: Mutex<Schedule>,
    began: Instant,
    counts_launches: bool,
    flag: Option<PathBuf>,
    signal: Option<i32>,
}

impl WindowScheduler {
    /// Creates the schedule that the settings ask for. Returns `None` if the settings ask for no schedule, or if only
    /// the program itself opens windows.
    pub(crate) fn new(settings: &Settings) -> Option<Self> {
        let &Settings { delay, duration, repeat, max_launches, max_bytes, signal, .. } = settings;
        // The path is made absolute at this time, because the application may change its current directory later.
        let flag =
            settings.flag.as_ref().map(|flag| std::path::absolute(flag).unwrap_or_else(|_| flag.clone()));
        let steps = settings.steps.clone();
        let plan = WindowPlan { delay, duration, repeat, steps, max_launches, max_bytes };
        if repeat != 1 && duration.is_none() && !settings.quiet {
            print_from_app("GPUFLAME_REPEAT has no effect without GPUFLAME_DURATION");
        }
        if !settings.has_window_limits() {
            let would = Settings { enabled: true, ..settings.clone() }.has_window_limits();
            if would && !settings.quiet {
                print_from_app(
                    "GPUFLAME_ENABLED=0: only the program opens windows; the settings that schedule windows \
                     have no effect",
                );
            }
            return None;
        }
        Some(Self {
            schedule: Mutex::new(Schedule::new(plan)),
            began: Instant::now(),
            counts_launches: max_launches.is_some(),
            flag,
            signal,
        })
    }

    /// Starts to follow the schedule. If a window must open immediately, it is already open when this function returns.
    pub(crate) fn start(&'static self, control: &'static impl WindowControl) {
        let signal = self.signal.filter(|_| self.flag.is_none());
        if self.signal.is_some() && signal.is_none() {
            print_from_app("GPUFLAME_SIGNAL has no effect, because GPUFLAME_FLAG is set");
        }
        if let Some(signal) = signal
            && !toggle_signal::install(signal, || BELL.notify_all())
        {
            print_from_app(
                "GPUFLAME_SIGNAL has no effect, because the program has set its own action for this signal; \
                 no window opens",
            );
        }
        if self.flag.is_none() && self.signal.is_none() {
            self.schedule.lock().begin(self.progress());
            self.apply_schedule(control);
        }
        let run = move || {
            let run = std::panic::AssertUnwindSafe(|| self.run(control));
            if std::panic::catch_unwind(run).is_err() {
                disable_after_panic();
            }
        };
        if let Err(error) = threads::spawn(c"gpuflame-when", STACK_BYTES, run) {
            print_from_app(&format!(
                "only steps open and close windows: cannot start a thread ({error}); raise the limit on \
                 threads"
            ));
        }
    }

    /// Opens or closes the window if, according to the schedule, it must be opened or closed at the current time. Any
    /// thread may call this function.
    pub(crate) fn apply_schedule(&self, control: &impl WindowControl) {
        let Some(mut schedule) = self.schedule.try_lock_for(STEP_LOCK_TIMEOUT) else {
            return BELL.notify_all();
        };
        match schedule.next_change(self.progress()) {
            None => {}
            Some(WindowChange::Open) => control.open(),
            Some(WindowChange::Close) => control.close(),
            Some(WindowChange::Next) => {
                control.close();
                control.open();
            }
        }
    }

    fn progress(&self) -> RunProgress {
        RunProgress {
            time: self.began.elapsed(),
            steps: steps::count(),
            launches: if self.counts_launches { capture::calls() } else { 0 },
            bytes: descriptor::appended_bytes(),
        }
    }

    /// Body of the scheduler's own thread.
    fn run(&self, control: &impl WindowControl) {
        threads::note_ours();
        let mut flag = self.flag.as_deref().map(FlagFile::new);
        let mut toggles = 0;
        loop {
            let rung = BELL.count();
            if lifecycle::is_over() {
                return;
            }
            let change = flag.as_mut().and_then(FlagFile::check);
            let toggled = std::mem::replace(&mut toggles, toggle_signal::toggles()) != toggles;
            {
                let mut schedule = self.schedule.lock();
                match change {
                    Some(FlagChange::Created) => schedule.begin(self.progress()),
                    Some(FlagChange::Removed) => schedule.end(),
                    None => {}
                }
                match toggled {
                    true if schedule.is_running() => schedule.end(),
                    true => schedule.begin(self.progress()),
                    false => {}
                }
            }
            self.apply_schedule(control);
            BELL.wait(rung, self.time_to_next_check(flag.is_some()));
        }
    }

    fn time_to_next_check(&self, has_flag: bool) -> Option<Duration> {
        let schedule = self.schedule.lock();
        let limits = schedule.is_limited().then_some(LIMIT_POLL_INTERVAL);
        let flag = has_flag.then_some(FLAG_POLL_INTERVAL);
        [limits, flag, schedule.time_to_next_change(self.progress())].into_iter().flatten().min()
    }
}

/// Change of the flag file since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagChange {
    /// The flag file has appeared, or another file has replaced it.
    Created,
    Removed,
}

/// The flag file. While the flag file exists, a window is open.
struct FlagFile<'a> {
    path: &'a Path,
    /// Identity of the flag file at the last check: device, inode and creation time. The creation time is needed
    /// because a new file may reuse the inode of an old file.
    identity: Option<(u64, u64, Option<SystemTime>)>,
    last_check: Option<Instant>,
    is_refused: bool,
}

impl<'a> FlagFile<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, identity: None, last_check: None, is_refused: false }
    }

    /// Checks the flag file, unless the last check was less than [`FLAG_POLL_INTERVAL`] ago.
    fn check(&mut self) -> Option<FlagChange> {
        if self.last_check.is_some_and(|last_check| last_check.elapsed() < FLAG_POLL_INTERVAL) {
            return None;
        }
        self.last_check = Some(Instant::now());
        let found = fs::metadata(self.path).ok();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) && !std::mem::replace(&mut self.is_refused, true)
        {
            print_from_app(&format!(
                "GPUFLAME_FLAG={}: it is a folder, and no window opens; name a file",
                self.path.display()
            ));
        }
        let identity = found
            .filter(|found| !found.is_dir())
            .map(|found| (found.dev(), found.ino(), found.created().ok()));
        if identity == self.identity {
            return None;
        }
        self.identity = identity;
        Some(if identity.is_some() { FlagChange::Created } else { FlagChange::Removed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuflame_os::testing::folder;

    #[test]
    fn a_flag_file_is_noticed_when_created_removed_or_replaced() {
        let folder = folder("flag");
        let path = folder.join("on");
        let mut flag = FlagFile::new(&path);
        let mut check = || {
            flag.last_check = None;
            flag.check()
        };
        assert_eq!(check(), None);
        fs::write(&path, "").unwrap();
        assert_eq!([check(), check()], [Some(FlagChange::Created), None]);
        fs::write(&path, "more in it").unwrap();
        assert_eq!(check(), None, "it is the same file");
        let next = folder.join("next");
        fs::write(&next, "").unwrap();
        fs::rename(&next, &path).unwrap();
        assert_eq!(check(), Some(FlagChange::Created));
        fs::remove_file(&path).unwrap();
        assert_eq!([check(), check()], [Some(FlagChange::Removed), None]);
        fs::create_dir(&path).unwrap();
        assert_eq!(check(), None, "a folder is not a flag file");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_flag_file_is_not_checked_again_at_once() {
        let folder = folder("flag-often");
        let path = folder.join("on");
        let mut flag = FlagFile::new(&path);
        assert_eq!(flag.check(), None);
        fs::write(&path, "").unwrap();
        assert_eq!(flag.check(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
