//! Reads `CLOCK_REALTIME`, the clock of activities, cheaply, by extrapolating from the time-stamp counter (TSC). The
//! reading must be cheap because each launch reads the clock twice.
//!
//! Reading the clock through the C library takes 21 to 30 ns; reading the TSC takes 11 ns. So the collector reads both
//! clocks at every visit and fits a line through its readings. A callback reads the TSC and converts the ticks to a
//! time with that line. A callback without a valid line calls the C library: at the start of a session, when the
//! collector has not visited for a while, just after the clock was set, and on systems whose kernel does not keep time
//! with the TSC.
//!
//! A time on the line is within 0.1 us of the clock. If the clock is set or its speed is adjusted, or after a suspend
//! that stopped the counter, callbacks follow the old line until the collector's next visit, for up to 80 ms. When one
//! line replaces another, a thread can see time go back by the difference between the two lines.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use gpuflame_model::record::Nanos;

/// Maximum age of a line. If the collector's last visit was longer ago, the clock may have been set since then without
/// the collector noticing.
const MAX_LINE_AGE: Nanos = Nanos(250_000_000);
/// Minimum number of ticks over which the speed of a line is measured, about one millisecond.
const MIN_BASE_TICKS: u64 = 1 << 21;
/// Length for which a line is valid, as a multiple of the length over which its speed was measured. The error of a
/// reading, 15 ns, can grow to 60 ns over this length.
const FURTHER: u64 = 4;
/// Minimum time over which lines are measured once the session is old enough; the maximum is twice this time.
const BASE: Nanos = Nanos(1_000_000_000);
/// Maximum error of the line at a visit, in ns. The limit grows by the same amount for each measured length that has
/// passed since the line was fitted. If the error is larger, the clock was set or its speed has changed.
const MAX_ERROR_NS: u64 = 1000;
/// Maximum number of ticks between the two TSC reads that enclose a clock read; usually 80. If more ticks have passed,
/// the thread was preempted between the two TSC reads.
const MAX_READ_GAP_TICKS: u64 = 400;
/// Number of attempts to read both clocks; the most precise reading is used.
const TRIES: usize = 4;
/// Number of fractional bits of a line's speed.
const POINT: u32 = 32;

/// Returns `CLOCK_REALTIME`, or a value within 0.1 us of it. A call takes 12 ns.
#[inline]
pub fn now() -> Nanos {
    LINE.at(ticks).unwrap_or_else(ask)
}

/// Reads both clocks and publishes a new line for the callbacks. Call regularly, off the hot path.
pub fn renew_clock() {
    static COURSE: Mutex<Course> = Mutex::new(Course::NEW);
    let Some(mut course) = COURSE.try_lock() else { return };
    if !course.may_read_ticks(ask()) {
        LINE.write(&Line::NONE);
    } else if let Some(moment) = Moment::now() {
        LINE.write(&course.go_on(moment).unwrap_or(Line::NONE));
    }
}

/// A simultaneous reading of both clocks.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: u64,
    time: Nanos,
}

impl Moment {
    const ZERO: Self = Self { ticks: 0, time: Nanos(0) };

    /// Reads both clocks. Returns `None` if the thread was preempted between the reads in every attempt.
    fn now() -> Option<Self> {
        let tries = (0..TRIES).filter_map(|_| {
            let before = ticks();
            let time = ask();
            let apart = ticks().checked_sub(before).filter(|apart| *apart <= MAX_READ_GAP_TICKS)?;
            Some((apart, Self { ticks: before + apart / 2, time }))
        });
        tries.min_by_key(|(apart, _)| *apart).map(|(_, moment)| moment)
    }
}

/// Linear mapping from TSC ticks to time, which starts at the reading `from`.
#[derive(Clone, Copy, Debug)]
struct Line {
    from: Moment,
    /// Nanoseconds per tick, with [`POINT`] fractional bits.
    speed: u64,
    /// Number of ticks over which the speed was measured.
    measured: u64,
    /// Number of ticks for which the line is valid.
    length: u64,
}

impl Line {
    /// A line that is valid for no tick.
    const NONE: Self = Self { from: Moment::ZERO, speed: 0, measured: 0, length: 0 };

    /// Creates a line that starts at `to` and extrapolates the speed between the two readings. Returns `None` if one of
    /// the clocks stood still or went back.
    fn through(from: Moment, to: Moment) -> Option<Self> {
        let ticks = to.ticks.checked_sub(from.ticks)?;
        let time = to.time.0.checked_sub(from.time.0)?;
        let speed = (u128::from(time) << POINT).checked_div(u128::from(ticks))?;
        let longest = (u128::from(MAX_LINE_AGE.0) << POINT).checked_div(speed)?;
        let length = u64::try_from(longest).ok()?.min(ticks.saturating_mul(FURTHER));
        Some(Self { from: to, speed: u64::try_from(speed).ok()?, measured: ticks, length })
    }

