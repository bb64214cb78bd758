//! Settings of one VM: `key=value`, on the command line and at run time.

use crate::slice::RANGE_US;
use crate::HostError;
use serde::{Deserialize, Serialize};
use std::fmt;
use tandem_bpf::host::intf;

/// What can be set, for messages.
const KEYS: &str =
    "slice-us=US (500 to 100000, or default), apart=on|off, yield=on|off, safe-points=on|off, prompt=on|off";
const ON_OFF: &str = "on or off";
const SLICE: &str = "500 to 100000, or default";

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmSetting {
    /// Request of its vCPUs, microseconds; none: as any other VM's.
    SliceUs(Option<u64>),
    /// Is a technique in use for it?
    Technique(Technique, bool),
}

/// A technique that a VM can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Technique {
    /// Siblings are kept apart.
    Apart,
    /// Directed yield.
    Yield,
    /// Out of quota, a vCPU stops only where it holds no lock.
    SafePoints,
    /// A vCPU that wakes up and usually sleeps soon comes before one that computes.
    Prompt,
}

impl Technique {
    const ALL: [(Technique, &'static str, u32); 4] = [
        (Technique::Apart, "apart", intf::vm_technique_VM_APART),
        (Technique::Yield, "yield", intf::vm_technique_VM_YIELD),
        (Technique::SafePoints, "safe-points", intf::vm_technique_VM_SAFE_POINTS),
        (Technique::Prompt, "prompt", intf::vm_technique_VM_PROMPT),
    ];

    fn bit(self) -> u32 {
        Self::ALL.iter().find(|(technique, ..)| *technique == self).map_or(0, |(.., bit)| *bit)
    }
}

impl std::str::FromStr for VmSetting {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let wrong = |reason, expected| HostError::Setting {
            given: text.chars().take(64).collect(),
            reason,
            expected,
        };
        let (key, value) = text.split_once('=').ok_or_else(|| wrong("no value in it", KEYS))?;
        if key == "slice-us" {
            if value == "default" {
                return Ok(VmSetting::SliceUs(None));
            }
            let us = value.parse().ok().filter(|us| RANGE_US.contains(us));
            return us.map(|us| VmSetting::SliceUs(Some(us))).ok_or_else(|| wrong("not a slice", SLICE));
        }
        let (technique, ..) = Technique::ALL
            .iter()
            .find(|(_, name, _)| *name == key)
            .ok_or_else(|| wrong("no such setting", KEYS))?;
        match value {
            "on" => Ok(VmSetting::Technique(*technique, true)),
            "off" => Ok(VmSetting::Technique(*technique, false)),
            _ => Err(wrong("neither on nor off", ON_OFF)),
        }
    }
}

/// All settings of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VmSettings {
    /// Request of its vCPUs, microseconds; 0: as any other VM's.
    pub slice_us: u64,
    /// Techniques that it does without (`enum vm_technique`).
    pub off: u32,
}

impl VmSettings {
    /// With one setting changed.
    #[must_use]
    pub fn with(mut self, setting: VmSetting) -> Self {
        match setting {
            VmSetting::SliceUs(us) => self.slice_us = us.unwrap_or(0),
            VmSetting::Technique(technique, true) => self.off &= !technique.bit(),
            VmSetting::Technique(technique, false) => self.off |= technique.bit(),
        }
        self
    }
}

/// As `tandem host set` takes them; what is not said is as for any other VM.
impl fmt::Display for VmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        if self.slice_us > 0 {
            parts.push(format!("slice-us={}", self.slice_us));
        }
        parts.extend(
            Technique::ALL
                .iter()
                .filter(|(.., bit)| self.off & bit != 0)
                .map(|(_, name, _)| format!("{name}=off")),
        );
        f.write_str(&parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_set_is_shown_as_it_was_given() {
        let set = |list: &[&str]| {
            list.iter().fold(VmSettings::default(), |all, text| all.with(text.parse().unwrap())).to_string()
        };
        assert_eq!(set(&["slice-us=10000", "yield=off"]), "slice-us=10000 yield=off");
        assert_eq!(set(&["yield=off", "yield=on", "slice-us=500", "slice-us=default"]), "");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, cause) in [
            ("slice-us", "no value"),
            ("slice-us=499", "500 to 100000"),
            ("weight=3", "no such setting"),
            ("apart=maybe", "on or off"),
        ] {
            let error = text.parse::<VmSetting>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(cause), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}|[a-z-]{1,12}=[a-z0-9]{0,8}") {
            if let Ok(setting) = text.parse::<VmSetting>() {
                let shown = VmSettings::default().with(setting).to_string();
                prop_assert!(shown.is_empty() || shown.parse::<VmSetting>().unwrap() == setting);
            }
        }
    }
}
