//! Metrics in Prometheus's text format, version 0.0.4.

use std::fmt;
use std::time::Duration;

use crate::types::metrics::Metrics;
use crate::types::metrics::table::{METRICS, Value};

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, help, value) in METRICS {
            let mut head = |kind: &str| writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}");
            match value {
                Value::Counter(of) => {
                    let Some(value) = of(self) else { continue };
                    head("counter")?;
                    writeln!(f, "{name} {value}")?;
                }
                Value::Gauge(of) => {
                    let Some(value) = of(self) else { continue };
                    head("gauge")?;
                    writeln!(f, "{name} {value}")?;
                }
                Value::Seconds(of) => {
                    let Some(value) = of(self) else { continue };
                    head("gauge")?;
                    writeln!(f, "{name} {}", Seconds(value))?;
                }
                Value::GaugeBy(label, of) | Value::SecondsBy(label, of) => {
                    head("gauge")?;
                    for (key, value) in of(self) {
                        writeln!(f, "{name}{{{label}=\"{}\"}} {value}", quoted(key))?;
                    }
                }
                Value::By(label, of) => {
                    head("counter")?;
                    for (key, count) in of(self) {
                        writeln!(f, "{name}{{{label}=\"{}\"}} {count}", quoted(key))?;
                    }
                }
                Value::Histogram(of) => {
                    head("histogram")?;
                    let histogram = of(self);
                    let mut total = 0;
                    for (bound, count) in histogram.buckets() {
                        total += count;
                        let bound = bound.map_or("+Inf".to_owned(), |it| Seconds(it).to_string());
                        writeln!(f, "{name}_bucket{{le=\"{bound}\"}} {total}")?;
                    }
                    writeln!(f, "{name}_sum {}", Seconds(histogram.sum()))?;
                    writeln!(f, "{name}_count {total}")?;
                }
            }
        }
        Ok(())
    }
}

/// The value of a label.
fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Seconds with as many decimals as they need.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:09}", self.0.as_secs(), self.0.subsec_nanos());
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_metric_has_a_help_a_type_and_a_name_by_the_conventions() {
        let mut metrics = Metrics { applied_index: Some(1), ..Metrics::default() };
        metrics.count_below("/a\n\\/b");
        let text = metrics.to_string();
        let mut names = BTreeSet::new();
        for (name, help, value) in METRICS {
            assert!(name.starts_with("quorate_"), "{name}");
            assert!(names.insert(name), "{name} twice");
            assert!(name.bytes().all(|of| of == b'_' || of.is_ascii_lowercase()), "{name}");
            assert!(help.ends_with('.') && help.is_ascii(), "{name}");
            let counts = matches!(value, Value::Counter(_) | Value::By(..));
            assert_eq!(name.ends_with("_total"), counts, "{name}");
            let times =
                matches!(value, Value::Histogram(_) | Value::Seconds(_) | Value::SecondsBy(..));
            // Whole seconds, and no duration, since it may be negative.
            let is_difference = *name == "quorate_clock_ahead_seconds";
            assert_eq!(name.ends_with("_seconds"), times || is_difference, "{name}");
        }
        assert!(text.contains("\nquorate_znode_changes_total{below=\"/a\\n\\\\\"} 1\n"), "{text}");
        assert!(!text.contains("stale_seconds"), "what is unknown is absent");
        metrics.certificates_expire.insert("member".to_owned(), -300);
        let line = "\nquorate_certificate_expires_seconds{certificate=\"member\"} -300\n";
        assert!(metrics.to_string().contains(line), "{metrics}");
        assert!(text.contains("\nquorate_spare_voters -1\n"), "{text}");
    }

    #[test]
    fn a_histogram_is_written_with_cumulative_buckets_in_seconds() {
        let mut metrics = Metrics::default();
        for us in [15, 1_500_000, 200_000_000] {
            metrics.sync.record(Duration::from_micros(us));
        }
        let text = metrics.to_string();
        for line in [
            "# TYPE quorate_sync_seconds histogram",
            "quorate_sync_seconds_bucket{le=\"0.00001\"} 0",
            "quorate_sync_seconds_bucket{le=\"0.00002\"} 1",
            "quorate_sync_seconds_bucket{le=\"1\"} 1",
            "quorate_sync_seconds_bucket{le=\"2\"} 2",
            "quorate_sync_seconds_bucket{le=\"100\"} 2",
            "quorate_sync_seconds_bucket{le=\"+Inf\"} 3",
            "quorate_sync_seconds_sum 201.500015",
            "quorate_sync_seconds_count 3",
        ] {
            assert!(text.lines().any(|of| of == line), "{line}: {text}");
        }
        assert!(!text.contains("quorate_znodes"), "there is no replica");
    }
}
