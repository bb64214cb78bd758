//! First process of the lab's machines. As process 1 it prepares the machine and adopts orphans; its
//! child serves requests until it is told to power off.

mod machine;
mod process;
mod rt;
mod serve;
mod sys;
mod vm;

fn main() {
    if std::process::id() != 1 {
        return serve::run();
    }
    machine::prepare();
    let child = std::process::Command::new("/init").arg("serve").spawn();
    if let Err(error) = child {
        println!("AGENT-FAILED cannot start: {error}");
    }
    // Ends when nothing is left to wait for: the serving child has gone.
    sys::reap_until_alone();
    println!("AGENT-DONE");
    sys::power_off();
}
