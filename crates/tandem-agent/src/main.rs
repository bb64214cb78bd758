//! Init process of the lab's machines. As process 1 it prepares the machine and reaps orphans. Its child serves
//! requests until it is told to power off.

mod inspect;
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
    match std::process::Command::new("/init").arg("serve").spawn() {
        Ok(child) => sys::reap_until(child.id()),
        Err(error) => println!("AGENT-FAILED cannot start: {error}"),
    }
    println!("AGENT-DONE");
    sys::power_off();
}
