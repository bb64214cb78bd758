//! May a program that hangs in KVM interrupt a pCPU on this kernel?
//!
//! From 7.1 on the kernel adds an argument of its own to some kfuncs, and its type information hides it: a function of the same name with `_impl`
//! has it. Where the type information was made by a tool that does not know of that (pahole before 1.27) there is no such function, and a tracing
//! program that calls the other one takes the kernel down (public report scx#3687).

use libbpf_rs::btf::types::FuncProto;
use libbpf_rs::btf::{Btf, BtfType};

/// The function, how many arguments it has, and its other name where the kernel adds one.
const KICK: &str = "scx_bpf_kick_cpu";
const ARGUMENTS: usize = 2;
const KICK_WITH_ALL: &str = "scx_bpf_kick_cpu_impl";
/// Kernels that add arguments have this function.
const ADDS_ARGUMENTS: &str = "bpf_prog_get_assoc_struct_ops";

/// By the running kernel's type information.
pub(crate) fn programs_may_kick() -> bool {
    match Btf::from_vmlinux() {
        Ok(btf) => {
            let has = |name: &str| btf.type_by_name::<BtfType<'_>>(name).is_some();
            arguments(&btf) == Some(ARGUMENTS) && (!has(ADDS_ARGUMENTS) || has(KICK_WITH_ALL))
        }
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
