//! Hand-over between threads in which no thread waits for another to finish a step.
//!
//! A bounded queue with per-slot sequence numbers does not have this property, because a thread that finds a slot
//! claimed but not yet published has to spin. If the spinning thread has preempted the thread that claimed the slot, as
//! under `SCHED_FIFO` on one core, neither of the two makes progress.

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A small pool of items, in no particular order.
pub(super) struct Shelf<T, const PLACES: usize> {
    places: [Place<T>; PLACES],
}

struct Place<T> {
    state: AtomicU8,
    thing: UnsafeCell<Option<T>>,
}

/// States of a place. The thread that has changed it to `HELD` owns the place; all other threads skip it.
const EMPTY: u8 = 0;
const HELD: u8 = 1;
const FULL: u8 = 2;

// SAFETY: an item is accessed only by the thread that has changed the state of the item's place to `HELD`.
unsafe impl<T: Send, const PLACES: usize> Sync for Shelf<T, PLACES> {}

impl<T, const PLACES: usize> Shelf<T, PLACES> {
    pub(super) const fn new() -> Self {
        Self {
            places: [const { Place { state: AtomicU8::new(EMPTY), thing: UnsafeCell::new(None) } }; PLACES],
        }
    }

    /// Takes an item, if one is available.
    pub(super) fn take(&self) -> Option<T> {
        let place = self.places.iter().find(|place| place.turn(FULL, HELD))?;
        // SAFETY: this thread holds the place.
        let thing = unsafe { (*place.thing.get()).take() };
        place.state.store(EMPTY, Ordering::Release);
        thing
    }

    /// Stores an item, or returns it if there is no free place.
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

/// A lock-free stack of items. Any thread can push an item; one thread takes all items at once.
pub(super) struct Tray<T> {
    /// The item pushed last.
    last: AtomicPtr<Left<T>>,
}

struct Left<T> {
    thing: T,
    before: *mut Left<T>,
}

// SAFETY: the tray owns its items, and passes each item to only one thread.
unsafe impl<T: Send> Sync for Tray<T> {}

impl<T> Tray<T> {
    pub(super) const fn new() -> Self {
        Self { last: AtomicPtr::new(null_mut()) }
    }

    /// Pushes an item. Retries only if another thread has pushed an item in the meantime.
    pub(super) fn leave(&self, thing: T) {
        let left = Box::into_raw(Box::new(Left { thing, before: null_mut() }));
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: no other thread knows the node before the exchange below.
            unsafe { (*left).before = last };
            match self.last.compare_exchange_weak(last, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Takes all items, newest first.
    pub(super) fn take_all(&self) -> impl Iterator<Item = T> {
        let mut at = self.last.swap(null_mut(), Ordering::Acquire);
        std::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: `leave` created the node from a box, and the swap removed the node from the shared list.
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
    fn a_slot_held_by_a_preempted_thread_is_skipped() {
        let shelf = Shelf::<u32, 3>::new();
        assert_eq!(
            (shelf.put(1), shelf.put(2), shelf.put(3), shelf.put(4)),
            (Ok(()), Ok(()), Ok(()), Err(4))
        );
        // Simulates a thread that was preempted while it held the first place.
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
    fn items_pushed_by_four_threads_are_taken_once_in_each_threads_order() {
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
