//! Containers that pass items from one thread to another. No thread waits for another thread to finish a step.
//!
//! The alternative is a bounded queue with a sequence number per slot, which would make threads wait. In such a queue,
//! if a thread finds a slot that is claimed but not yet published, the thread has to spin. The spinning thread may have
//! preempted the thread that claimed the slot. Such a preemption happens under `SCHED_FIFO` on one core. After such a
//! preemption under `SCHED_FIFO`, neither the spinning thread nor the claiming thread ever makes progress.

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A small pool of items, which have no particular order.
pub(super) struct SlotPool<T, const SLOTS: usize> {
    slots: [PoolSlot<T>; SLOTS],
}

struct PoolSlot<T> {
    state: AtomicU8,
    item: UnsafeCell<Option<T>>,
}

/// Possible states of a slot in the pool. The thread that changes a slot's state to `HELD` owns the slot until it
/// stores another state. Threads other than the owner skip the slot.
const EMPTY: u8 = 0;
const HELD: u8 = 1;
const FULL: u8 = 2;

// SAFETY: only the thread that has changed the state of a slot to `HELD` accesses the item in the slot.
unsafe impl<T: Send, const SLOTS: usize> Sync for SlotPool<T, SLOTS> {}

impl<T, const SLOTS: usize> SlotPool<T, SLOTS> {
    pub(super) const fn new() -> Self {
        Self {
            slots: [const { PoolSlot { state: AtomicU8::new(EMPTY), item: UnsafeCell::new(None) } }; SLOTS],
        }
    }

    /// Takes an item from the pool. Returns `None` if no item is available.
    pub(super) fn take(&self) -> Option<T> {
        let slot = self.slots.iter().find(|slot| slot.try_change(FULL, HELD))?;
        // SAFETY: this thread holds the slot.
        let item = unsafe { (*slot.item.get()).take() };
        slot.state.store(EMPTY, Ordering::Release);
        item
    }

    /// Stores an item in the pool. If no slot is free, returns the item to the caller.
    pub(super) fn put(&self, item: T) -> Result<(), T> {
        let Some(slot) = self.slots.iter().find(|slot| slot.try_change(EMPTY, HELD)) else {
            return Err(item);
        };
        // SAFETY: this thread holds the slot.
        unsafe { *slot.item.get() = Some(item) };
        slot.state.store(FULL, Ordering::Release);
        Ok(())
    }
}

impl<T> PoolSlot<T> {
    fn try_change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// A lock-free stack of items. Any thread can push an item. One thread takes all items from the stack in a single step.
pub(super) struct TakeAllStack<T> {
    /// Item that was pushed last; null if the stack is empty.
    last: AtomicPtr<StackNode<T>>,
}

struct StackNode<T> {
    item: T,
    next: *mut StackNode<T>,
}

// SAFETY: the stack owns its items, and passes each item to only one thread.
unsafe impl<T: Send> Sync for TakeAllStack<T> {}

impl<T> TakeAllStack<T> {
    pub(super) const fn new() -> Self {
        Self { last: AtomicPtr::new(null_mut()) }
    }

    /// Pushes an item onto the stack. The compare-and-exchange is repeated if another thread has pushed or taken items
    /// since the last load.
    pub(super) fn push(&self, item: T) {
        let node = Box::into_raw(Box::new(StackNode { item, next: null_mut() }));
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            // SAFETY: no other thread has a pointer to the node before the exchange below.
            unsafe { (*node).next = last };
            match self.last.compare_exchange_weak(last, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }

    /// Removes all items from the stack, and returns them newest first.
    pub(super) fn take_all(&self) -> impl Iterator<Item = T> {
        let mut at = self.last.swap(null_mut(), Ordering::Acquire);
        std::iter::from_fn(move || {
            if at.is_null() {
                return None;
            }
            // SAFETY: `push` created the node from a box, and this thread has removed the node from the shared list by
            // the swap.
            let StackNode { item, next } = *unsafe { Box::from_raw(at) };
            at = next;
            Some(item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_held_by_a_preempted_thread_is_skipped() {
        let pool = SlotPool::<u32, 3>::new();
        assert_eq!((pool.put(1), pool.put(2), pool.put(3), pool.put(4)), (Ok(()), Ok(()), Ok(()), Err(4)));
        // This test simulates a thread that was preempted while it held the pool's first slot.
        assert!(pool.slots[0].try_change(FULL, HELD));
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(2), Some(3), None));
        assert_eq!((pool.put(5), pool.put(6), pool.put(7)), (Ok(()), Ok(()), Err(7)));
        pool.slots[0].state.store(FULL, Ordering::Release);
        assert_eq!((pool.take(), pool.take(), pool.take(), pool.take()), (Some(1), Some(5), Some(6), None));
    }

    #[test]
    fn items_pushed_by_four_threads_are_taken_once_in_each_threads_order() {
        const EACH: u32 = 20_000;
        let stack = TakeAllStack::new();
        let mut seen = [0; 4];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let stack = &stack;
                scope.spawn(move || (0..EACH).for_each(|n| stack.push((thread, n))));
            }
            while seen != [EACH; 4] {
                let mut all: Vec<_> = stack.take_all().collect();
                all.reverse();
                for (thread, n) in all {
                    assert_eq!(n, seen[thread]);
                    seen[thread] += 1;
                }
            }
        });
        assert_eq!(stack.take_all().count(), 0);
    }
}
