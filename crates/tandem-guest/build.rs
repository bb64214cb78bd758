//! Compiles `bpf/guest/main.bpf.c` and generates its skeleton and the bindings of its interface header.

fn main() {
    for dir in ["../../policy", "../../bpf"] {
        println!("cargo:rerun-if-changed={dir}");
    }
    scx_cargo::BpfBuilder::new()
        .and_then(|mut builder| {
            builder
                .enable_intf("../../bpf/guest/intf.h", "bpf_intf.rs")
                .enable_skel("../../bpf/guest/main.bpf.c", "bpf")
                .build()
        })
        .unwrap_or_else(|error| panic!("building the BPF side of the guest scheduler failed: {error:?}"));
}
