//! A last look at machines of which one has not answered: what the host's scheduler holds, and what each guest is doing.

use crate::session::Session;
use std::time::Duration;
use tandem_agent::{Op, SELF};

const LIMIT: Duration = Duration::from_secs(30);
/// Lines of the scheduler's own dump.
const DUMP_LINES: u32 = 400;

/// All that can still be found out, for people. Guests end by it.
pub fn look(session: &mut Session) -> String {
    // The first guest's panic would end the look at the others.
    session.machine.link.ignore_trouble();
    let dump = format!(
        "cat /proc/loadavg; cd /sys/kernel/tracing && echo 1 > events/sched_ext/sched_ext_dump/enable && \
         echo D > /proc/sysrq-trigger && sleep 1 && sed 's/.*sched_ext_dump: //' trace | tail -n {DUMP_LINES}"
    );
    let argv = ["/bin/sh", "-c", &dump].map(str::to_string);
    let mut text = match session.machine.link.exec(SELF, &argv, LIMIT) {
        Ok(output) => format!("--- the host's scheduler\n{}{}", output.stdout, output.stderr),
        Err(error) => return format!("--- the host does not answer either: {error}"),
    };
    for name in session.guests.clone() {
        let op = Op::Inspect { name: name.clone() };
        let found: Result<String, _> = session.machine.link.ask_for(SELF, op, LIMIT);
        text += &match found {
            Ok(found) => format!("--- guest {name}\n{found}\n"),
            Err(error) => format!("--- guest {name}: {error}\n"),
        };
    }
    text
}
