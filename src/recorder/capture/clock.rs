//! Determines the current `CLOCK_REALTIME` at a low cost. CUPTI's activity times use the same clock. The time is
//! extrapolated from the processor's time-stamp counter (TSC). The cost of reading the clock matters because each
//! launch reads the clock twice.
//!
//! Reading the clock through the C library takes 21 to 30 ns, but reading the TSC takes 11 ns. Therefore each time that
//! the collector wakes up (a "visit"), it reads both the clock and the TSC, and fits a straight line that maps TSC
//! ticks to times. A callback reads the TSC, and converts the ticks to a time with the collector's line. If no line is
//! valid, the callback reads the clock through the C library. No line is valid at the start of a session, just after
//! the clock was set, or if the collector's last visit was over 250 ms ago. If the kernel does not use the TSC to keep
//! time, no line is ever fitted.
//!
//! A time that is computed from the line differs from the clock's time by at most 0.1 us. The difference can be larger
//! if the clock was set, if the clock's speed was adjusted, or if the TSC stopped because the machine was suspended. In
//! each of these cases, callbacks use the old line until the collector's next visit, which may be up to 80 ms later.
//! When a new line replaces the old line, a thread may see time go backwards by the difference between the two lines.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use gpuflame_model::record::Nanos;

/// Maximum age of the line that maps TSC ticks to times. If the collector's last visit was longer ago than this, the
/// clock may have been set since that visit.
const MAX_LINE_AGE: Nanos = Nanos(250_000_000);
/// Minimum number of TSC ticks between the two readings that determine the speed of a line (its slope, in ns per tick).
/// This number of ticks takes about one millisecond.
const MIN_BASE_TICKS: u64 = 1 << 21;
/// A line stays valid for a limited number of ticks: this constant times the number of ticks over which the line's
/// speed was measured. Within this limit, an error of 15 ns in a reading grows to an error of at most 60 ns.
const EXTRAPOLATION_FACTOR: u64 = 4;
/// Minimum time between the two readings from which a line's speed is computed, except at the start of the session. The
/// maximum time between these two readings is twice as long as the minimum.
const MIN_BASELINE: Nanos = Nanos(1_000_000_000);
/// Maximum difference in ns between the line and a later reading of the clock, if the reading is taken soon after the
/// line's start. The allowed difference grows by this amount for every `measured` ticks after the line's start. If the
/// difference between a reading and the line is larger, the clock was set or its speed has changed.
const MAX_ERROR_NS: u64 = 1000;
/// Maximum number of TSC ticks between the two TSC reads that are made just before and after a read of the clock.
/// Usually, 80 ticks pass between the two TSC reads. If more ticks than this maximum pass, the thread was preempted
/// between the two TSC reads.
const MAX_READ_GAP_TICKS: u64 = 400;
/// Maximum number of attempts to read the TSC and the clock at the same moment. The attempt with the fewest ticks
/// between its two TSC reads provides the result.
const MAX_ATTEMPTS: usize = 4;
/// Number of fractional bits in the speed (slope) of a line, which is in ns per tick.
const FRACTION_BITS: u32 = 32;

/// Returns the current `CLOCK_REALTIME`, with an error of at most 0.1 us. One call of this function takes 12 ns.
#[inline]
pub fn now() -> Nanos {
    LINE.convert(read_tsc).unwrap_or_else(read_realtime)
}

/// Reads the TSC and the clock, and publishes a new line for the callbacks. Call this function regularly, but never on
/// the hot path.
pub fn recalibrate_clock() {
    static CALIBRATION: Mutex<ClockCalibration> = Mutex::new(ClockCalibration::NEW);
    let Some(mut calibration) = CALIBRATION.try_lock() else { return };
    if !calibration.can_use_tsc(read_realtime()) {
        LINE.write(&TscToRealtime::NONE);
    } else if let Some(reading) = ClockReading::now() {
        LINE.write(&calibration.add_reading(reading).unwrap_or(TscToRealtime::NONE));
    }
}

/// A reading of the TSC and the clock at the same moment.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    ticks: u64,
    time: Nanos,
}

impl ClockReading {
    const ZERO: Self = Self { ticks: 0, time: Nanos(0) };

    /// Reads the TSC and the clock. Every attempt may fail because the thread was preempted between the two TSC reads;
    /// if so, returns `None`.
    fn now() -> Option<Self> {
        let attempts = (0..MAX_ATTEMPTS).filter_map(|_| {
            let before = read_tsc();
            let time = read_realtime();
            let gap = read_tsc().checked_sub(before).filter(|gap| *gap <= MAX_READ_GAP_TICKS)?;
            Some((gap, Self { ticks: before + gap / 2, time }))
        });
        attempts.min_by_key(|(gap, _)| *gap).map(|(_, reading)| reading)
    }
}

