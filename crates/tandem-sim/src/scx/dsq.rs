//! A dispatch queue (DSQ): FIFO or ordered by key.

use std::collections::VecDeque;

/// Waiting tasks, in order.
#[derive(Debug, Clone, Default)]
pub struct Dsq {
    tasks: VecDeque<(u64, usize)>,
}

impl Dsq {
    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds a task at the end.
    pub fn push(&mut self, task: usize) {
        self.tasks.push_back((0, task));
    }

    /// Adds a task at the head.
    pub fn push_front(&mut self, task: usize) {
        self.tasks.push_front((0, task));
    }

    /// Inserts a task by key, behind tasks with the same key. Keys wrap.
    pub fn insert(&mut self, key: u64, task: usize) {
        let later = |other: u64| (key.wrapping_sub(other) as i64) < 0;
        let mut at = self.tasks.len();
        while at > 0 && later(self.tasks[at - 1].0) {
            at -= 1;
        }
        self.tasks.insert(at, (key, task));
    }

    /// The first task.
    pub fn first(&self) -> Option<usize> {
        self.tasks.front().map(|(_, task)| *task)
    }

    /// Removes the first task.
    pub fn pop(&mut self) -> Option<usize> {
        self.tasks.pop_front().map(|(_, task)| task)
    }

    /// Removes a task. Returns whether it was in the queue.
    pub fn remove(&mut self, task: usize) -> bool {
        let found = self.tasks.iter().position(|(_, other)| *other == task);
        found.is_some_and(|at| self.tasks.remove(at).is_some())
    }

    /// All tasks, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.tasks.iter().map(|(_, task)| *task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_key_then_by_arrival_and_across_the_wrap() {
        let mut dsq = Dsq::default();
        for (key, task) in [(5, 0), (u64::MAX - 1, 1), (5, 2), (0, 3)] {
            dsq.insert(key, task);
        }
        assert_eq!(dsq.iter().collect::<Vec<_>>(), [1, 3, 0, 2]);
        assert!(dsq.remove(3) && !dsq.remove(3));
        assert_eq!((dsq.pop(), dsq.len()), (Some(1), 2));
    }
}
