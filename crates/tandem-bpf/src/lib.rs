//! The builds of `bpf/`, once for each side: skeleton and bindings for the daemon that loads it, and the
//! very same text as native code for the simulator. Generated; nothing here decides anything.

/// The guest side.
#[cfg(feature = "skeleton")]
#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]
pub mod guest {
    /// Layouts shared with the BPF side.
    pub mod intf {
        include!(concat!(env!("OUT_DIR"), "/guest_intf.rs"));
    }

    include!(concat!(env!("OUT_DIR"), "/guest_skel.rs"));
}

/// The host side.
#[cfg(feature = "skeleton")]
#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]
pub mod host {
    /// Layouts shared with the BPF side.
    pub mod intf {
        include!(concat!(env!("OUT_DIR"), "/host_intf.rs"));
    }

    include!(concat!(env!("OUT_DIR"), "/host_skel.rs"));
}

/// What the guest scheduler's programs are recognised by: eight hexadecimal digits, others as soon as the programs are.
pub const GUEST_FINGERPRINT: &str = include!(concat!(env!("OUT_DIR"), "/guest_fingerprint.rs"));

/// The same of the host scheduler.
pub const HOST_FINGERPRINT: &str = include!(concat!(env!("OUT_DIR"), "/host_fingerprint.rs"));

/// Records of a trace, the same on either side.
#[cfg(feature = "skeleton")]
#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]
pub mod trace {
    include!(concat!(env!("OUT_DIR"), "/trace_intf.rs"));
}

/// The observer of hosts.
#[cfg(feature = "skeleton")]
#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]
pub mod observe {
    /// Layouts shared with the BPF side.
    pub mod intf {
        include!(concat!(env!("OUT_DIR"), "/observe_intf.rs"));
    }

    include!(concat!(env!("OUT_DIR"), "/observe_skel.rs"));
}

/// A record of which task each CPU runs (`bpf/kit/current.bpf.c`).
#[cfg(feature = "skeleton")]
#[allow(missing_docs, non_upper_case_globals, non_camel_case_types, non_snake_case, dead_code, clippy::all)]
#[allow(clippy::unwrap_used, clippy::expect_used, unsafe_op_in_unsafe_fn)]
pub mod current {
    include!(concat!(env!("OUT_DIR"), "/current_skel.rs"));
}

/// Native images.
#[cfg(feature = "native")]
pub mod native {
    /// A map of a policy: name, type, sizes of key and value, entries.
    pub type Map = (&'static str, u32, usize, usize, usize);

    /// A policy as native code.
    #[derive(Debug, Clone, Copy)]
    pub struct Side {
        /// Shared object.
        pub image: &'static [u8],
        /// The same with points at which another CPU may continue (`native/explore.h`).
        pub explored: &'static [u8],
        /// Its maps.
        pub maps: &'static [Map],
    }

    include!(concat!(env!("OUT_DIR"), "/native_guest_maps.rs"));
    include!(concat!(env!("OUT_DIR"), "/native_host_maps.rs"));

    /// The guest scheduler.
    pub const GUEST: Side = Side {
        image: include_bytes!(concat!(env!("OUT_DIR"), "/guest.so")),
        explored: include_bytes!(concat!(env!("OUT_DIR"), "/guest_explored.so")),
        maps: GUEST_MAPS,
    };

    /// The host scheduler.
    pub const HOST: Side = Side {
        image: include_bytes!(concat!(env!("OUT_DIR"), "/host.so")),
        explored: include_bytes!(concat!(env!("OUT_DIR"), "/host_explored.so")),
        maps: HOST_MAPS,
    };
}
