//! The clock function that a client registers instead of CUPTI's default clock. Activity records of API calls have
//! timestamps from this clock. GPU times are converted to this clock by pairs of readings of both clocks, as in CUPTI.
//! The unit of a client's clock is arbitrary; for example, Kineto's clock counts processor ticks.

use crate::link;
use gpusim_core::clock;
use gpusim_core::sync::lock;
use gpusim_core::table::ClientClock;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Readings of the client's clock and of the simulation's clock at the same time.
#[derive(Clone, Copy, Debug)]
struct Pair {
    ours: u64,
    client: u64,
}

/// Conversion of times to the client's clock. The conversion starts from the latest pair of readings, and uses the rate
/// that was measured since the first pair.
#[derive(Clone, Copy, Debug)]
struct Conversion {
    clock: ClientClock,
    first: Pair,
    latest: Pair,
    /// Units of the client's clock per nanosecond.
    rate: f64,
}

static CONVERSION: Mutex<Option<Conversion>> = Mutex::new(None);

/// Largest difference between the rates of the client's clock and the simulation's clock at which the client's clock is
/// still assumed to count nanoseconds. The first measured rate has some noise, and the simulation's clock may be
/// slewed. No real clock has a unit that is close to a nanosecond but not equal to it.
const ALIKE: f64 = 0.01;
/// Age in ns at which a new pair of readings replaces the latest pair, and the period over which the first rate is
/// measured.
const STALE: u64 = 1_000_000;

/// Reads both clocks a few times and returns the pair with the shortest reading time.
fn pair(clock: ClientClock) -> Pair {
    let attempt = |_| {
        let before = clock::realtime();
        let client = clock();
        let took = clock::realtime() - before;
        (took, Pair { ours: before + took / 2, client })
    };
    (0..8).map(attempt).min_by_key(|(took, _)| *took).expect("there were tries").1
}

fn rate(first: Pair, latest: Pair) -> f64 {
    let rate = (latest.client as f64 - first.client as f64) / (latest.ours as f64 - first.ours as f64);
    if (rate - 1.0).abs() < ALIKE { 1.0 } else { rate }
}

/// Registers `clock` as the client's clock.
pub(crate) fn register(clock: ClientClock) {
    let first = pair(clock);
    while clock::realtime() < first.ours + STALE {
        std::hint::spin_loop();
    }
    let latest = pair(clock);
    let rate = rate(first, latest);
    // If the client's clock counts nanoseconds, it differs from the simulation's clock only by a constant, so durations
    // stay exact.
    let latest = if rate == 1.0 { first } else { latest };
    *lock(&CONVERSION) = Some(Conversion { clock, first, latest, rate });
    if let Some(core) = link::core() {
        core.switches.client_clock.store(clock as usize, Relaxed);
    }
}

/// Converts times to the client's clock. The time 0 stays 0, because 0 means that the time is unknown.
pub(crate) fn converted<const N: usize>(times: [u64; N]) -> [u64; N] {
    match &mut *lock(&CONVERSION) {
        None => times,
        Some(conversion) => {
            conversion.renew();
            times.map(|time| if time == 0 { 0 } else { conversion.convert(time) })
        }
    }
}

impl Conversion {
    fn renew(&mut self) {
        if self.rate != 1.0 && clock::realtime() > self.latest.ours + STALE {
            self.latest = pair(self.clock);
            self.rate = rate(self.first, self.latest);
        }
    }

    fn convert(&self, time: u64) -> u64 {
        let since = time as i64 - self.latest.ours as i64;
        let ticks = if self.rate == 1.0 { since } else { (since as f64 * self.rate).round() as i64 };
        self.latest.client.wrapping_add_signed(ticks)
    }
}
