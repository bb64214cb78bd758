//! wrk's report.
//!
//! wrk prints 50, 75, 90 and 99 %. The kit's script adds a line with all the percentiles that the kit reports. If a
//! version of wrk does not run it, the percentiles that wrk itself prints are used.

use anyhow::{ensure, Result};
use serde_json::{json, Map, Value};

use super::output::{expect_number_after, leading_number, number_after, round3};

/// Prefix of the line that the kit's script prints.
const MARK: &str = "tandem-latency-us";

/// The script for `wrk -s`.
pub const SCRIPT: &str = r#"function done(summary, latency, requests)
  io.write("tandem-latency-us")
  for _, p in ipairs({50, 90, 95, 99}) do
    io.write(string.format(" p%d=%d", p, latency:percentile(p)))
  end
  io.write(string.format(" max=%d mean=%f\n", latency.max, latency.mean))
end
"#;

/// Turns wrk's output into `requests`, `requests_per_s`, `errors` and `latency_us`.
pub fn parse(text: &str) -> Result<Map<String, Value>> {
    let requests_per_s = expect_number_after(text, "Requests/sec:", "wrk")?;
    let mut latency_us = scripted(text);
    if latency_us.is_empty() {
        latency_us = printed(text);
    }
    ensure!(!latency_us.is_empty(), "wrk: no latency distribution in its output");
    let mut report = Map::new();
    report.insert("requests_per_s".to_owned(), json!(requests_per_s));
    report.insert("requests".to_owned(), json!(requests(text)));
    report.insert("errors".to_owned(), json!(errors(text)));
    report.insert("latency_us".to_owned(), Value::Object(latency_us));
    Ok(report)
}

/// Percentiles from the line of the kit's script.
fn scripted(text: &str) -> Map<String, Value> {
    let line = text.lines().find_map(|line| line.strip_prefix(MARK)).unwrap_or_default();
    line.split_whitespace()
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name.to_owned(), json!(round3(leading_number(value)?))))
        })
        .collect()
}

/// The lines under `Latency Distribution`, e.g. `     99%    1.35ms`.
fn printed(text: &str) -> Map<String, Value> {
    let lines = text.lines().skip_while(|line| !line.contains("Latency Distribution")).skip(1);
    let entries = lines.map_while(|line| {
        let (percent, value) = line.trim().split_once('%')?;
        let percent = leading_number(percent)?;
        Some((format!("p{percent}"), json!(round3(to_us(value.trim())?))))
    });
    entries.collect()
}

/// A duration with wrk's units, in microseconds.
fn to_us(text: &str) -> Option<f64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return None,
    };
    Some(leading_number(text.strip_suffix(unit)?)? * factor)
}

/// From e.g. `  123456 requests in 3.00s, 146.59MB read`.
fn requests(text: &str) -> Option<f64> {
    text.lines()
        .find(|line| line.contains(" requests in "))
        .and_then(|line| leading_number(line.trim_start()))
}

/// Socket errors and answers other than 2xx and 3xx.
fn errors(text: &str) -> f64 {
    let line = text.lines().find(|line| line.contains("Socket errors:")).unwrap_or_default();
    let socket: f64 =
        ["connect", "read", "write", "timeout"].iter().filter_map(|kind| number_after(line, kind)).sum();
    socket + number_after(text, "Non-2xx or 3xx responses:").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "\
Running 3s test @ http://127.0.0.1:8080/
  2 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   119.64us  160.97us   4.56ms   97.78%
    Req/Sec    33.52k     2.59k   38.06k    66.67%
  Latency Distribution
     50%  101.00us
     75%  126.00us
     90%    1.25ms
     99%    1.02s
  200045 requests in 3.00s, 237.54MB read
  Socket errors: connect 0, read 2, write 0, timeout 3
  Non-2xx or 3xx responses: 10
Requests/sec:  66668.53
Transfer/sec:     79.16MB
";

    #[test]
    fn what_wrk_prints_by_itself() {
        let report = parse(SAMPLE).unwrap();
        assert_eq!(report["requests_per_s"], 66668.53);
        assert_eq!(report["requests"], 200045.0);
        assert_eq!(report["errors"], 15.0);
        assert_eq!(
            report["latency_us"],
            json!({"p50": 101.0, "p75": 126.0, "p90": 1250.0, "p99": 1_020_000.0})
        );
    }

    #[test]
    fn the_scripts_line_is_preferred() {
        let text = format!("{SAMPLE}{MARK} p50=101 p90=1250 p95=1300 p99=9000 max=12000 mean=130.250000\n");
        let latency = parse(&text).unwrap()["latency_us"].clone();
        assert_eq!(
            (&latency["p95"], &latency["mean"], latency.get("p75")),
            (&json!(1300.0), &json!(130.25), None)
        );
    }

    #[test]
    fn no_latency_is_an_error() {
        assert!(parse("Requests/sec: 1").unwrap_err().to_string().contains("no latency distribution"));
        assert!(parse("unable to connect").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(tail in "[ -~\\n]{0,100}") {
            let _ = parse(&format!("Requests/sec: 1\nLatency Distribution\n{tail}"));
        }
    }
}
