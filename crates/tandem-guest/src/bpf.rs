//! Generated code: the BPF skeleton and the bindings of `bpf/guest/intf.h`.
#![allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]

/// Layouts shared with the BPF side.
pub mod intf {
    include!(concat!(env!("OUT_DIR"), "/bpf_intf.rs"));
}

include!(concat!(env!("OUT_DIR"), "/bpf_skel.rs"));
