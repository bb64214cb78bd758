//! What the hypervisor says of itself: its name, and what it offers to its guests (CPUID).

/// Bits of KVM's leaf of features, and what they mean.
const KVM_FEATURES: [(u32, &str); 6] = [
    (5, "steal time"),
    (7, "pv unhalt"),
    (9, "pv TLB flush"),
    (11, "pv IPIs"),
    (13, "pv yield"),
    (4, "async page faults"),
];
/// Signatures, and whose they are.
const NAMES: [(&[u8; 12], &str); 8] = [
    (b"KVMKVMKVM\0\0\0", "KVM"),
    (b"Microsoft Hv", "Hyper-V"),
    (b"VMwareVMware", "VMware"),
    (b"XenVMMXenVMM", "Xen"),
    (b"TCGTCGTCGTCG", "QEMU without KVM"),
    (b"bhyve bhyve ", "bhyve"),
    (b"ACRNACRNACRN", "ACRN"),
    (b"prl hyperv  ", "Parallels"),
];

/// The hypervisor beneath.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hypervisor {
    /// Its name, or its signature if it is none of the known ones.
    pub name: String,
    /// KVM's features; 0 elsewhere.
    pub kvm_features: u32,
}

impl Hypervisor {
    /// The one beneath this machine; none: there is none, or it hides.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Self> {
        use std::arch::x86_64::__cpuid;
        const PRESENT: u32 = 1 << 31;
        if __cpuid(1).ecx & PRESENT == 0 {
            return None;
        }
        let leaf = __cpuid(0x4000_0000);
        let mut signature = [0; 12];
        for (part, register) in signature.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            part.copy_from_slice(&register.to_le_bytes());
        }
        let features = if leaf.eax > 0x4000_0000 { __cpuid(0x4000_0001).eax } else { 0 };
        Some(Self::of(&signature, features))
    }

    /// Other architectures have no such leaf.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Self> {
        None
    }

    fn of(signature: &[u8; 12], features: u32) -> Self {
        let known = NAMES.iter().find(|(other, _)| *other == signature);
        let spelled = || String::from_utf8_lossy(signature).trim_matches(['\0', ' ']).to_owned();
        let name = known.map_or_else(spelled, |(_, name)| (*name).to_owned());
        let kvm_features = if name == "KVM" { features } else { 0 };
        Self { name, kvm_features }
    }

    /// Does it maintain KVM's page of stolen time?
    pub fn reports_steal(&self) -> bool {
        self.kvm_features & (1 << 5) != 0
    }

    /// Paravirtual features that it offers, and those that it does not.
    pub fn features(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let (offered, missing): (Vec<_>, Vec<_>) =
            KVM_FEATURES.iter().partition(|(bit, _)| self.kvm_features & (1 << bit) != 0);
        let names = |list: Vec<&(u32, &'static str)>| list.into_iter().map(|(_, name)| *name).collect();
        (names(offered), names(missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_signatures() {
        let kvm = Hypervisor::of(b"KVMKVMKVM\0\0\0", 1 << 5 | 1 << 9);
        assert_eq!(kvm.name, "KVM");
        assert!(kvm.reports_steal());
        assert_eq!(kvm.features().0, ["steal time", "pv TLB flush"]);
        let other = Hypervisor::of(b"SomethingNew", 1 << 5);
        assert_eq!((other.name.as_str(), other.reports_steal()), ("SomethingNew", false));
    }
}
