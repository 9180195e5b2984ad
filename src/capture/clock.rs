//! Reads `CLOCK_REALTIME`, which activities are timed on, cheaply, by extrapolating from the time-stamp counter: each
//! launch reads it twice.
//!
//! The C library takes 21 to 30 ns to answer, the processor's own counter of ticks 11. So the collector asks for both at
//! every visit and draws a line through what it got; a callback reads the ticks and finds its time on the line. Where
//! there is no line the C library is asked: in the session's first moments, when the collector has not come for a while,
//! just after the clock was set, and wherever the kernel does not keep time by these ticks.
//!
//! On the line, time is within 0.1 us of the clock's. When somebody sets the clock, or corrects its speed, or the machine
//! was suspended and its counter with it, callbacks keep to the old one until the collector's next visit, up to 80 ms;
//! and a thread can see time go back by what two lines differ where one takes the other's place.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use crate::record::Nanos;

/// A line is followed for no longer: a collector that has not come by then may have been gone when the clock was set.
const MAX_LINE_AGE: Nanos = Nanos(250_000_000);
/// Ticks that a line is measured over at least, about a millisecond.
const MIN_BASE_TICKS: u64 = 1 << 21;
/// A line is followed so many times as far as it was measured: the 15 ns that a moment is wrong by become 60.
const FURTHER: u64 = 4;
/// What lines are measured over, once the session is as old: this long to twice as long.
const BASE: Nanos = Nanos(1_000_000_000);
/// Nanoseconds that the clock may be off the line at a visit, and again for every time that the visit is later than the
/// line was measured over. Further off, it was set or runs at another speed now.
const MAX_ERROR_NS: u64 = 1000;
/// Ticks that the two clocks of a moment may be read apart, which is 80 as a rule; further apart, the thread lost its
/// processor between them.
const MAX_READ_GAP_TICKS: u64 = 400;
/// How often a moment is tried for; the best counts.
const TRIES: usize = 4;
/// Bits below the point of a line's speed.
const POINT: u32 = 32;

/// `CLOCK_REALTIME`, or within 0.1 us of it. 12 ns.
#[inline]
pub fn now() -> Nanos {
    LINE.at(ticks).unwrap_or_else(ask)
}

/// Looks at both clocks, and tells the callbacks. To be called now and then, off the hot path.
pub fn renew_clock() {
    static COURSE: Mutex<Course> = Mutex::new(Course::NEW);
    let Some(mut course) = COURSE.try_lock() else { return };
    if !course.may_read_ticks(ask()) {
        LINE.write(&Line::NONE);
    } else if let Some(moment) = Moment::now() {
        LINE.write(&course.go_on(moment).unwrap_or(Line::NONE));
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

    /// This moment. `None`: the thread lost its processor in the middle, every time.
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
        let longest = (u128::from(MAX_LINE_AGE.0) << POINT).checked_div(speed)?;
        let length = u64::try_from(longest).ok()?.min(ticks.saturating_mul(FURTHER));
        Some(Self { from: to, speed: u64::try_from(speed).ok()?, measured: ticks, length })
    }

    /// Whether the clocks went elsewhere, however long after the line was drawn.
    fn misses(&self, moment: Moment) -> bool {
        let passed = i128::from(moment.ticks) - i128::from(self.from.ticks);
        let expected = i128::from(self.from.time.0) + ((passed * i128::from(self.speed)) >> POINT);
        let off = expected.abs_diff(i128::from(moment.time.0));
        off > u128::from(MAX_ERROR_NS) * (1 + passed.unsigned_abs() / u128::from(self.measured))
    }
}

/// How lines are drawn.
#[derive(Debug)]
struct Course {
    /// What the line is measured from, and what it is to be measured from when that is old enough.
    bases: Option<[Moment; 2]>,
    line: Option<Line>,
    /// When the kernel was asked what it keeps time by, and whether it is ticks.
    source: Option<(Nanos, bool)>,
}

impl Course {
    const NEW: Self = Self { bases: None, line: None, source: None };

    /// Whether the kernel keeps time by ticks, as it said within a second before `now`. It may give them up at any
    /// time, when it finds that processors disagree; and the host may have forbidden to read them.
    fn may_read_ticks(&mut self, now: Nanos) -> bool {
        let fresh = self.source.filter(|(asked, _)| now >= *asked && now.since(*asked) < BASE.0);
        let (_, counts) = *self.source.insert(fresh.unwrap_or_else(|| (now, kernel_counts_ticks())));
        if !counts {
            (self.bases, self.line) = (None, None);
        }
        counts
    }