    /// Whether the reading deviates too far from the line. The reading may be of any time after the line was fitted.
    fn misses(&self, moment: Moment) -> bool {
        let passed = i128::from(moment.ticks) - i128::from(self.from.ticks);
        let expected = i128::from(self.from.time.0) + ((passed * i128::from(self.speed)) >> POINT);
        let off = expected.abs_diff(i128::from(moment.time.0));
        off > u128::from(MAX_ERROR_NS) * (1 + passed.unsigned_abs() / u128::from(self.measured))
    }
}

/// Calibration state: the readings from which lines are fitted.
#[derive(Debug)]
struct Course {
    /// Reading from which the line is measured, and the later reading that replaces it once that later reading is old
    /// enough.
    bases: Option<[Moment; 2]>,
    line: Option<Line>,
    /// Time at which the kernel's clock source was last queried, and whether the source was the TSC.
    source: Option<(Nanos, bool)>,
}

impl Course {
    const NEW: Self = Self { bases: None, line: None, source: None };

    /// Whether the kernel keeps time with the TSC, according to a query at most one second before `now`. The kernel
    /// abandons the TSC when it finds that processors disagree, which may happen at any time; and a host may forbid its
    /// guests to read the TSC.
    fn may_read_ticks(&mut self, now: Nanos) -> bool {
        let fresh = self.source.filter(|(asked, _)| now >= *asked && now.since(*asked) < BASE.0);
        let (_, counts) = *self.source.insert(fresh.unwrap_or_else(|| (now, kernel_counts_ticks())));
        if !counts {
            (self.bases, self.line) = (None, None);
        }
        counts
    }

    /// Adds a reading and returns the line to follow from that reading on; `None` if no line can be fitted yet.
    fn go_on(&mut self, moment: Moment) -> Option<Line> {
        let missed = self.line.is_some_and(|line| line.misses(moment));
        let Some([base, next]) = self.bases.filter(|_| !missed) else { return self.begin(moment) };
        if moment.ticks.wrapping_sub(base.ticks) >= MIN_BASE_TICKS {
            let Some(line) = Line::through(base, moment) else { return self.begin(moment) };
            self.line = Some(line);
        }
        if moment.time.since(next.time) >= BASE.0 {
            self.bases = Some([next, moment]);
        }
        self.line
    }

    /// Restarts the calibration from this reading.
    fn begin(&mut self, moment: Moment) -> Option<Line> {
        (self.bases, self.line) = (Some([moment; 2]), None);
        None
    }
}

/// The line that callbacks follow, behind a sequence lock with one writer, whose readers do not wait. The sequence
/// number is odd during a write, and has another value after the write.
#[repr(align(64))]
struct Shared {
    sequence: AtomicU64,
    ticks: AtomicU64,
    time: AtomicU64,
    speed: AtomicU64,
    length: AtomicU64,
}

static LINE: Shared = Shared::new();

