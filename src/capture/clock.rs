//! What time it is, asked twice in every launch: `CLOCK_REALTIME`, which activities are timed on, without asking for it.
//!
//! The C library takes 21 to 30 ns to answer, the processor's own counter of ticks 11. So the collector asks for both at
//! every visit and draws a line through what it got; a callback reads the ticks and finds its time on the line. Where
//! there is no line to trust, the C library is asked: before the collector's second visit, when it has not come for a
//! while, just after the clock was set, and wherever the kernel itself does not keep time by these ticks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::record::Nanos;

/// A line is followed for no longer: a collector that has not come by then may have been gone when the clock was set.
const LONGEST: Nanos = Nanos(250_000_000);
/// A line is followed so many times as far as it was measured: 15 ns that a moment can be wrong by become 60.
const FURTHER: u64 = 4;
/// What a line is measured over, or twice that, once the session is as old.
const BASE: Nanos = Nanos(1_000_000_000);
/// Nanoseconds that a clock may be off the line, more where the line was measured over less than it was followed.
/// Further off, the clock was set or runs at another speed now.
const OFF: u64 = 1000;
/// Ticks that the two clocks of a moment may be read apart, which is 80 as a rule; further apart, the thread lost its
/// processor between them.
const APART: u64 = 400;
/// How often a moment is tried for; the best counts.
const TRIES: usize = 4;
/// Bits below the point of a line's speed.
const POINT: u32 = 32;

/// `CLOCK_REALTIME`, at most a microsecond off; up to a visit of the collector later it is still the old time where
/// somebody sets the clock. 12 ns.
#[inline]
pub fn now() -> Nanos {
    LINE.at(ticks()).unwrap_or_else(ask)
}

/// Looks at both clocks. To be called by one thread at a time, now and then, and not on the application's.
pub fn renew_clock() {
    static COURSE: Mutex<Course> = Mutex::new(Course::NEW);
    if kernel_counts_ticks()
        && let Some(mut course) = COURSE.try_lock()
        && let Some(moment) = (0..TRIES).filter_map(|_| Moment::now()).min_by_key(|(_, apart)| *apart)
    {
        LINE.write(&course.go_on(moment.0).unwrap_or(Line::NONE));
    }
}

/// Both clocks at once.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ticks: u64,
    time: Nanos,
}

impl Moment {
    const ZERO: Self = Self { ticks: 0, time: Nanos(0) };

    /// The moment, and how many ticks the readings were apart; `None` if it were too many.
    fn now() -> Option<(Self, u64)> {
        let before = ticks();
        let time = ask();
        let apart = ticks().checked_sub(before)?;
        (apart <= APART).then_some((Self { ticks: before + apart / 2, time }, apart))
    }
}

/// Where time goes from a moment on.
#[derive(Clone, Copy, Debug)]
struct Line {
    from: Moment,
    /// Nanoseconds a tick, [`POINT`] bits of them below the point.
    speed: u64,
    /// Ticks that the speed was measured over.
    measured: u64,
    /// Ticks that it is followed for.
    length: u64,
}

impl Line {
    /// Nothing is on it.
    const NONE: Self = Self { from: Moment::ZERO, speed: 0, measured: 0, length: 0 };

    /// Goes on from `to` as from `from` to there. `None`: one of the clocks stood still or went back.
    fn through(from: Moment, to: Moment) -> Option<Self> {
        let ticks = to.ticks.checked_sub(from.ticks)?;
        let time = to.time.0.checked_sub(from.time.0)?;
        let speed = (u128::from(time) << POINT).checked_div(u128::from(ticks))?;
        let longest = (u128::from(LONGEST.0) << POINT).checked_div(speed)?;
        let length = u64::try_from(longest).ok()?.min(ticks.saturating_mul(FURTHER));
        Some(Self { from: to, speed: u64::try_from(speed).ok()?, measured: ticks, length })
    }