    /// The line to follow from this moment on; `None`: there is none yet.
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

    /// Begins anew at this moment.
    fn begin(&mut self, moment: Moment) -> Option<Line> {
        (self.bases, self.line) = (Some([moment; 2]), None);
        None
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

    /// The time at these ticks, which are not read where there is no line. `None`: they are not on it, or it is just
    /// being written.
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
        // At most `MAX_LINE_AGE`, a number of 28 bits, with `POINT` more below it; anything if these are of two lines.
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

/// The processor's counter. It may be read a few instructions early, which is less than a line is off.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it; where the kernel keeps time by it, the C library's clock reads it too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    0
}

/// Whether the kernel keeps time by what [`ticks`] counts. It does where the counter runs at one speed, on all
/// processors alike; a guest whose host keeps time by other means does not.
fn kernel_counts_ticks() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64") && fs::read_to_string(source).is_ok_and(|source| source.trim() == "tsc")
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
        shared.at(|| ticks)
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
    fn where_there_is_no_line_ticks_are_not_read() {
        assert_eq!(Shared::new().at(|| panic!("some host forbids it")), None);
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

    /// The machine slept for an hour. What the counter did meanwhile depends on the processor.
    #[test]
    fn after_a_suspend_no_line_is_followed_but_by_a_counter_that_stood_still_and_then_till_the_next_visit() {
        let mut course = Course::NEW;
        let hour = 3_600_000_000_000;
        course.go_on(moment(0));
        let line = course.go_on(moment(5_000_000)).unwrap();
        assert_eq!(at(&line, moment(5_000_000 + hour).ticks), None, "it counted on");
        assert_eq!(at(&line, 100), None, "it began anew");
        // It stood still: who asks before the collector comes is told the time before.
        let woken = after_step(7_000_000, hour);
        assert_eq!(at(&line, woken.ticks), Some(moment(7_000_000).time));
        assert!(course.go_on(woken).is_none(), "the collector finds the clock elsewhere");
        let line = course.go_on(after_step(12_000_000, hour)).unwrap();
        let later = after_step(13_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // It begins anew, and the collector comes: the old line and its base are gone.
        assert!(course.go_on(Moment { ticks: 200, ..later }).is_none());
    }

    #[test]
    fn visits_in_quick_succession_and_long_pauses_are_no_reason_to_doubt_the_line() {
        let mut course = Course::NEW;
        let first = course.go_on(moment(0)).or(course.go_on(moment(50_000)));
        assert!(first.is_none(), "too soon to know a speed");
        for visit in 1..1000 {
            // Read 15 ns late every other time.
            let (pauses, soon) = (visit / 2 + 1, visit % 2);
            let moment_of = pauses * 80_000_000 + soon * 50_000;
            let line = course.go_on(after_step(moment_of, 15 * soon)).expect("a line");
            let last = moment(moment_of + line.length / 2 - 1);
            let off = at(&line, last.ticks).unwrap().0.abs_diff(last.time.0);
            assert!(off <= 75, "{off} ns at visit {visit}");
        }
    }

    #[test]
    fn a_small_step_before_the_second_visit_is_forgotten_by_the_third() {
        let mut course = Course::NEW;
        course.go_on(moment(0));
        course.go_on(moment(2_000_000));
        // Twenty times as late as the line is long: as far off as that may be, this shows only then.
        course.go_on(after_step(42_000_000, 19_000));
        let line =
            course.go_on(after_step(122_000_000, 19_000)).or(course.go_on(after_step(202_000_000, 19_000)));
        let last = after_step(210_000_000, 19_000);
        let off = at(&line.expect("a line"), last.ticks).unwrap().0.abs_diff(last.time.0);
        assert!(off < MAX_ERROR_NS, "{off} ns");
    }

    #[test]
    fn a_kernel_that_gives_ticks_up_is_believed_within_a_second() {
        let mut course = Course { source: Some((Nanos(500), true)), ..Course::NEW };
        course.go_on(moment(0));
        course.go_on(moment(5_000_000));
        assert!(course.may_read_ticks(Nanos(BASE.0 + 499)));
        course.source = Some((Nanos(500), false));
        assert!(!course.may_read_ticks(Nanos(600)));
        assert!(course.line.is_none() && course.bases.is_none());
        // Asked again, it says how it is.
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
            followed += usize::from(LINE.at(ticks).is_some());
            let (before, time, after) = (ask(), now(), ask());
            // A hundred times what it is off, for a kernel that is just correcting its clock.
            let near = before.0 - 10 * MAX_ERROR_NS..=after.0 + 10 * MAX_ERROR_NS;
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
