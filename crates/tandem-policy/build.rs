//! Compiles the decisions of `policy/` natively and binds them: the very text that runs in BPF.

use std::path::PathBuf;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let wrappers = out.join("policy_wrappers.c");
    println!("cargo:rerun-if-changed=../../policy");
    let bindings = bindgen::Builder::default()
        .header("../../policy/guest/place.h")
        .header("../../policy/eevdf.h")
        .header("../../policy/hweight.h")
        .header("../../policy/quota.h")
        .header("../../policy/balance.h")
        .header("../../policy/guest/ivh.h")
        .header("../../policy/guest/rwc.h")
        .header("../../policy/guest/vcpu_limit.h")
        .header("../../policy/host/answer.h")
        .header("../../policy/host/away.h")
        .header("../../policy/host/boost.h")
        .header("../../policy/host/debt.h")
        .header("../../policy/host/inside.h")
        .header("../../policy/host/io.h")
        .header("../../policy/host/posted.h")
        .wrap_static_fns(true)
        .wrap_static_fns_path(&wrappers)
        .allowlist_file(".*/policy/.*")
        .derive_default(true)
        .layout_tests(false)
        .generate()
        .unwrap_or_else(|error| panic!("binding policy/ failed: {error}"));
    bindings
        .write_to_file(out.join("policy.rs"))
        .unwrap_or_else(|error| panic!("writing the bindings failed: {error}"));
    cc::Build::new()
        .file(&wrappers)
        .include(std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default())
        .warnings(true)
        .extra_warnings(false)
        .compile("tandem_policy");
}