    /// Whether the clocks went elsewhere, however long after the line was drawn.
    fn misses(&self, moment: Moment) -> bool {
        let passed = i128::from(moment.ticks) - i128::from(self.from.ticks);
        let expected = i128::from(self.from.time.0) + ((passed * i128::from(self.speed)) >> POINT);
        let off = expected.abs_diff(i128::from(moment.time.0));
        off > u128::from(OFF) * (1 + passed.unsigned_abs() / u128::from(self.measured))
    }
}

/// How lines are drawn.
#[derive(Debug)]
struct Course {
    /// What the line is measured from; `None` at first and when it missed.
    base: Option<Moment>,
    /// What it is to be measured from when this one is old enough.
    next_base: Moment,
    line: Option<Line>,
}

impl Course {
    const NEW: Self = Self { base: None, next_base: Moment::ZERO, line: None };

    /// The line to follow from this moment on; `None`: there is none yet.
    fn go_on(&mut self, moment: Moment) -> Option<Line> {
        let missed = self.line.is_some_and(|line| line.misses(moment));
        self.line = self.base.filter(|_| !missed).and_then(|base| Line::through(base, moment));
        if self.line.is_none() {
            (self.base, self.next_base) = (Some(moment), moment);
        } else if moment.time.since(self.next_base.time) >= BASE.0 {
            (self.base, self.next_base) = (Some(self.next_base), moment);
        }
        self.line
    }
}

