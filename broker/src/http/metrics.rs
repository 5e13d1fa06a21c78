//! Prometheus' text format.

use std::fmt::Write as _;

use raft_store::TimeHistogram;

/// Metrics as text; samples of one name are added together.
#[derive(Debug, Default)]
pub struct MetricsText {
    text: String,
    nameless: bool,
}

/// Labels whose values are names that clients have given.
const NAMES: [&str; 2] = ["topic", "consumer_group"];

impl MetricsText {
    /// Leaves out every sample that names a topic or a consumer group.
    #[must_use]
    pub fn without_names() -> Self {
        Self { nameless: true, ..Self::default() }
    }

    /// Announces a value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str) -> MetricFamily<'_> {
        self.family(name, help, "gauge")
    }

    /// Announces a value that only grows while the process lives.
    pub fn counter(&mut self, name: &str, help: &str) -> MetricFamily<'_> {
        self.family(name, help, "counter")
    }

    /// Announces how values are spread.
    pub fn histogram(&mut self, name: &str, help: &str) -> MetricFamily<'_> {
        self.family(name, help, "histogram")
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) -> MetricFamily<'_> {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        MetricFamily { text: &mut self.text, nameless: self.nameless, name: name.to_owned() }
    }

    /// The text, as Prometheus reads it.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

/// One metric, to which samples are added.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    text: &'a mut String,
    nameless: bool,
    name: String,
}

impl MetricFamily<'_> {
    /// Adds one sample. Label values are escaped; names are ours.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        self.line("", labels, value)
    }

    /// Adds one histogram of times, in seconds.
    pub fn times(&mut self, labels: &[(&str, &str)], times: &TimeHistogram) -> &mut Self {
        let at_most = times.at_most.iter().map(|(bound, count)| (bound.as_secs_f64(), *count));
        self.buckets(labels, at_most, times.count, times.total.as_secs_f64())
    }

    /// Adds one histogram: how many values are at most so large, for each bound in rising order; how many there are; and
    /// their sum.
    pub fn buckets(
        &mut self,
        labels: &[(&str, &str)],
        at_most: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) -> &mut Self {
        for (bound, count) in at_most {
            self.bucket(labels, &bound.to_string(), count);
        }
        self.bucket(labels, "+Inf", count);
        self.line("_sum", labels, sum);
        self.line("_count", labels, count)
    }

    fn bucket(&mut self, labels: &[(&str, &str)], bound: &str, count: u64) {
        let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
        self.line("_bucket", &labels, count);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        if self.nameless && labels.iter().any(|(label, _)| NAMES.contains(label)) {
            return self;
        }
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (number, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if number == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_histogram_ends_with_everything() {
        let times = TimeHistogram {
            at_most: vec![(Duration::from_micros(250), 3), (Duration::from_secs(1), 4)],
            count: 5,
            total: Duration::from_millis(2_500),
        };
        let mut metrics = MetricsText::default();
        metrics.histogram("a", "Some a.").times(&[("group", "x")], &times);
        assert_eq!(
            metrics.into_text(),
            "# HELP a Some a.\n# TYPE a histogram\na_bucket{group=\"x\",le=\"0.00025\"} 3\na_bucket{group=\"x\",le=\"1\"} 4\n\
             a_bucket{group=\"x\",le=\"+Inf\"} 5\na_sum{group=\"x\"} 2.5\na_count{group=\"x\"} 5\n"
        );
    }

    #[test]
    fn names_of_clients_are_left_out_where_nobody_shows_a_token() {
        let mut metrics = MetricsText::without_names();
        let labels = [("broker", "b"), ("topic", "secret"), ("group", "plans")];
        metrics.gauge("a", "Some a.").sample(&labels, 1).sample(&[("consumer_group", "spies")], 1);
        metrics.gauge("b", "Some b.").sample(&[("group", "broker-a")], 1);
        let text = metrics.into_text();
        assert!(!text.contains("secret") && !text.contains("plans") && !text.contains("spies"), "{text}");
        assert!(text.contains("b{group=\"broker-a\"} 1"), "{text}");
    }

    #[test]
    fn samples_follow_their_announcement() {
        let mut metrics = MetricsText::default();
        metrics.gauge("a", "Some a.").sample(&[], 1).sample(&[("group", "b\"x"), ("node", "n1")], 2.5);
        assert_eq!(metrics.into_text(), "# HELP a Some a.\n# TYPE a gauge\na 1\na{group=\"b\\\"x\",node=\"n1\"} 2.5\n");
    }
}
