//! Sizes and durations with units, as the configuration file spells them.

use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};

/// Parses a number of bytes: `"4MiB"`, `"1GiB"`, `"512KiB"`, `"100B"`, and the decimal `"1MB"`.
///
/// # Errors
/// A sentence naming what is wrong with `text`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "" => {
            return Err(format!("size `{text}` has no unit; write `{text}B`, `{text}KiB`, `{text}MiB` or `{text}GiB`"));
        }
        other => {
            return Err(format!(
                "unknown unit `{other}` in size `{text}`; known are B, KiB, MiB, GiB, TiB, KB, MB, GB, TB"
            ));
        }
    };
    number.checked_mul(factor).ok_or_else(|| format!("size `{text}` is too large"))
}

/// Parses a time span: `"200ms"`, `"35s"`, `"5m"`, `"72h"`, `"3d"`.
///
/// # Errors
/// A sentence naming what is wrong with `text`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let seconds = |factor: u64| {
        number.checked_mul(factor).map(Duration::from_secs).ok_or_else(|| format!("duration `{text}` is too long"))
    };
    match unit {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        "" => Err(format!("duration `{text}` has no unit; write `{text}ms`, `{text}s`, `{text}m` or `{text}h`")),
        other => Err(format!("unknown unit `{other}` in duration `{text}`; known are us, ms, s, m, h, d")),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("`{text}` does not start with a whole number"));
    }
    let number = number.parse().map_err(|_| format!("the number in `{text}` is too large"))?;
    Ok((number, unit.trim()))
}

pub(super) fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_str(Text { expects: "a size with its unit, such as \"4MiB\"", parse: parse_bytes })
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text { expects: "a duration with its unit, such as \"200ms\"", parse: parse_duration })
}

/// Reads a string and hands it to `parse`; any other type is refused with what was expected.
struct Text<T> {
    expects: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.expects)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!(parse_bytes("1GiB"), Ok(1 << 30));
        assert_eq!(parse_bytes("4 MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("1MB"), Ok(1_000_000));
        assert!(parse_bytes("4").unwrap_err().contains("no unit"));
        assert!(parse_bytes("GiB").unwrap_err().contains("whole number"));
        assert!(parse_bytes("4Mib").unwrap_err().contains("unknown unit `Mib`"));
        assert!(parse_bytes("99999999999TiB").unwrap_err().contains("too large"));
        assert!(parse_bytes("99999999999999999999999B").unwrap_err().contains("too large"));
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("72h"), Ok(Duration::from_secs(72 * 3_600)));
        assert!(parse_duration("35").unwrap_err().contains("no unit"));
        assert!(parse_duration("-1s").unwrap_err().contains("whole number"));
        assert!(parse_duration("1sec").unwrap_err().contains("unknown unit"));
        assert!(parse_duration("18446744073709551615d").unwrap_err().contains("too long"));
    }
}
