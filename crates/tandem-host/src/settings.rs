//! Settings of one VM: `key=value`, on the command line and at run time.

use crate::slice::RANGE_US;
use crate::HostError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use tandem_bpf::host::intf;

/// What can be set, for messages.
const KEYS: &str = "slice-us=US (500 to 100000, or default), debt-max-ms=MS (1 to 10000, or default), wake-budget-us=US (1 to 100000, or default), \
    conflict=confidence|debt|none, or one of apart, yield, safe-points, prompt, boost, forward, fast-wakeup, introspect, critical =on|off";
const ON_OFF: &str = "on or off";
const CONFLICTS: &str = "confidence, debt or none";

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmSetting {
    /// A number; none: as any other VM's.
    Number(Number, Option<u64>),
    /// Who runs if two vCPUs that do I/O want the same pCPU.
    Conflict(Conflict),
    /// Is a technique in use for it?
    Technique(Technique, bool),
}

/// A number that can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// Request of its vCPUs, microseconds.
    SliceUs,
    /// Limit of its debt for boosts, milliseconds at weight 100.
    DebtMaxMs,
    /// Run time for which its vCPUs come before their turn in 100 ms when they are woken, microseconds.
    WakeBudgetUs,
}

impl Number {
    /// Its key, what is in range, and that in words.
    const fn known(self) -> (&'static str, RangeInclusive<u64>, &'static str) {
        match self {
            Number::SliceUs => ("slice-us", RANGE_US, "500 to 100000, or default"),
            Number::DebtMaxMs => ("debt-max-ms", 1..=10_000, "1 to 10000, or default"),
            Number::WakeBudgetUs => ("wake-budget-us", 1..=100_000, "1 to 100000, or default"),
        }
    }

    const ALL: [Number; 3] = [Number::SliceUs, Number::DebtMaxMs, Number::WakeBudgetUs];
}

/// Who runs if two vCPUs that do I/O want the same pCPU (`enum boost_conflict`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Conflict {
    /// The one that does more of it.
    #[default]
    Confidence,
    /// The one whose VM owes less.
    Debt,
    /// The one that runs already.
    None,
}

