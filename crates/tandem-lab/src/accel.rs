//! Hardware virtualisation or emulation.

/// How the host's CPUs are implemented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accel {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        }
    }
}