impl Shared {
    /// Creates a shared line that is valid for no tick.
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            time: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }

    /// Converts ticks to a time. Reads the ticks only if there is a line. Returns `None` if there is no line, if the
    /// ticks are outside the line, or if the line is being written.
    #[inline]
    fn at(&self, ticks: impl FnOnce() -> u64) -> Option<Nanos> {
        let before = self.sequence.load(Ordering::Acquire);
        let length = self.length.load(Ordering::Relaxed);
        if length == 0 {
            return None;
        }
        let passed = ticks().wrapping_sub(self.ticks.load(Ordering::Relaxed));
        if passed >= length {
            return None;
        }
        // The product has at most 28 bits (`MAX_LINE_AGE`) plus `POINT` fractional bits. It can have any value if the
        // loads mix two lines.
        let passed = passed.wrapping_mul(self.speed.load(Ordering::Relaxed)) >> POINT;
        let time = self.time.load(Ordering::Relaxed).wrapping_add(passed);
        // Orders the loads above before the load of the sequence number below, which shows whether they read one
        // complete line.
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        is_whole.then_some(Nanos(time))
    }

    fn write(&self, line: &Line) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // A reader that sees a word stored below then also sees the odd sequence.
        fence(Ordering::Release);
        self.ticks.store(line.from.ticks, Ordering::Relaxed);
        self.time.store(line.from.time.0, Ordering::Relaxed);
        self.speed.store(line.speed, Ordering::Relaxed);
        self.length.store(line.length, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

/// Reads the clock through the C library, which takes 21 to 30 ns because the vDSO makes no system call.
#[inline]
fn ask() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` has room for one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Reads the TSC. The processor may execute the read a few instructions early, which changes the result by less than
/// the error of a line.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has a TSC, and this function is called only if the kernel keeps time with it, so
    // that the C library's clock reads the TSC too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Whether the kernel keeps time with the counter that [`ticks`] reads. The kernel does so if the counter has a
/// constant speed that is equal on all processors. In a guest whose host keeps time by other means, it does not.
fn kernel_counts_ticks() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64") && fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Reading of a 2 GHz counter that was at 7,000 at 1,000,000 ns, `nanos` after that moment.
    fn moment(nanos: u64) -> Moment {
        Moment { ticks: 7000 + 2 * nanos, time: Nanos(1_000_000 + nanos) }
    }

    /// Reading like `moment`, after the clock was set forward by `step`.
    fn after_step(nanos: u64, step: u64) -> Moment {
        let moment = moment(nanos);
        Moment { time: Nanos(moment.time.0 + step), ..moment }
    }

    /// Time that a callback gets from the line at these ticks.
    fn at(line: &Line, ticks: u64) -> Option<Nanos> {
        let shared = Shared::new();
        shared.write(line);
        shared.at(|| ticks)
    }

    #[test]
    fn the_second_reading_yields_a_line_valid_for_four_times_its_span() {
        let mut course = Course::NEW;
        assert!(course.go_on(moment(0)).is_none());
        let line = course.go_on(moment(5_000_000)).unwrap();
        assert_eq!(at(&line, moment(5_000_000).ticks), Some(Nanos(6_000_000)));
        let last = moment(24_999_999);
        assert_eq!(at(&line, last.ticks), Some(last.time));
        assert_eq!(at(&line, moment(25_000_000).ticks), None);
        assert_eq!(at(&line, moment(4_999_999).ticks), None, "before the line");
    }

    #[test]
    fn ticks_are_not_read_without_a_line() {
        assert_eq!(Shared::new().at(|| panic!("some host forbids it")), None);
    }

    #[test]
    fn a_line_is_valid_for_at_most_a_quarter_of_a_second() {
        let mut course = Course::NEW;
        course.go_on(moment(0));
        let line = course.go_on(moment(3_000_000_000)).unwrap();
        assert!(at(&line, moment(3_249_000_000).ticks).is_some());
        assert!(at(&line, moment(3_251_000_000).ticks).is_none());
    }

    #[test]
    fn a_clock_step_drops_the_line_until_the_next_reading() {
        let mut course = Course::NEW;
        let hour = 3_600_000_000_000;
        course.go_on(moment(0));
        assert!(course.go_on(moment(5_000_000)).is_some());
        assert!(course.go_on(after_step(10_000_000, hour)).is_none());
        let line = course.go_on(after_step(15_000_000, hour)).unwrap();
        let later = after_step(16_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // The clock is set back again while the collector does not visit.
        assert!(course.go_on(moment(9_000_000_000)).is_none());
    }

    /// Simulates a machine that was suspended for an hour. Whether the counter continues, stops or restarts depends on
    /// the processor.
    #[test]
    fn after_a_suspend_the_line_is_used_only_if_the_counter_stopped() {
        let mut course = Course::NEW;
        let hour = 3_600_000_000_000;
        course.go_on(moment(0));
        let line = course.go_on(moment(5_000_000)).unwrap();
        assert_eq!(at(&line, moment(5_000_000 + hour).ticks), None, "it counted on");
        assert_eq!(at(&line, 100), None, "it began anew");
        // If the counter stopped, callbacks before the collector's next visit get times from before the suspend.
        let woken = after_step(7_000_000, hour);
        assert_eq!(at(&line, woken.ticks), Some(moment(7_000_000).time));
        assert!(course.go_on(woken).is_none(), "the collector finds the clock elsewhere");
        let line = course.go_on(after_step(12_000_000, hour)).unwrap();
        let later = after_step(13_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // If the counter restarts and the collector visits, the old line and its base readings are dropped.
        assert!(course.go_on(Moment { ticks: 200, ..later }).is_none());
    }

    #[test]
    fn the_line_stays_accurate_with_rapid_visits_and_long_pauses() {
        let mut course = Course::NEW;
        let first = course.go_on(moment(0)).or(course.go_on(moment(50_000)));
        assert!(first.is_none(), "too soon to know a speed");
        for visit in 1..1000 {
            // Every other reading has a delay of 15 ns.
            let (pauses, soon) = (visit / 2 + 1, visit % 2);
            let moment_of = pauses * 80_000_000 + soon * 50_000;
            let line = course.go_on(after_step(moment_of, 15 * soon)).expect("a line");
            let last = moment(moment_of + line.length / 2 - 1);
            let off = at(&line, last.ticks).unwrap().0.abs_diff(last.time.0);
            assert!(off <= 75, "{off} ns at visit {visit}");
        }
    }

    #[test]
    fn the_line_is_accurate_again_soon_after_a_small_early_clock_step() {
        let mut course = Course::NEW;
        course.go_on(moment(0));
        course.go_on(moment(2_000_000));
        // Later by twenty times the measured length: such an error is noticed only then.
        course.go_on(after_step(42_000_000, 19_000));
        let line =
            course.go_on(after_step(122_000_000, 19_000)).or(course.go_on(after_step(202_000_000, 19_000)));
        let last = after_step(210_000_000, 19_000);
        let off = at(&line.expect("a line"), last.ticks).unwrap().0.abs_diff(last.time.0);
        assert!(off < MAX_ERROR_NS, "{off} ns");
    }

    #[test]
    fn the_line_is_dropped_once_the_kernel_stops_using_the_tsc() {
        let mut course = Course { source: Some((Nanos(500), true)), ..Course::NEW };
        course.go_on(moment(0));
        course.go_on(moment(5_000_000));
        assert!(course.may_read_ticks(Nanos(BASE.0 + 499)));
        course.source = Some((Nanos(500), false));
        assert!(!course.may_read_ticks(Nanos(600)));
        assert!(course.line.is_none() && course.bases.is_none());
        // Asked again, the kernel's present answer counts.
        assert_eq!(course.may_read_ticks(Nanos(BASE.0 + 500)), kernel_counts_ticks());
        assert_eq!(course.source.map(|(asked, _)| asked), Some(Nanos(BASE.0 + 500)));
        assert_eq!(course.may_read_ticks(Nanos(3)), kernel_counts_ticks(), "the clock was set back");
        assert_eq!(course.source.map(|(asked, _)| asked), Some(Nanos(3)));
    }

    #[test]
    fn a_base_is_one_to_two_seconds_old() {
        let mut course = Course::NEW;
        for visit in 0..100_u64 {
            let at = visit * 80_000_000;
            course.go_on(moment(at));
            let age = at - (course.bases.unwrap()[0].time.0 - 1_000_000);
            assert!(age <= 2_200_000_000 && (age >= 1_000_000_000 || at < 2_000_000_000), "{age} at {at}");
        }
    }

    #[test]
    fn clocks_that_stop_or_run_backwards_give_no_line() {
        assert!(Line::through(moment(5), moment(5)).is_none());
        assert!(Line::through(moment(5), moment(4)).is_none());
        let back = Moment { time: Nanos(0), ..moment(6) };
        assert!(Line::through(moment(5), back).is_none());
        let still = Moment { ticks: 9_000_000, ..moment(5) };
        assert!(Line::through(moment(5), still).is_none());
    }

    #[test]
    fn timestamps_agree_with_the_c_librarys_clock() {
        let mut followed = 0;
        for visit in 0..300 {
            if visit % 10 == 0 {
                renew_clock();
            }
            followed += usize::from(LINE.at(ticks).is_some());
            let (before, time, after) = (ask(), now(), ask());
            // Allows ten times the maximum error, because the kernel may be adjusting its clock.
            let near = before.0 - 10 * MAX_ERROR_NS..=after.0 + 10 * MAX_ERROR_NS;
            assert!(near.contains(&time.0), "{time} is not in {near:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!kernel_counts_ticks() || followed > 100, "{followed} of 300 on a line");
    }

    #[test]
    fn a_line_read_during_a_write_is_discarded() {
        let (shared, enough) = (Shared::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (1..=4000).cycle().take_while(|_| !enough.load(Ordering::Relaxed)) {
                    // The time of each line at tick 100,000 is n + (100,000 - n) * n.
                    let from = Moment { ticks: n, time: Nanos(n) };
                    shared.write(&Line { from, speed: n << POINT, measured: n, length: 1 << 20 });
                }
            });
            let times = std::iter::from_fn(|| Some(shared.at(|| 100_000))).flatten().take(2_000_000);
            // n * (100,001 - n), solved for n.
            let half = 100_001.0 / 2.0;
            let torn = times.map(|time| time.0).find(|&time| {
                let n = (half - f64::sqrt(half * half - time as f64)).round() as u64;
                time != n * (100_001 - n)
            });
            enough.store(true, Ordering::Relaxed);
            assert_eq!(torn, None, "no line comes by there");
        });
    }
}