impl Conflict {
    const ALL: [(Conflict, &'static str); 3] =
        [(Conflict::Confidence, "confidence"), (Conflict::Debt, "debt"), (Conflict::None, "none")];

    /// As the scheduler numbers it.
    pub(crate) fn number(self) -> u32 {
        match self {
            Conflict::Confidence => intf::boost_conflict_CONFLICT_CONFIDENCE,
            Conflict::Debt => intf::boost_conflict_CONFLICT_DEBT,
            Conflict::None => intf::boost_conflict_CONFLICT_NONE,
        }
    }
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
    /// A vCPU that does I/O comes before its turn, and its VM pays for what is beyond its share.
    Boost,
    /// A sibling that waits and is sent an IPI runs next on the sender's pCPU.
    Forward,
    /// A vCPU that is woken comes before its turn, within a budget.
    FastWakeup,
    /// The guest's current task tells that I/O is over.
    Introspect,
    /// A turn does not end in a critical section of the guest's kernel.
    Critical,
}

impl Technique {
    const ALL: [(Technique, &'static str, u32); 9] = [
        (Technique::Apart, "apart", intf::vm_technique_VM_APART),
        (Technique::Yield, "yield", intf::vm_technique_VM_YIELD),
        (Technique::SafePoints, "safe-points", intf::vm_technique_VM_SAFE_POINTS),
        (Technique::Prompt, "prompt", intf::vm_technique_VM_PROMPT),
        (Technique::Boost, "boost", intf::vm_technique_VM_BOOST),
        (Technique::Forward, "forward", intf::vm_technique_VM_FORWARD),
        (Technique::FastWakeup, "fast-wakeup", intf::vm_technique_VM_FAST_WAKEUP),
        (Technique::Introspect, "introspect", intf::vm_technique_VM_INTROSPECT),
        (Technique::Critical, "critical", intf::vm_technique_VM_CRITICAL),
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
        let number = |number: &&Number| number.known().0 == key;
        if let Some(number) = Number::ALL.iter().find(number) {
            let (_, range, expected) = number.known();
            if value == "default" {
                return Ok(VmSetting::Number(*number, None));
            }
            let given = value.parse().ok().filter(|value| range.contains(value));
            return given
                .map(|value| VmSetting::Number(*number, Some(value)))
                .ok_or_else(|| wrong("out of range, or no number", expected));
        }
        if key == "conflict" {
            let known = Conflict::ALL.iter().find(|(_, name)| *name == value);
            return known
                .map(|(conflict, _)| VmSetting::Conflict(*conflict))
                .ok_or_else(|| wrong("no such choice", CONFLICTS));
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VmSettings {
    /// Request of its vCPUs, microseconds; 0: as any other VM's.
    pub slice_us: u64,
    /// Limit of its debt, milliseconds at weight 100; 0: likewise.
    pub debt_max_ms: u64,
    /// Budget for wake-ups, microseconds in 100 ms; 0: likewise.
    pub wake_budget_us: u64,
    /// Who runs if two vCPUs that do I/O want the same pCPU.
    pub conflict: Conflict,
    /// Techniques that it does without (`enum vm_technique`).
    pub off: u32,
}

impl Default for VmSettings {
    fn default() -> Self {
        Self {
            slice_us: 0,
            debt_max_ms: 0,
            wake_budget_us: 0,
            conflict: Conflict::default(),
            off: intf::vm_technique_VM_OFF_BY_DEFAULT,
        }
    }
}

impl VmSettings {
    /// With one setting changed.
    #[must_use]
    pub fn with(mut self, setting: VmSetting) -> Self {
        match setting {
            VmSetting::Number(Number::SliceUs, value) => self.slice_us = value.unwrap_or(0),
            VmSetting::Number(Number::DebtMaxMs, value) => self.debt_max_ms = value.unwrap_or(0),
            VmSetting::Number(Number::WakeBudgetUs, value) => self.wake_budget_us = value.unwrap_or(0),
            VmSetting::Conflict(conflict) => self.conflict = conflict,
            VmSetting::Technique(technique, true) => self.off &= !technique.bit(),
            VmSetting::Technique(technique, false) => self.off |= technique.bit(),
        }
        self
    }
}

/// As `tandem host set` takes them; what is not said is as for any other VM.
impl fmt::Display for VmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            (Number::SliceUs, self.slice_us),
            (Number::DebtMaxMs, self.debt_max_ms),
            (Number::WakeBudgetUs, self.wake_budget_us),
        ];
        let set = numbers.iter().filter(|(_, value)| *value > 0);
        let mut parts: Vec<String> =
            set.map(|(number, value)| format!("{}={value}", number.known().0)).collect();
        let conflicts = Conflict::ALL.iter().filter(|(conflict, _)| *conflict == self.conflict);
        parts.extend(
            conflicts
                .filter(|(conflict, _)| *conflict != Conflict::default())
                .map(|(_, name)| format!("conflict={name}")),
        );
        let changed = self.off ^ Self::default().off;
        let state = |bit: u32| if self.off & bit == 0 { "on" } else { "off" };
        parts.extend(
            Technique::ALL
                .iter()
                .filter(|(.., bit)| changed & bit != 0)
                .map(|(_, name, bit)| format!("{name}={}", state(*bit))),
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
        let all = [
            "debt-max-ms=50",
            "wake-budget-us=500",
            "conflict=debt",
            "boost=off",
            "forward=on",
            "fast-wakeup=off",
        ];
        assert_eq!(set(&all), all.join(" "));
        assert_eq!(
            set(&["conflict=none", "conflict=confidence", "debt-max-ms=7", "debt-max-ms=default"]),
            ""
        );
        assert_eq!(set(&["yield=off", "yield=on", "slice-us=500", "slice-us=default"]), "");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, cause) in [
            ("slice-us", "no value"),
            ("slice-us=499", "500 to 100000"),
            ("weight=3", "no such setting"),
            ("apart=maybe", "on or off"),
            ("debt-max-ms=0", "1 to 10000"),
            ("wake-budget-us=many", "1 to 100000"),
            ("conflict=luck", "confidence, debt or none"),
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
