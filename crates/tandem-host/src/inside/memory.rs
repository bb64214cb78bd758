//! Memory of a VMM, which is that of its guest: as another process may read it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Bytes by their addresses in a VMM.
pub(crate) trait Read {
    /// Reads all of `into` from `at` on. Returns false if not all of it is there.
    fn read(&self, at: u64, into: &mut [u8]) -> bool;
}

/// A word of it; none: it is not there.
pub(crate) fn word(memory: &impl Read, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes).then(|| u64::from_ne_bytes(bytes))
}

/// Memory of a process.
pub(crate) struct Memory {
    file: File,
    mapped: Vec<Range<u64>>,
}

impl Memory {
    /// Of this process, as it is mapped now.
    pub(crate) fn of(pid: u32) -> std::io::Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let mapped = mappings(&std::fs::read_to_string(proc.join("maps"))?);
        Ok(Self { file: File::open(proc.join("mem"))?, mapped })
    }

    /// What is mapped without a hole around an address.
    pub(crate) fn around(&self, at: u64) -> Option<Range<u64>> {
        self.mapped.iter().find(|range| range.contains(&at)).cloned()
    }

    /// The bytes from `back` before an address to `ahead` behind it; zeros where nothing is mapped.
    pub(crate) fn window(&self, at: u64, back: usize, ahead: usize) -> Option<Vec<u8>> {
        let range = self.around(at)?;
        let from = at.saturating_sub(back as u64);
        let mut bytes = vec![0; back + ahead];
        let skipped = range.start.saturating_sub(from) as usize;
        let end = (range.end.saturating_sub(from)).min(bytes.len() as u64) as usize;
        let there = bytes.get_mut(skipped..end)?;
        self.read(from + skipped as u64, there).then_some(bytes)
    }
}

impl Read for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, at).is_ok()
    }
}

/// Writable mappings of a process, by `/proc/PID/maps`; neighbours are one.
fn mappings(maps: &str) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split(' ');
        let range = fields.next().and_then(|range| range.split_once('-'));
        let writable = fields.next().is_some_and(|permissions| permissions.starts_with("rw"));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let Some((start, end)) = range.and_then(|(start, end)| Some((number(start)?, number(end)?))) else {
            continue;
        };
        match all.last_mut() {
            _ if !writable || start >= end => {}
            Some(last) if last.end == start => last.end = end,
            _ => all.push(start..end),
        }
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Memory that begins at an address.
    pub(crate) struct At(pub(crate) u64, pub(crate) Vec<u8>);

    impl Read for At {
        fn read(&self, at: u64, into: &mut [u8]) -> bool {
            let from = at.checked_sub(self.0).map(|from| from as usize);
            let bytes = from.and_then(|from| self.1.get(from..from.checked_add(into.len())?));
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        }
    }

    #[test]
    fn neighbours_are_one_mapping_and_what_is_not_writable_is_none() {
        let maps = "1000-2000 rw-p 00000000 00:00 0 \n2000-3000 rw-s 00000000 00:01 7 /memfd:ram\n\
                    3000-4000 r--p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(mappings(maps), [0x1000..0x3000, 0x5000..0x6000]);
    }

    #[test]
    fn a_process_reads_its_own_memory() {
        let bytes: Vec<u8> = (0..=255).collect();
        let at = bytes.as_ptr() as u64;
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.around(at + 8).is_some_and(|range| range.contains(&(at + 255))));
        assert_eq!(word(&memory, at + 8), Some(u64::from_ne_bytes(bytes[8..16].try_into().unwrap())));
        assert_eq!(memory.window(at + 128, 16, 8).unwrap(), bytes[112..136]);
        assert_eq!(word(&memory, 8), None);
        assert!(memory.window(8, 16, 16).is_none());
        // What lies before the mapping is zero.
        let start = memory.around(at).unwrap().start;
        assert_eq!(memory.window(start, 64, 8).unwrap()[..64], [0; 64]);
    }

    proptest! {
        #[test]
        fn any_text_has_mappings_in_order(text in ".{0,200}") {
            prop_assert!(mappings(&text).iter().all(|range| range.start < range.end));
        }
    }
}
