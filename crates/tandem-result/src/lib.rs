//! The one result format of Tandem, `tandem.result/1`, and the statistics that go with it.
//!
//! Lab, simulator and benchmarks all write an [`ExperimentResult`]; tables, plots, tests and users' scripts read it. A
//! ratio is always *arm over baseline*, from the same run, with a 95 % interval.
//!
//! ```
//! use tandem_result::{Better, Evidence, ExperimentResult, Metric, Style};
//!
//! let mut result = ExperimentResult::new("guest-weak", Evidence::Kernel, "eevdf", &["eevdf", "tandem"], 1);
//! let mut p95 = Metric::new("requests p95", "us", Better::Lower);
//! for rep in 0..10 {
//!     p95.push("eevdf", 900.0 + f64::from(rep));
//!     p95.push("tandem", 300.0 + f64::from(rep));
//! }
//! result.metrics.push(p95);
//! result.compute_ratios(true);
//! result.validate()?;
//! println!("{}", tandem_result::render(&result, Style::Text));
//! # Ok::<(), tandem_result::ResultError>(())
//! ```

mod error;
mod figure;
mod schema;
mod stats;
mod store;
mod table;
mod validate;

pub use error::{ResultError, StatsError};
pub use figure::ratios_as_svg;
pub use schema::{Better, Evidence, ExperimentResult, Metric, RunVerdict, SCHEMA};
pub use stats::{median, percentile, ratio_ci95, ratio_of_medians, Ratio, MIN_SAMPLES_FOR_INTERVAL};
pub use table::{render, render_metrics, Comparison, Style};
