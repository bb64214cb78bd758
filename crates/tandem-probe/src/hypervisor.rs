//! The hypervisor's own description (CPUID): its name, and the features that it offers to guests.

/// Bits of KVM's feature leaf, and their meaning.
const KVM_FEATURES: [(u32, &str); 6] = [
    (5, "steal time"),
    (7, "pv unhalt"),
    (9, "pv TLB flush"),
    (11, "pv IPIs"),
    (13, "pv yield"),
    (4, "async page faults"),
];
/// It translates code. Its CPUs stall because of its own work, not because a host scheduler preempts them.
const EMULATOR: &str = "QEMU without KVM";
/// Signatures, and the names of their hypervisors.
const NAMES: [(&[u8; 12], &str); 8] = [
    (b"KVMKVMKVM\0\0\0", "KVM"),
    (b"Microsoft Hv", "Hyper-V"),
    (b"VMwareVMware", "VMware"),
    (b"XenVMMXenVMM", "Xen"),
    (b"TCGTCGTCGTCG", EMULATOR),
    (b"bhyve bhyve ", "bhyve"),
    (b"ACRNACRNACRN", "ACRN"),
    (b"prl hyperv  ", "Parallels"),
];

/// CPUID leaves of hypervisors.
#[cfg(target_arch = "x86_64")]
const LEAVES: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x4000_ff00;
#[cfg(target_arch = "x86_64")]
const LEAVES_APART: usize = 0x100;

/// The hypervisor below this guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hypervisor {
    /// Its name, or its signature if it is not a known one.
    pub name: String,
    /// KVM's features; 0 elsewhere.
    pub kvm_features: u32,
}

impl Hypervisor {
    /// The hypervisor below this machine; `None` if there is none, or it hides.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Option<Self> {
        use std::arch::x86_64::__cpuid;
        const PRESENT: u32 = 1 << 31;
        if __cpuid(1).ecx & PRESENT == 0 {
            return None;
        }
        Some(Self::among(|leaf| {
            let found = __cpuid(leaf);
            [found.eax, found.ebx, found.ecx, found.edx]
        }))
    }

    /// Other architectures have no such leaf.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Option<Self> {
        None
    }

    /// The hypervisor that these leaves (EAX, EBX, ECX, EDX) show. A hypervisor that also emulates another one's
    /// interface for its guests' drivers shows that one first and itself 0x100 further (KVM and Xen with Hyper-V's
    /// enlightenments). Linux reads all of them and takes the last one that it knows (`init_hypervisor`).
    #[cfg(target_arch = "x86_64")]
    fn among(leaf: impl Fn(u32) -> [u32; 4]) -> Self {
        let at = |base: u32| {
            let [highest, parts @ ..] = leaf(base);
            let mut signature = [0; 12];
            for (part, register) in signature.chunks_exact_mut(4).zip(parts) {
                part.copy_from_slice(&register.to_le_bytes());
            }
            (base, highest, signature)
        };
        let known = |found: &(u32, u32, [u8; 12])| NAMES.iter().any(|(name, _)| **name == found.2);
        let (base, highest, signature) =
            LEAVES.step_by(LEAVES_APART).map(at).filter(known).last().unwrap_or_else(|| at(*LEAVES.start()));
        // Early versions of KVM reported 0 as the number of leaves.
        let features = if highest == 0 || highest > base { leaf(base + 1)[0] } else { 0 };
        Self::of(&signature, features)
    }

    fn of(signature: &[u8; 12], features: u32) -> Self {
        let known = NAMES.iter().find(|(other, _)| *other == signature);
        let spelled = || String::from_utf8_lossy(signature).trim_matches(['\0', ' ']).to_owned();
        let name = known.map_or_else(spelled, |(_, name)| (*name).to_owned());
        let kvm_features = if name == "KVM" { features } else { 0 };
        Self { name, kvm_features }
    }

    /// Does it offer KVM's steal time page?
    pub fn reports_steal(&self) -> bool {
        self.kvm_features & (1 << 5) != 0
    }

    /// Is there no hardware virtualisation, only an emulator?
    pub fn emulates(&self) -> bool {
        self.name == EMULATOR
    }

    /// Paravirtual features that it offers, and those that it does not offer.
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

    /// Leaves with these signatures; feature leaves follow those of KVM.
    #[cfg(target_arch = "x86_64")]
    fn shown(signatures: &[(u32, &[u8; 12])]) -> Hypervisor {
        Hypervisor::among(|leaf| {
            for (base, signature) in signatures {
                let word = |at: usize| u32::from_le_bytes(signature[at..at + 4].try_into().unwrap());
                match leaf {
                    _ if leaf == *base => return [base + 1, word(0), word(4), word(8)],
                    _ if leaf == base + 1 && **signature == *b"KVMKVMKVM\0\0\0" => return [1 << 5, 0, 0, 0],
                    _ => {}
                }
            }
            // A processor's answer for a leaf that it does not know.
            [7, 7, 7, 7]
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn whoever_plays_another_is_known_all_the_same() {
        let (kvm, hyper_v, xen) = (b"KVMKVMKVM\0\0\0", b"Microsoft Hv", b"XenVMMXenVMM");
        let plain = shown(&[(0x4000_0000, kvm)]);
        assert_eq!((plain.name.as_str(), plain.reports_steal()), ("KVM", true));
        let enlightened = shown(&[(0x4000_0000, hyper_v), (0x4000_0100, kvm)]);
        assert_eq!(enlightened, plain);
        let viridian = shown(&[(0x4000_0000, hyper_v), (0x4000_0100, xen)]);
        assert_eq!((viridian.name.as_str(), viridian.reports_steal()), ("Xen", false));
        assert_eq!(shown(&[(0x4000_0000, hyper_v)]).name, "Hyper-V");
        assert_eq!(shown(&[(0x4000_0000, b"SomethingNew")]).name, "SomethingNew");
    }
}
