//! A first-in-first-out queue between threads. A thread that has to wait sleeps in the kernel (futex).

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::crew::lock;

/// Queue of at most `capacity` items.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    not_empty: Condvar,
    not_full: Condvar,
    capacity: usize,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

/// Result of [`Queue::try_pop`].
#[derive(Debug, PartialEq, Eq)]
pub enum Polled<T> {
    Item(T),
    Empty,
    Closed,
}

impl<T> Queue<T> {
    pub fn new(capacity: usize) -> Self {
        Queue {
            state: Mutex::new(State { items: VecDeque::new(), closed: false }),
            not_empty: Condvar::new(),
            not_full: Condvar::new(),
            capacity: capacity.max(1),
        }
    }

    /// Appends an item, waiting while the queue is full. `false` if the queue is closed: the item is dropped.
    pub fn push(&self, item: T) -> bool {
        let mut state = lock(&self.state);
        while state.items.len() >= self.capacity && !state.closed {
            state = self.not_full.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return false;
        }
        state.items.push_back(item);
        drop(state);
        self.not_empty.notify_one();
        true
    }

    /// Takes the oldest item, waiting for one; `None` once the queue is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let mut state = lock(&self.state);
        while state.items.is_empty() && !state.closed {
            state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let item = state.items.pop_front();
        drop(state);
        self.not_full.notify_one();
        item
    }

    /// Takes the oldest item if there is one.
    pub fn try_pop(&self) -> Polled<T> {
        let mut state = lock(&self.state);
        match state.items.pop_front() {
            Some(item) => {
                drop(state);
                self.not_full.notify_one();
                Polled::Item(item)
            }
            None if state.closed => Polled::Closed,
            None => Polled::Empty,
        }
    }

    /// Refuses further items. Items in the queue can still be taken.
    pub fn close(&self) {
        lock(&self.state).closed = true;
        self.not_empty.notify_all();
        self.not_full.notify_all();
    }

    /// Closes the queue and returns the items that were still in it.
    pub fn close_and_drain(&self) -> Vec<T> {
        let left = {
            let mut state = lock(&self.state);
            state.closed = true;
            std::mem::take(&mut state.items)
        };
        self.not_empty.notify_all();
        self.not_full.notify_all();
        left.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn order_is_kept_and_closing_ends_it() {
        let queue = Queue::new(10);
        assert_eq!(queue.try_pop(), Polled::Empty);
        assert!(queue.push(1) && queue.push(2));
        queue.close();
        assert!(!queue.push(3));
        assert_eq!((queue.pop(), queue.try_pop(), queue.pop()), (Some(1), Polled::Item(2), None));
        assert_eq!(queue.try_pop(), Polled::Closed);
    }

    #[test]
    fn nothing_is_lost_or_doubled_between_threads() {
        let queue = Queue::new(3);
        let (queue, items) = (&queue, 10_000u64);
        let sum: u64 = thread::scope(|scope| {
            let readers: Vec<_> =
                (0..4).map(|_| scope.spawn(|| std::iter::from_fn(|| queue.pop()).sum::<u64>())).collect();
            let writers: Vec<_> = (0..2)
                .map(|w| scope.spawn(move || (0..items).filter(|i| i % 2 == w).all(|i| queue.push(i))))
                .collect();
            assert!(writers.into_iter().all(|writer| writer.join().unwrap()));
            queue.close();
            readers.into_iter().map(|reader| reader.join().unwrap()).sum()
        });
        assert_eq!(sum, items * (items - 1) / 2);
    }

    #[test]
    fn draining_hands_back_the_rest() {
        let queue = Queue::new(10);
        queue.push(7);
        assert_eq!(queue.close_and_drain(), [7]);
        assert_eq!(queue.pop(), None);
    }
}
