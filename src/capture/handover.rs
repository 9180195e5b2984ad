//! Passing things between threads without waiting: nobody spins until another thread has done what it began.
//!
//! A queue that has its places stamped makes whoever comes wait for the one who has claimed a place and not stamped it
//! yet. If that one has lost its processor to the one who waits, as under `SCHED_FIFO` on one core, neither goes on.

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A few things that lie ready, in any order.
pub(super) struct Shelf<T, const PLACES: usize> {
    places: [Place<T>; PLACES],
}

struct Place<T> {
    state: AtomicU8,
    thing: UnsafeCell<Option<T>>,
}

/// What a place's state says. Whoever has made it `HELD` has the place to itself; others pass it over.
const EMPTY: u8 = 0;
const HELD: u8 = 1;
const FULL: u8 = 2;

// SAFETY: a thing is touched only by the one thread that has made its place `HELD`.
unsafe impl<T: Send, const PLACES: usize> Sync for Shelf<T, PLACES> {}

impl<T, const PLACES: usize> Shelf<T, PLACES> {
    pub(super) const fn new() -> Self {
        Self {
            places: [const { Place { state: AtomicU8::new(EMPTY), thing: UnsafeCell::new(None) } }; PLACES],
        }
    }

    /// One of them, if any lies ready.
    pub(super) fn take(&self) -> Option<T> {
        let place = self.places.iter().find(|place| place.turn(FULL, HELD))?;
        // SAFETY: this thread holds the place.
        let thing = unsafe { (*place.thing.get()).take() };
        place.state.store(EMPTY, Ordering::Release);
        thing
    }

    /// Lays a thing there, or gives it back: there is no place.
    pub(super) fn put(&self, thing: T) -> Result<(), T> {
        let Some(place) = self.places.iter().find(|place| place.turn(EMPTY, HELD)) else { return Err(thing) };
        // SAFETY: this thread holds the place.
        unsafe { *place.thing.get() = Some(thing) };
        place.state.store(FULL, Ordering::Release);
        Ok(())
    }
}

impl<T> Place<T> {
    fn turn(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// Things that any thread leaves for one that takes them all at once.
pub(super) struct Tray<T> {
    /// The one that was left last.
    last: AtomicPtr<Left<T>>,
}

struct Left<T> {
    thing: T,
    before: *mut Left<T>,
}

// SAFETY: the tray owns what lies on it, and hands each thing to one thread.
unsafe impl<T: Send> Sync for Tray<T> {}

impl<T> Tray<T> {
    pub(super) const fn new() -> Self {
        Self { last: AtomicPtr::new(null_mut()) }
    }

    /// Leaves a thing. Tried again only when another thread has left one meanwhile.
    pub(super) fn leave(&self, thing: T) {
        let left = Box::into_raw(Box::new(Left { thing, before: null_mut() }));
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: nobody else knows it before the exchange below.
            unsafe { (*left).before = last };
            match self.last.compare_exchange_weak(last, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// All that was left, the oldest last.
    pub(super) fn take_all(&self) -> impl Iterator<Item = T> {
        let mut at = self.last.swap(null_mut(), Ordering::Acquire);
        std::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: `leave` made it from a box, and the swap took it from everybody else.
            let Left { thing, before } = *unsafe { Box::from_raw(at) };
            at = before;
            Some(thing)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_somebody_holds_is_passed_over() {
        let shelf = Shelf::<u32, 3>::new();
        assert_eq!(
            (shelf.put(1), shelf.put(2), shelf.put(3), shelf.put(4)),
            (Ok(()), Ok(()), Ok(()), Err(4))
        );
        // Its thread has lost its processor with the first place in its hands.
        assert!(shelf.places[0].turn(FULL, HELD));
        assert_eq!((shelf.take(), shelf.take(), shelf.take()), (Some(2), Some(3), None));
        assert_eq!((shelf.put(5), shelf.put(6), shelf.put(7)), (Ok(()), Ok(()), Err(7)));
        shelf.places[0].state.store(FULL, Ordering::Release);
        assert_eq!(
            (shelf.take(), shelf.take(), shelf.take(), shelf.take()),
            (Some(1), Some(5), Some(6), None)
        );
    }

    #[test]
    fn what_four_threads_leave_is_taken_once_and_in_the_order_of_each() {
        const EACH: u32 = 20_000;
        let tray = Tray::new();
        let mut seen = [0; 4];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tray = &tray;
                scope.spawn(move || (0..EACH).for_each(|n| tray.leave((thread, n))));
            }
            while seen != [EACH; 4] {
                let mut all: Vec<_> = tray.take_all().collect();
                all.reverse();
                for (thread, n) in all {
                    assert_eq!(n, seen[thread]);
                    seen[thread] += 1;
                }
            }
        });
        assert_eq!(tray.take_all().count(), 0);
    }
}
