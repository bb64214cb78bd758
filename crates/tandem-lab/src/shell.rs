//! A line-by-line shell in the machine under test, for looking around.

use crate::experiment::Experiment;
use crate::machine::Accel;
use crate::progress::Progress;
use crate::session::Session;
use crate::{cache, fetch, image, sys, LabError};
use std::io::{BufRead, Write};
use std::time::Duration;

/// Boots an experiment's machines with its contention and runs what is typed, until end of input.
///
/// # Errors
/// The machines cannot be booted.
pub fn shell(experiment: &Experiment) -> Result<(), LabError> {
    let progress = Progress::new(&experiment.name);
    let parts = fetch::parts()?;
    let images = image::base_images(&parts)?;
    let work =
        tempfile::tempdir_in(cache::dir()?).map_err(LabError::io("create a folder in", cache::dir()?))?;
    let mut session = Session::boot(&parts, &images, work.path(), experiment, Accel::Tcg, &progress)?;
    drop(progress);
    let stdin = std::io::stdin();
    loop {
        print!("{}# ", experiment.target());
        // A prompt that cannot be shown is no reason to stop.
        let _ = std::io::stdout().flush();
        let mut line = String::new();
        if stdin.lock().read_line(&mut line).is_ok_and(|n| n == 0) || sys::termination_requested() {
            break;
        }
        let argv = ["/bin/sh", "-c", line.trim()].map(str::to_string);
        let output = session.exec(&argv, Duration::from_secs(600))?;
        print!("{}{}", output.stdout, output.stderr);
    }
    session.end()
}
