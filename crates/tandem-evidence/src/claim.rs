//! Claims as written in `docs/evidence.toml`.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All claims, in the order of the book.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Book {
    /// The commands that repeat experiments which `tandem lab run` and `tandem sim paper` do not know, by the experiment's name.
    #[serde(default)]
    pub commands: BTreeMap<String, String>,
    /// The claims.
    #[serde(rename = "claim")]
    pub claims: Vec<Claim>,
}

/// One claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What is claimed, in words.
    pub text: String,
    /// Name of the experiment that shows it.
    pub experiment: String,
    /// It is an experiment of the simulator, not of the lab.
    #[serde(default)]
    pub simulated: bool,
    /// Name of the metric in its result, or a list of names.
    pub metric: Names,
    /// How several metrics are combined.
    #[serde(default)]
    pub combine: Combine,
    /// The arm that the claim is about.
    pub arm: String,
    /// The arm that ratios refer to, if not the experiment's baseline.
    #[serde(default)]
    pub against: Option<String>,
    /// The metric whose samples under the baseline the arm's are divided by, if not the same one.
    #[serde(default)]
    pub over: Option<String>,
    /// When the claim holds.
    pub target: Target,
    /// If the target is missed: why, and what was tried.
    #[serde(default)]
    pub cause: Option<String>,
}

impl Claim {
    /// Why its parts do not fit together, if they do not.
    fn meaningless(&self) -> Option<&'static str> {
        let of_samples = matches!(
            self.target,
            Target::AtLeast { .. } | Target::AtMost { .. } | Target::NotWorseThanRivalsBy(_)
        );
        let of_means = matches!(self.target, Target::MeanRatioAtLeast(_));
        if self.over.is_some() && (of_samples || of_means || self.combine == Combine::Mean) {
            return Some("it is divided by another metric, and its target or its mean does not look at that");
        }
        match (of_samples, self.combine, &self.against) {
            (true, Combine::Mean, _) => Some("a geometric mean is a ratio, and its target is one of samples"),
            (true, _, Some(_)) => Some("it is compared with an arm, and its target does not look at that"),
            _ => None,
        }
    }
}

/// Names of metrics.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Names {
    /// All of them.
    pub fn all(&self) -> &[String] {
        match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Several(names) => names,
        }
    }
}

/// How a claim combines several metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Combine {
    /// The claim holds if it holds for each metric.
    #[default]
    Each,
    /// The claim is about their geometric mean, taken in each repetition. All have the same direction.
    Mean,
}

/// The figure of an arm's samples to which a target refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    /// Smallest sample.
    Min,
    /// Median sample.
    Median,
    /// Largest sample.
    Max,
}

/// When a claim holds. Ratios are arm over baseline.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// The whole 95 % interval of the ratio lies below this.
    RatioBelow(f64),
    /// The whole 95 % interval of the ratio lies above this.
    RatioAbove(f64),
    /// The median ratio is at least this.
    RatioAtLeast(f64),
    /// The median ratio is at most this.
    RatioAtMost(f64),
    /// The mean of the arm's samples over the mean of the baseline's is at least this. For figures with two modes, of
    /// which the median shows only the more frequent one.
    MeanRatioAtLeast(f64),
    /// The ratio is worse than 1 by at most this fraction, in the metric's own direction, over its whole 95 % interval.
    /// An interval that contains the bound leaves the claim open.
    NotWorseBy(f64),
    /// The arm is worse than the best other arm (by median, without the baseline) by at most this fraction, over the whole 95 %
    /// interval of their ratio.
    NotWorseThanRivalsBy(f64),
    /// A statistic of the arm's samples is at least `value`.
    AtLeast {
        /// Bound.
        value: f64,
        /// Which sample.
        of: Statistic,
    },
    /// A statistic of the arm's samples is at most `value`.
    AtMost {
        /// Bound.
        value: f64,
        /// Which sample.
        of: Statistic,
    },
    /// No target: the figure is only shown.
    Shown {},
}

/// Why a book cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a book.
    #[error("{path}: {source}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A claim is not valid.
    #[error("{path}: {reason}", path = path.display())]
    Claim {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        reason: String,
    },
}

