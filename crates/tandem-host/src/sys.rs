//! The crate's only unsafe code: records of the BPF side out of the bytes of a map.

use tandem_bpf::observe::intf;

pub(crate) use tandem_daemon::sys::monotonic_ns;

/// Integers and arrays of integers only, so that any bytes are a valid one.
///
/// # Safety
/// Only for types of which that is true.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: generated from `bpf/host/observe.h`; all fields are integers and arrays of these.
unsafe impl Plain for intf::thread_record {}

/// A record out of bytes; none: there are too few.
pub(crate) fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, any alignment will do, and any bytes are a valid record.
    (bytes.len() >= std::mem::size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_needs_all_of_its_bytes() {
        let size = std::mem::size_of::<intf::thread_record>();
        assert!(from_bytes::<intf::thread_record>(&vec![0; size - 1]).is_none());
        let mut bytes = vec![0; size];
        bytes[8] = 7;
        assert_eq!(from_bytes::<intf::thread_record>(&bytes).map(|record| record.tgid), Some(7));
    }
}