/// Line that maps TSC ticks to times, starting at the reading `from`.
#[derive(Clone, Copy, Debug)]
struct TscToRealtime {
    from: ClockReading,
    /// Speed (slope) of the line in nanoseconds per tick, with [`FRACTION_BITS`] fractional bits.
    speed: u64,
    /// Number of ticks over which the speed of the line was measured.
    measured: u64,
    /// Number of ticks for which the line is valid.
    length: u64,
}

impl TscToRealtime {
    /// A line that is valid at no tick.
    const NONE: Self = Self { from: ClockReading::ZERO, speed: 0, measured: 0, length: 0 };

    /// Creates a line that starts at the reading `to` and has the speed measured between the two given readings.
    /// Returns `None` if the TSC or the clock stood still or went back between the two readings.
    fn fit(from: ClockReading, to: ClockReading) -> Option<Self> {
        let ticks = to.ticks.checked_sub(from.ticks)?;
        let time = to.time.0.checked_sub(from.time.0)?;
        let speed = (u128::from(time) << FRACTION_BITS).checked_div(u128::from(ticks))?;
        let longest = (u128::from(MAX_LINE_AGE.0) << FRACTION_BITS).checked_div(speed)?;
        let length = u64::try_from(longest).ok()?.min(ticks.saturating_mul(EXTRAPOLATION_FACTOR));
        Some(Self { from: to, speed: u64::try_from(speed).ok()?, measured: ticks, length })
    }

    /// Whether `reading` differs so much from the line that the clock was set or its speed has changed. The reading may
    /// have been taken at any time after the line was fitted.
    fn deviates(&self, reading: ClockReading) -> bool {
        let passed = i128::from(reading.ticks) - i128::from(self.from.ticks);
        let expected = i128::from(self.from.time.0) + ((passed * i128::from(self.speed)) >> FRACTION_BITS);
        let off = expected.abs_diff(i128::from(reading.time.0));
        off > u128::from(MAX_ERROR_NS) * (1 + passed.unsigned_abs() / u128::from(self.measured))
    }
}

/// State of the calibration: the earlier readings of the clock and the TSC, from which lines are fitted.
#[derive(Debug)]
struct ClockCalibration {
    /// Two earlier readings, from which the speeds of new lines are measured. The speed of a new line is measured
    /// between the first of these two readings and the newest reading. Once the second of these readings is at least
    /// `MIN_BASELINE` old, it becomes the first reading.
    baselines: Option<[ClockReading; 2]>,
    line: Option<TscToRealtime>,
    /// Time of the last query of the kernel's clock source, and whether the source was the TSC at that time.
    clock_source: Option<(Nanos, bool)>,
}

impl ClockCalibration {
    const NEW: Self = Self { baselines: None, line: None, clock_source: None };

    /// Whether the kernel uses the TSC to keep time. This answer is renewed after a second, because the kernel may
    /// abandon the TSC at any time if the TSCs of the processors disagree. A virtual machine's host can also forbid the
    /// machine to read the TSC.
    fn can_use_tsc(&mut self, now: Nanos) -> bool {
        let fresh =
            self.clock_source.filter(|(queried, _)| now >= *queried && now.since(*queried) < MIN_BASELINE.0);
        let (_, uses_tsc) = *self.clock_source.insert(fresh.unwrap_or_else(|| (now, kernel_uses_tsc())));
        if !uses_tsc {
            (self.baselines, self.line) = (None, None);
        }
        uses_tsc
    }

    /// Adds a reading of the TSC and the clock. Returns the new line for callbacks, or `None` if no line can be fitted
    /// yet.
    fn add_reading(&mut self, reading: ClockReading) -> Option<TscToRealtime> {
        let has_deviated = self.line.is_some_and(|line| line.deviates(reading));
        let Some([baseline, next]) = self.baselines.filter(|_| !has_deviated) else {
            return self.restart(reading);
        };
        if reading.ticks.wrapping_sub(baseline.ticks) >= MIN_BASE_TICKS {
            let Some(line) = TscToRealtime::fit(baseline, reading) else { return self.restart(reading) };
            self.line = Some(line);
        }
        if reading.time.since(next.time) >= MIN_BASELINE.0 {
            self.baselines = Some([next, reading]);
        }
        self.line
    }

