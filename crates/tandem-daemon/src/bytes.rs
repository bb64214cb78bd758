//! Fields of records that BPF programs wrote, out of the bytes of a map.

/// The `N` bytes at `offset`, if there are as many.
pub fn field<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// A number; 0 where there are too few bytes.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    field(bytes, offset).map_or(0, u32::from_ne_bytes)
}

/// A number; 0 where there are too few bytes.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    field(bytes, offset).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_nothing() {
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!((u32_at(&bytes, 0), u64_at(&bytes, 4)), (1, 2));
        assert_eq!((u32_at(&bytes, 9), u64_at(&bytes, usize::MAX)), (0, 0));
    }
}