/// The line that callbacks follow. One writer, and readers that do not wait: the sequence is odd while the rest is
/// written, and another number afterwards.
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
    /// Without a line.
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            time: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }

    /// `None`: that is not on the line, or the line is just being written.
    #[inline]
    fn at(&self, ticks: u64) -> Option<Nanos> {
        let before = self.sequence.load(Ordering::Acquire);
        let passed = ticks.wrapping_sub(self.ticks.load(Ordering::Relaxed));
        if passed >= self.length.load(Ordering::Relaxed) {
            return None;
        }
        // At most `LONGEST`, a number of 28 bits, with `POINT` more below it; anything if these are of two lines.
        let passed = passed.wrapping_mul(self.speed.load(Ordering::Relaxed)) >> POINT;
        let time = self.time.load(Ordering::Relaxed).wrapping_add(passed);
        // The loads above come before the one below: then what they read was whole.
        fence(Ordering::Acquire);
        let is_whole = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        is_whole.then_some(Nanos(time))
    }

    fn write(&self, line: &Line) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // Whoever reads a word stored below sees the odd number after it.
        fence(Ordering::Release);
        self.ticks.store(line.from.ticks, Ordering::Relaxed);
        self.time.store(line.from.time.0, Ordering::Relaxed);
        self.speed.store(line.speed, Ordering::Relaxed);
        self.length.store(line.length, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

/// Asks the C library, which asks no further: 21 to 30 ns.
#[inline]
fn ask() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place to write a timespec to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The processor's counter. It may be read a few instructions early, which are less than what a clock is off.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and the C library's clock reads it too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Whether the kernel keeps time by what [`ticks`] counts. It does where the counter runs at one speed, on all
/// processors alike; a guest whose host keeps time by other means does not.
fn kernel_counts_ticks() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    *COUNTS.get_or_init(|| {
        cfg!(target_arch = "x86_64")
            && std::fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A counter of 2 GHz, which was at 7,000 at 1,000,000 ns.
    fn moment(nanos: u64) -> Moment {
        Moment { ticks: 7000 + 2 * nanos, time: Nanos(1_000_000 + nanos) }
    }

    /// A clock that was put forward by `step`.
    fn after_step(nanos: u64, step: u64) -> Moment {
        let moment = moment(nanos);
        Moment { time: Nanos(moment.time.0 + step), ..moment }
    }

    /// What a callback finds.
    fn at(line: &Line, ticks: u64) -> Option<Nanos> {
        let shared = Shared::new();
        shared.write(line);
        shared.at(ticks)
    }

    #[test]
    fn the_second_moment_gives_a_line_that_ends_four_times_as_far() {
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
    fn no_line_is_followed_for_more_than_a_quarter_of_a_second() {
        let mut course = Course::NEW;
        course.go_on(moment(0));
        let line = course.go_on(moment(3_000_000_000)).unwrap();
        assert!(at(&line, moment(3_249_000_000).ticks).is_some());
        assert!(at(&line, moment(3_251_000_000).ticks).is_none());
    }

    #[test]
    fn a_clock_that_is_set_is_asked_until_there_is_a_new_line() {
        let mut course = Course::NEW;
        let hour = 3_600_000_000_000;
        course.go_on(moment(0));
        assert!(course.go_on(moment(5_000_000)).is_some());
        assert!(course.go_on(after_step(10_000_000, hour)).is_none());
        let line = course.go_on(after_step(15_000_000, hour)).unwrap();
        let later = after_step(16_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // And back again, while nobody looked.
        assert!(course.go_on(moment(9_000_000_000)).is_none());
    }

    #[test]
    fn two_visits_at_once_and_a_long_pause_are_no_reason_to_doubt_the_line() {
        let mut course = Course::NEW;
        course.go_on(moment(0));
        for visit in 1..1000 {
            // Read 15 ns late every other time, which over 50 us is 300 ppm.
            let wrong = 15 * (visit % 2);
            let at = visit / 2 * 80_000_000 + visit % 2 * 50_000;
            let line = course.go_on(after_step(at, wrong)).expect("a line");
            let last = moment(at + line.length / 2 - 1);
            assert!(
                super::tests::at(&line, last.ticks).unwrap().0.abs_diff(last.time.0) <= 75,
                "visit {visit}"
            );
        }
    }

    #[test]
    fn a_base_is_one_to_two_seconds_old() {
        let mut course = Course::NEW;
        for visit in 0..100_u64 {
            let at = visit * 80_000_000;
            course.go_on(moment(at));
            let age = at - (course.base.unwrap().time.0 - 1_000_000);
            assert!(age <= 2_200_000_000 && (age >= 1_000_000_000 || at < 2_000_000_000), "{age} at {at}");
        }
    }

    #[test]
    fn clocks_that_stand_still_or_go_back_give_no_line() {
        assert!(Line::through(moment(5), moment(5)).is_none());
        assert!(Line::through(moment(5), moment(4)).is_none());
        let back = Moment { time: Nanos(0), ..moment(6) };
        assert!(Line::through(moment(5), back).is_none());
        let still = Moment { ticks: 9_000_000, ..moment(5) };
        assert!(Line::through(moment(5), still).is_none());
    }

    #[test]
    fn the_time_is_the_c_librarys() {
        let mut followed = 0;
        for visit in 0..300 {
            if visit % 10 == 0 {
                renew_clock();
            }
            followed += usize::from(LINE.at(ticks()).is_some());
            let (before, time, after) = (ask(), now(), ask());
            // Ten times what it should be off, for a kernel that is just correcting its own clock.
            let near = before.0 - 10 * OFF..=after.0 + 10 * OFF;
            assert!(near.contains(&time.0), "{time} is not in {near:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!kernel_counts_ticks() || followed > 100, "{followed} of 300 on a line");
    }

    #[test]
    fn a_line_that_is_read_while_it_is_written_is_none() {
        let (shared, enough) = (Shared::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (1..=4000).cycle().take_while(|_| !enough.load(Ordering::Relaxed)) {
                    // At tick 100,000 each of these lines is at n + (100,000 - n) * n.
                    let from = Moment { ticks: n, time: Nanos(n) };
                    shared.write(&Line { from, speed: n << POINT, measured: n, length: 1 << 20 });
                }
            });
            let times = std::iter::from_fn(|| Some(shared.at(100_000))).flatten().take(2_000_000);
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
