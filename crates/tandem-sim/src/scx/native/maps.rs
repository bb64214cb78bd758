//! A policy's maps: plain memory whose addresses do not change.

use std::collections::{HashMap, VecDeque};

/// Type of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Array,
    PerCpuArray,
    Hash,
    Queue,
    TaskStorage,
    /// Ring buffer for trace records, which nobody reads here.
    Ring,
}

impl Kind {
    /// From the kernel's number (`enum bpf_map_type`).
    pub(super) fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Hash),
            2 => Some(Self::Array),
            6 => Some(Self::PerCpuArray),
            22 => Some(Self::Queue),
            27 => Some(Self::Ring),
            29 => Some(Self::TaskStorage),
            _ => None,
        }
    }
}

/// Definition of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    pub(super) max_entries: usize,
}

/// A value, aligned to eight bytes.
pub(super) type Value = Box<[u64]>;

/// A map.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) shape: Shape,
    /// Arrays: all values, CPU by CPU if per-CPU. Other types: empty.
    cells: Vec<u64>,
    /// Words per value.
    stride: usize,
    hash: HashMap<Box<[u8]>, Value>,
    queue: VecDeque<Vec<u8>>,
    by_task: Vec<Option<Value>>,
}

impl Map {
    pub(super) fn new(shape: Shape, cpus: usize) -> Self {
        let stride = shape.value_size.div_ceil(8);
        let copies = match shape.kind {
            Kind::Array => 1,
            Kind::PerCpuArray => cpus,
            _ => 0,
        };
        let cells = vec![0; stride * shape.max_entries * copies];
        Self { shape, cells, stride, hash: HashMap::new(), queue: VecDeque::new(), by_task: Vec::new() }
    }

    /// Address of a value of an array. `cpu` counts for a per-CPU array.
    pub(super) fn cell(&mut self, index: usize, cpu: usize) -> Option<*mut u64> {
        if index >= self.shape.max_entries {
            return None;
        }
        let copy = if self.shape.kind == Kind::PerCpuArray { cpu } else { 0 };
        let at = (copy * self.shape.max_entries + index) * self.stride;
        self.cells.get_mut(at).map(std::ptr::from_mut)
    }

    /// Index of the value at an address; none: the address is outside of the map.
    pub(super) fn index_of(&self, address: usize) -> Option<u32> {
        let offset = address.checked_sub(self.cells.as_ptr() as usize)? / 8;
        (offset < self.cells.len()).then(|| (offset / self.stride.max(1) % self.shape.max_entries) as u32)
    }

    pub(super) fn find(&mut self, key: &[u8]) -> Option<*mut u64> {
        self.hash.get_mut(key).map(|value| value.as_mut_ptr())
    }

    /// Inserts or replaces a value. False: the map is full.
    pub(super) fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        if let Some(present) = self.hash.get_mut(key) {
            copy_into(present, value);
            return true;
        }
        if self.hash.len() >= self.shape.max_entries {
            return false;
        }
        let mut cell = vec![0; self.stride].into_boxed_slice();
        copy_into(&mut cell, value);
        self.hash.insert(key.into(), cell);
        true
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        self.hash.remove(key).is_some()
    }

    /// Appends to a queue. `replace`: a full queue loses its oldest element. False: the queue is full.
    pub(super) fn push(&mut self, value: &[u8], replace: bool) -> bool {
        if self.queue.len() >= self.shape.max_entries {
            if !replace {
                return false;
            }
            self.queue.pop_front();
        }
        self.queue.push_back(value.to_vec());
        true
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// A task's value; it is created if `create`.
    pub(super) fn of_task(&mut self, task: usize, create: bool) -> Option<*mut u64> {
        if task >= self.by_task.len() {
            self.by_task.resize_with(task + 1, || None);
        }
        let slot = &mut self.by_task[task];
        if slot.is_none() && create {
            *slot = Some(vec![0; self.stride].into_boxed_slice());
        }
        slot.as_mut().map(|value| value.as_mut_ptr())
    }

    pub(super) fn forget_task(&mut self, task: usize) -> bool {
        self.by_task.get_mut(task).is_some_and(|slot| slot.take().is_some())
    }
}

fn copy_into(cell: &mut [u64], bytes: &[u8]) {
    for (word, chunk) in cell.iter_mut().zip(bytes.chunks(8)) {
        let mut buffer = [0; 8];
        buffer[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(kind: Kind) -> Map {
        Map::new(Shape { name: "m".into(), kind, key_size: 4, value_size: 12, max_entries: 2 }, 3)
    }

    #[test]
    fn arrays_have_a_place_for_everything() {
        let mut m = map(Kind::PerCpuArray);
        let addresses: Vec<_> = (0..3)
            .flat_map(|cpu| [(0, cpu), (1, cpu)])
            .map(|(i, cpu)| m.cell(i, cpu).unwrap() as usize)
            .collect();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] == 16));
        assert_eq!((m.cell(2, 0), m.index_of(addresses[3])), (None, Some(1)));
    }

    #[test]
    fn full_is_full() {
        let mut m = map(Kind::Hash);
        assert!(m.insert(b"aaaa", &[1; 12]) && m.insert(b"bbbb", &[2; 12]) && !m.insert(b"cccc", &[3; 12]));
        assert!(m.insert(b"aaaa", &[4; 12]) && m.remove(b"aaaa") && m.find(b"aaaa").is_none());
        let mut m = map(Kind::Queue);
        assert!(m.push(&[1], false) && m.push(&[2], false) && !m.push(&[3], false) && m.push(&[3], true));
        assert_eq!(m.pop(), Some(vec![2]));
    }

    #[test]
    fn tasks_keep_their_values() {
        let mut m = map(Kind::TaskStorage);
        assert!(m.of_task(5, false).is_none());
        let first = m.of_task(5, true);
        m.of_task(500, true);
        assert!(first.is_some() && m.of_task(5, false) == first && m.forget_task(5));
    }
}