    /// Restarts the calibration with `reading` as the first reading. Always returns `None`, because fitting a line
    /// needs a second reading.
    fn restart(&mut self, reading: ClockReading) -> Option<TscToRealtime> {
        (self.baselines, self.line) = (Some([reading; 2]), None);
        None
    }
}

/// The line with which callbacks convert TSC ticks to times. A sequence lock protects the shared line. Only one thread
/// writes the line, and reading threads never wait. Each write increases the sequence number twice, and the number is
/// odd during a write.
#[repr(align(64))]
struct SharedLine {
    sequence: AtomicU64,
    ticks: AtomicU64,
    time: AtomicU64,
    speed: AtomicU64,
    length: AtomicU64,
}

static LINE: SharedLine = SharedLine::new();

impl SharedLine {
    /// Creates a shared line that is valid at no tick.
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            time: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            length: AtomicU64::new(0),
        }
    }

    /// Calls `ticks` to read the TSC, and converts the ticks to a time. Returns `None` if no line was published, if the
    /// line is not valid at this tick, or if a thread is writing the line. If no line was published, `ticks` is not
    /// called.
    #[inline]
    fn convert(&self, ticks: impl FnOnce() -> u64) -> Option<Nanos> {
        let before = self.sequence.load(Ordering::Acquire);
        let length = self.length.load(Ordering::Relaxed);
        if length == 0 {
            return None;
        }
        let passed = ticks().wrapping_sub(self.ticks.load(Ordering::Relaxed));
        if passed >= length {
            return None;
        }
        // For a valid line, the product has at most 28 bits (`MAX_LINE_AGE`) plus `FRACTION_BITS` fractional bits. If
        // the loads above have mixed the memory words of two lines, the product can have any value, so the
        // multiplication wraps.
        let passed = passed.wrapping_mul(self.speed.load(Ordering::Relaxed)) >> FRACTION_BITS;
        let time = self.time.load(Ordering::Relaxed).wrapping_add(passed);
        // This fence prevents the loads above from moving below the following load of the sequence number. The sequence
        // number shows whether all loaded memory words belong to the same line.
        fence(Ordering::Acquire);
        let is_consistent = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        is_consistent.then_some(Nanos(time))
    }

    fn write(&self, line: &TscToRealtime) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        // Because of this fence, if a reader sees a word that is stored below, the reader also sees the odd sequence
        // number.
        fence(Ordering::Release);
        self.ticks.store(line.from.ticks, Ordering::Relaxed);
        self.time.store(line.from.time.0, Ordering::Relaxed);
        self.speed.store(line.speed, Ordering::Relaxed);
        self.length.store(line.length, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }
}

