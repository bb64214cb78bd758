//! The evidence book. Every figure that Tandem claims is a claim with an experiment, a metric and a target. A claim
//! that misses its target stays in the book and says so.

mod claim;
mod judge;
mod render;

pub use claim::{Book, BookError, Claim, Combine, Names, Statistic, Target};
pub use judge::{has_enough, judge, Judgement, Standing};
pub use render::render;
