//! Prometheus' text format.

use std::fmt::Write as _;

/// Metrics as text; samples of one name are added together.
#[derive(Debug, Default)]
pub struct MetricsText {
    text: String,
}

impl MetricsText {
    /// Announces a value that goes up and down.
    pub fn gauge(&mut self, name: &str, help: &str) -> MetricFamily<'_> {
        self.family(name, help, "gauge")
    }

    /// Announces a value that only grows while the process lives.
    pub fn counter(&mut self, name: &str, help: &str) -> MetricFamily<'_> {
        self.family(name, help, "counter")
    }

    fn family(&mut self, name: &str, help: &str, kind: &str) -> MetricFamily<'_> {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        MetricFamily { text: &mut self.text, name: name.to_owned() }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// One metric, to which samples are added.
#[derive(Debug)]
pub struct MetricFamily<'a> {
    text: &'a mut String,
    name: String,
}

impl MetricFamily<'_> {
    /// Adds one sample. Label values are escaped; names are ours.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        self.text.push_str(&self.name);
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
    use super::*;

    #[test]
    fn samples_follow_their_announcement() {
        let mut metrics = MetricsText::default();
        metrics.gauge("a", "Some a.").sample(&[], 1).sample(&[("group", "b\"x"), ("node", "n1")], 2.5);
        assert_eq!(metrics.into_text(), "# HELP a Some a.\n# TYPE a gauge\na 1\na{group=\"b\\\"x\",node=\"n1\"} 2.5\n");
    }
}