/// Reads the clock through the C library. The read takes only 21 to 30 ns, because the C library reads the clock
/// through the vDSO, without a system call.
#[inline]
fn read_realtime() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` has room for one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Reads the TSC. The processor may execute the TSC read a few instructions too early. The error that results from an
/// early read is smaller than the error of a line.
#[cfg(target_arch = "x86_64")]
#[inline]
fn read_tsc() -> u64 {
    // SAFETY: every x86-64 processor has a TSC. This function is called only if the kernel keeps time with the TSC, in
    // which case the C library's clock reads the TSC too.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read_tsc() -> u64 {
    0
}

/// Whether the kernel uses the TSC to keep time. The kernel uses the TSC if the TSC's speed is constant and equal on
/// all processors. In a virtual machine, the kernel does not use the TSC if the host provides another clock.
fn kernel_uses_tsc() -> bool {
    let clock_source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && fs::read_to_string(clock_source).is_ok_and(|clock_source| clock_source.trim() == "tsc")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Returns a simulated reading of the TSC and the clock, `nanos` ns after the start. At the start, the clock shows
    /// 1,000,000 ns and the TSC shows 7,000. In this simulation, the TSC runs at 2 GHz.
    fn reading(nanos: u64) -> ClockReading {
        ClockReading { ticks: 7000 + 2 * nanos, time: Nanos(1_000_000 + nanos) }
    }

    /// Returns the reading that would be taken `nanos` ns after the start if the clock had been set forward by `step`
    /// ns.
    fn after_step(nanos: u64, step: u64) -> ClockReading {
        let reading = reading(nanos);
        ClockReading { time: Nanos(reading.time.0 + step), ..reading }
    }

    /// Returns the time that a callback computes from the line when the TSC shows `ticks`.
    fn at(line: &TscToRealtime, ticks: u64) -> Option<Nanos> {
        let shared = SharedLine::new();
        shared.write(line);
        shared.convert(|| ticks)
    }

    #[test]
    fn the_second_reading_yields_a_line_valid_for_four_times_its_span() {
        let mut calibration = ClockCalibration::NEW;
        assert!(calibration.add_reading(reading(0)).is_none());
        let line = calibration.add_reading(reading(5_000_000)).unwrap();
        assert_eq!(at(&line, reading(5_000_000).ticks), Some(Nanos(6_000_000)));
        let last = reading(24_999_999);
        assert_eq!(at(&line, last.ticks), Some(last.time));
        assert_eq!(at(&line, reading(25_000_000).ticks), None);
        assert_eq!(at(&line, reading(4_999_999).ticks), None, "before the line");
    }

    #[test]
    fn ticks_are_not_read_without_a_line() {
        assert_eq!(SharedLine::new().convert(|| panic!("a host may forbid to read the TSC")), None);
    }

    #[test]
    fn a_line_is_valid_for_at_most_a_quarter_of_a_second() {
        let mut calibration = ClockCalibration::NEW;
        calibration.add_reading(reading(0));
        let line = calibration.add_reading(reading(3_000_000_000)).unwrap();
        assert!(at(&line, reading(3_249_000_000).ticks).is_some());
        assert!(at(&line, reading(3_251_000_000).ticks).is_none());
    }

    #[test]
    fn a_clock_step_drops_the_line_until_the_next_reading() {
        let mut calibration = ClockCalibration::NEW;
        let hour = 3_600_000_000_000;
        calibration.add_reading(reading(0));
        assert!(calibration.add_reading(reading(5_000_000)).is_some());
        assert!(calibration.add_reading(after_step(10_000_000, hour)).is_none());
        let line = calibration.add_reading(after_step(15_000_000, hour)).unwrap();
        let later = after_step(16_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // In this test, the clock is set back to its original time between two visits of the collector.
        assert!(calibration.add_reading(reading(9_000_000_000)).is_none());
    }

    /// Simulates a machine that was suspended for an hour. Depending on the processor, the TSC continues or stops
    /// during the suspend, or restarts from 0 after the suspend.
    #[test]
    fn after_a_suspend_the_line_is_used_only_if_the_counter_stopped() {
        let mut calibration = ClockCalibration::NEW;
        let hour = 3_600_000_000_000;
        calibration.add_reading(reading(0));
        let line = calibration.add_reading(reading(5_000_000)).unwrap();
        assert_eq!(at(&line, reading(5_000_000 + hour).ticks), None, "the counter continued");
        assert_eq!(at(&line, 100), None, "the counter restarted");
        // If the TSC stopped during the suspend, callbacks get times from before the suspend until the collector's next
        // visit.
        let woken = after_step(7_000_000, hour);
        assert_eq!(at(&line, woken.ticks), Some(reading(7_000_000).time));
        assert!(calibration.add_reading(woken).is_none(), "the reading is too far from the line");
        let line = calibration.add_reading(after_step(12_000_000, hour)).unwrap();
        let later = after_step(13_000_000, hour);
        assert_eq!(at(&line, later.ticks), Some(later.time));
        // If the TSC restarted after the suspend, the collector drops the old line and its readings on the next visit.
        assert!(calibration.add_reading(ClockReading { ticks: 200, ..later }).is_none());
    }

    #[test]
    fn the_line_stays_accurate_with_rapid_visits_and_long_pauses() {
        let mut calibration = ClockCalibration::NEW;
        let first = calibration.add_reading(reading(0)).or(calibration.add_reading(reading(50_000)));
        assert!(first.is_none(), "too early to measure a speed");
        for visit in 1..1000 {
            // In this test, every other reading of the clock is 15 ns too late.
            let (pauses, soon) = (visit / 2 + 1, visit % 2);
            let moment_of = pauses * 80_000_000 + soon * 50_000;
            let line = calibration.add_reading(after_step(moment_of, 15 * soon)).expect("a line");
            let last = reading(moment_of + line.length / 2 - 1);
            let off = at(&line, last.ticks).unwrap().0.abs_diff(last.time.0);
            assert!(off <= 75, "{off} ns at visit {visit}");
        }
    }

    #[test]
    fn the_line_is_accurate_again_soon_after_a_small_early_clock_step() {
        let mut calibration = ClockCalibration::NEW;
        calibration.add_reading(reading(0));
        calibration.add_reading(reading(2_000_000));
        // The line's speed was measured over 2 ms, and this reading is taken 40 ms later. If less time had passed, the
        // difference between this reading and the line would be too small to be detected.
        calibration.add_reading(after_step(42_000_000, 19_000));
        let line = calibration
            .add_reading(after_step(122_000_000, 19_000))
            .or(calibration.add_reading(after_step(202_000_000, 19_000)));
        let last = after_step(210_000_000, 19_000);
        let off = at(&line.expect("a line"), last.ticks).unwrap().0.abs_diff(last.time.0);
        assert!(off < MAX_ERROR_NS, "{off} ns");
    }

    #[test]
    fn the_line_is_dropped_once_the_kernel_stops_using_the_tsc() {
        let mut calibration =
            ClockCalibration { clock_source: Some((Nanos(500), true)), ..ClockCalibration::NEW };
        calibration.add_reading(reading(0));
        calibration.add_reading(reading(5_000_000));
        assert!(calibration.can_use_tsc(Nanos(MIN_BASELINE.0 + 499)));
        calibration.clock_source = Some((Nanos(500), false));
        assert!(!calibration.can_use_tsc(Nanos(600)));
        assert!(calibration.line.is_none() && calibration.baselines.is_none());
        // More than a second later, the function queries the kernel again and returns the current answer.
        assert_eq!(calibration.can_use_tsc(Nanos(MIN_BASELINE.0 + 500)), kernel_uses_tsc());
        assert_eq!(calibration.clock_source.map(|(queried, _)| queried), Some(Nanos(MIN_BASELINE.0 + 500)));
        assert_eq!(calibration.can_use_tsc(Nanos(3)), kernel_uses_tsc(), "the clock was set back");
        assert_eq!(calibration.clock_source.map(|(queried, _)| queried), Some(Nanos(3)));
    }

    #[test]
    fn a_base_is_one_to_two_seconds_old() {
        let mut calibration = ClockCalibration::NEW;
        for visit in 0..100_u64 {
            let at = visit * 80_000_000;
            calibration.add_reading(reading(at));
            let age = at - (calibration.baselines.unwrap()[0].time.0 - 1_000_000);
            assert!(age <= 2_200_000_000 && (age >= 1_000_000_000 || at < 2_000_000_000), "{age} at {at}");
        }
    }

    #[test]
    fn clocks_that_stop_or_run_backwards_give_no_line() {
        assert!(TscToRealtime::fit(reading(5), reading(5)).is_none());
        assert!(TscToRealtime::fit(reading(5), reading(4)).is_none());
        let back = ClockReading { time: Nanos(0), ..reading(6) };
        assert!(TscToRealtime::fit(reading(5), back).is_none());
        let still = ClockReading { ticks: 9_000_000, ..reading(5) };
        assert!(TscToRealtime::fit(reading(5), still).is_none());
    }

    #[test]
    fn timestamps_agree_with_the_c_librarys_clock() {
        let mut followed = 0;
        for visit in 0..300 {
            if visit % 10 == 0 {
                recalibrate_clock();
            }
            followed += usize::from(LINE.convert(read_tsc).is_some());
            let (before, time, after) = (read_realtime(), now(), read_realtime());
            // The test allows ten times the maximum error, because the kernel may be adjusting the speed of its clock.
            let near = before.0 - 10 * MAX_ERROR_NS..=after.0 + 10 * MAX_ERROR_NS;
            assert!(near.contains(&time.0), "{time} is not in {near:?}");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!kernel_uses_tsc() || followed > 100, "{followed} of 300 on a line");
    }

    #[test]
    fn a_line_read_during_a_write_is_discarded() {
        let (shared, enough) = (SharedLine::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in (1..=4000).cycle().take_while(|_| !enough.load(Ordering::Relaxed)) {
                    // For each n, the line converts tick 100,000 to the time n + (100,000 - n) * n.
                    let from = ClockReading { ticks: n, time: Nanos(n) };
                    shared.write(&TscToRealtime {
                        from,
                        speed: n << FRACTION_BITS,
                        measured: n,
                        length: 1 << 20,
                    });
                }
            });
            let times = std::iter::from_fn(|| Some(shared.convert(|| 100_000))).flatten().take(2_000_000);
            // Solves time = n * (100,001 - n) for n.
            let half = 100_001.0 / 2.0;
            let torn = times.map(|time| time.0).find(|&time| {
                let n = (half - f64::sqrt(half * half - time as f64)).round() as u64;
                time != n * (100_001 - n)
            });
            enough.store(true, Ordering::Relaxed);
            assert_eq!(torn, None, "this time is on no line");
        });
    }
}
