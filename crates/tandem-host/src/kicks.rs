//! May a program that hangs in KVM interrupt a pCPU on this kernel?
//!
//! From 7.1 on the kernel adds an argument of its own to some kfuncs, and its type information hides it: a function of the same name with `_impl`
//! has it. Where the type information was made by a tool that does not know of that (pahole before 1.27), the hidden argument is shown, and a tracing
//! program that calls the function takes the kernel down (public report scx#3687).

use libbpf_rs::btf::types::FuncProto;
use libbpf_rs::btf::{Btf, BtfType};

/// The function, and how many arguments it has.
const KICK: &str = "scx_bpf_kick_cpu";
const ARGUMENTS: usize = 2;

/// By the running kernel's type information.
pub(crate) fn programs_may_kick() -> bool {
    match Btf::from_vmlinux() {
        Ok(btf) => arguments(&btf) == Some(ARGUMENTS),
        Err(error) => {
            log::warn!("the kernel's type information cannot be read: {error}");
            false
        }
    }
}

fn arguments(btf: &Btf<'_>) -> Option<usize> {
    let function: BtfType<'_> = btf.type_by_name(KICK)?;
    let prototype: FuncProto<'_> = function.next_type()?.try_into().ok()?;
    Some(prototype.iter().count())
}
