//! Cost of a decision of the guest scheduler by number of vCPUs and of groups, and of the host scheduler by number of pCPUs and of VMs:
//! the native build, on this computer.

use crate::machine::Watch;
use crate::runner::MOST_EVENTS;
use crate::scenario::Scenario;
use crate::SimError;

/// Simulated time of a measurement, seconds.
const DURATION_S: f64 = 0.6;

/// Part of the vCPUs that the load keeps busy.
const BUSY: f64 = 0.7;

/// Burst of a task, microseconds. It is shorter where its group would otherwise be inactive for too long.
const RUN_US: f64 = 300.0;

/// Longest period of a task, microseconds: its group stays active (`TANDEM_GROUP_LINGER_NS` is 8 ms).
const AGAIN_US: f64 = 6000.0;

/// A guest whose every second vCPU is contended, with tasks in groups that work and sleep alternately.
fn scenario(vcpus: usize, groups: usize) -> String {
    let tasks = (3 * vcpus).max(groups);
    let most_us = AGAIN_US * BUSY * vcpus as f64 / tasks as f64;
    let run_us = RUN_US.min(most_us);
    let sleep_us = run_us * tasks as f64 / (BUSY * vcpus as f64) - run_us;
    let kinds: Vec<String> = (0..groups)
        .map(|group| {
            let members = tasks / groups + usize::from(group < tasks % groups);
            format!(
                "\"g{group}\": {{\"instance\": {members}, \"loop\": -1, \"x_group\": \"g{group}\", \
                 \"run\": {{\"x_dist\": \"lognormal\", \"mean\": {run_us:.3}, \"cv\": 0.5}}, \
                 \"sleep\": {{\"x_dist\": \"lognormal\", \"mean\": {sleep_us:.3}, \"cv\": 0.5}}}}"
            )
        })
        .collect();
    let pins: Vec<String> = (0..vcpus).map(|cpu| format!("[{cpu}]")).collect();
    let contended: Vec<String> = (0..vcpus).step_by(2).map(|cpu| cpu.to_string()).collect();
    format!(
        "name = \"cost\"\ntitle = \"cost\"\nduration_s = {DURATION_S}\nwarmup_s = 0.1\n[hardware]\ncores = {vcpus}\n\
         [[vm]]\nname = \"a\"\nvcpus = {vcpus}\npins = [{}]\n\
         [[contention]]\ncpus = [{}]\non_us = 2000\noff_us = 3000\nany_phase = true\n\
         [[workload]]\nname = \"load\"\nin = \"a\"\ntext = '''{{\"tasks\": {{{}}}}}'''\n\
         [[arm]]\nname = \"tandem\"\nguest = {{ scheduler = \"tandem\", tick_ms = 4.0 }}\n\
         [[metric]]\nname = \"rounds\"\nworkload = \"load\"\nwhat = \"rounds\"\n",
        pins.join(", "),
        contended.join(", "),
        kinds.join(", ")
    )
}

/// vCPUs of all VMs together, in pCPUs, unless there are more VMs.
const VCPUS_PER_PCPU: usize = 2;

/// A host whose VMs, all alike, work and sleep on all of their vCPUs.
fn host_scenario(pcpus: usize, vms: usize) -> String {
    let vcpus = (VCPUS_PER_PCPU * pcpus).div_ceil(vms);
    let sleep_us = RUN_US * (vcpus * vms) as f64 / (BUSY * pcpus as f64) - RUN_US;
    let vm = |vm: usize| {
        format!(
            "[[vm]]\nname = \"v{vm}\"\nvcpus = {vcpus}\nlayout = {{ cores = {vcpus} }}\n\
             [[workload]]\nname = \"load of v{vm}\"\nin = \"v{vm}\"\ntext = '''{{\"tasks\": {{\"load\": {{\"instance\": {vcpus}, \
             \"loop\": -1, \"run\": {{\"x_dist\": \"lognormal\", \"mean\": {RUN_US}, \"cv\": 0.5}}, \
             \"sleep\": {{\"x_dist\": \"lognormal\", \"mean\": {sleep_us:.3}, \"cv\": 0.5}}}}}}}}'''\n"
        )
    };
    format!(
        "name = \"cost\"\ntitle = \"cost\"\nduration_s = {DURATION_S}\nwarmup_s = 0.1\n[hardware]\ncores = {pcpus}\n{}\
         [[arm]]\nname = \"tandem\"\nhost = {{ scheduler = \"tandem\", tick_ms = 4.0 }}\n\
         [[metric]]\nname = \"rounds\"\nworkload = \"load of v0\"\nwhat = \"rounds\"\n",
        (0..vms).map(vm).collect::<String>()
    )
}

/// Measures the cost of the guest scheduler with so many vCPUs and groups.
///
/// # Errors
/// The simulation fails.
pub fn measure(vcpus: usize, groups: usize) -> Result<Watch, SimError> {
    watched(&scenario(vcpus, groups))
}

/// Measures the cost of the host scheduler with so many pCPUs and VMs.
///
/// # Errors
/// The simulation fails.
pub fn measure_host(pcpus: usize, vms: usize) -> Result<Watch, SimError> {
    watched(&host_scenario(pcpus, vms))
}

fn watched(scenario: &str) -> Result<Watch, SimError> {
    let scenario = Scenario::parse(scenario, "cost")?;
    let mut stage =
        scenario.arms().first().map_or_else(|| scenario.clone(), |arm| scenario.with(arm)).stage(1)?;
    stage.machine.watch = Some(Watch::start());
    stage.machine.run(stage.end, MOST_EVENTS)?;
    Ok(stage.machine.watch.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_and_refreshes_are_counted() -> Result<(), SimError> {
        let watch = measure(4, 6)?;
        assert!(watch.decisions > 1000, "{watch:?}");
        assert!(watch.refreshes > 10, "{watch:?}");
        assert!(!watch.deciding.is_zero() && !watch.refreshing.is_zero());
        Ok(())
    }

    #[test]
    fn decisions_of_the_host_are_counted() -> Result<(), SimError> {
        let watch = measure_host(4, 3)?;
        assert!(watch.decisions > 1000, "{watch:?}");
        assert!(!watch.deciding.is_zero() && !watch.refreshing.is_zero());
        Ok(())
    }
}