impl Book {
    /// Reads a book.
    ///
    /// # Errors
    /// The file is missing or is not a list of claims.
    pub fn load(path: &Path) -> Result<Self, BookError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| BookError::Read { path: path.to_path_buf(), source })?;
        let book: Self = toml::from_str(&text)
            .map_err(|source| BookError::Parse { path: path.to_path_buf(), source: Box::new(source) })?;
        match book.fault() {
            Some(reason) => Err(BookError::Claim { path: path.to_path_buf(), reason }),
            None => Ok(book),
        }
    }

    /// The command that repeats a claim's experiment.
    pub fn command_of(&self, claim: &Claim) -> String {
        match self.commands.get(&claim.experiment) {
            Some(command) => command.clone(),
            None if claim.simulated => format!("tandem sim paper {}", claim.experiment),
            None => format!("tandem lab run {}", claim.experiment),
        }
    }

    /// The command that measures an experiment and stores its result, if `tandem evidence` does not.
    pub fn measured_by(&self, experiment: &str) -> Option<&str> {
        self.commands.get(experiment).filter(|_| !self.is_simulated(experiment)).map(String::as_str)
    }

    /// What is wrong with a claim or a command, if anything.
    fn fault(&self) -> Option<String> {
        let known = self.experiments();
        if let Some(name) = self.commands.keys().find(|name| !known.contains(&name.as_str())) {
            return Some(format!("commands: no claim rests on {name:?}"));
        }
        self.claims.iter().find_map(|claim| {
            let names = claim.metric.all();
            let repeated = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
            match (names, repeated) {
                ([], _) => Some(format!("{:?}: it names no metric", claim.text)),
                (_, Some((_, name))) => Some(format!("{:?}: it names {name:?} twice", claim.text)),
                _ if claim.against.as_ref() == Some(&claim.arm) && claim.over.is_none() => {
                    Some(format!("{:?}: {:?} is compared with itself", claim.text, claim.arm))
                }
                _ => claim.meaningless().map(|why| format!("{:?}: {why}", claim.text)),
            }
        })
    }

    /// Names of the experiments, each once, in the order of the book.
    pub fn experiments(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for claim in &self.claims {
            if !names.contains(&claim.experiment.as_str()) {
                names.push(&claim.experiment);
            }
        }
        names
    }

    /// Does a claim say that this experiment is the simulator's?
    pub fn is_simulated(&self, experiment: &str) -> bool {
        self.claims.iter().any(|claim| claim.experiment == experiment && claim.simulated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_claims_can_be_read() {
        let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence.toml");
        assert!(Book::load(&book).unwrap().experiments().len() > 50);
    }

    #[test]
    fn a_book_is_read_and_its_experiments_are_listed_once() {
        let book: Book = toml::from_str(
            r#"
            [[claim]]
            text = "faster"
            experiment = "weak"
            metric = "p95"
            arm = "tandem"
            target = { ratio_below = 1.0 }
            [[claim]]
            text = "follows"
            experiment = "weak"
            metric = "slow"
            arm = "tandem"
            target = { at_most = { value = 500.0, of = "max" } }
            [[claim]]
            text = "two threads"
            experiment = "pair"
            metric = "work"
            arm = "tandem"
            target = { shown = {} }
            "#,
        )
        .unwrap();
        assert_eq!(book.experiments(), ["weak", "pair"]);
        assert_eq!(book.command_of(&book.claims[1]), "tandem lab run weak");
        assert_eq!(book.claims[1].target, Target::AtMost { value: 500.0, of: Statistic::Max });
    }

    #[test]
    fn a_claim_may_be_about_several_metrics() {
        let text = "[[claim]]\ntext = \"a\"\nexperiment = \"b\"\nmetric = [\"c\", \"d\"]\ncombine = \"mean\"\narm = \"e\"\n\
                    target = { not_worse_by = 0.05 }\nagainst = \"f\"\n";
        let book: Book = toml::from_str(text).unwrap();
        assert_eq!(book.claims[0].metric.all(), ["c", "d"]);
        assert_eq!((book.claims[0].combine, book.claims[0].against.as_deref()), (Combine::Mean, Some("f")));
        assert!(toml::from_str::<Book>(&text.replace("mean", "sum")).is_err());
        assert_eq!(book.fault(), None);
        for (from, to, why) in [
            ("[\"c\", \"d\"]", "[]", "no metric"),
            ("\"d\"", "\"c\"", "twice"),
            ("against = \"f\"", "against = \"e\"", "with itself"),
            ("{ not_worse_by = 0.05 }", "{ not_worse_than_rivals_by = 0.05 }", "is one of samples"),
            ("against = \"f\"", "over = \"c\"", "divided by another metric"),
            ("{ not_worse_by = 0.05 }", "{ at_least = { value = 1.0, of = \"min\" } }", "is one of samples"),
            (
                "combine = \"mean\"\narm = \"e\"\ntarget = { not_worse_by = 0.05 }",
                "arm = \"e\"\ntarget = { at_least = { value = 1.0, of = \"min\" } }",
                "does not look at that",
            ),
        ] {
            let book: Book = toml::from_str(&text.replace(from, to)).unwrap();
            assert!(book.fault().is_some_and(|fault| fault.contains(why)), "{why}");
        }
    }

    #[test]
    fn an_experiment_may_have_a_command_of_its_own() {
        let text = "[commands]\nlong = \"make soak\"\nmodel = \"tandem sim cost\"\n\
                    [[claim]]\ntext = \"a\"\nexperiment = \"long\"\nmetric = \"m\"\narm = \"t\"\ntarget = { shown = {} }\n\
                    [[claim]]\ntext = \"b\"\nexperiment = \"model\"\nsimulated = true\nmetric = \"m\"\narm = \"t\"\n\
                    target = { shown = {} }\n";
        let book: Book = toml::from_str(text).unwrap();
        assert_eq!(book.fault(), None);
        assert_eq!(book.command_of(&book.claims[0]), "make soak");
        assert_eq!(book.measured_by("long"), Some("make soak"));
        // The simulator's are measured with the others, however they are repeated.
        assert_eq!(book.command_of(&book.claims[1]), "tandem sim cost");
        assert_eq!(book.measured_by("model"), None);
        let book: Book = toml::from_str(&text.replace("long = ", "lung = ")).unwrap();
        assert!(book.fault().is_some_and(|fault| fault.contains("\"lung\"")));
    }

    #[test]
    fn unknown_targets_and_fields_are_refused() {
        for line in ["target = { ratio_beneath = 1.0 }", "target = { shown = {} }\nmood = 1"] {
            let text =
                format!("[[claim]]\ntext = \"a\"\nexperiment = \"b\"\nmetric = \"c\"\narm = \"d\"\n{line}\n");
            assert!(toml::from_str::<Book>(&text).is_err(), "{line}");
        }
    }
}
