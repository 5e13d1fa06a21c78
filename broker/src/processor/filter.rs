//! Which messages a subscription wants: by tag or by an SQL92 expression over properties.
//!
//! Tags are compared by hash, never by text.
//! A consume queue entry holds only Java's `String.hashCode` of a message's tag, so two tags can look alike here; every
//! client filters again by text. The hashes a client sends are ignored: two of the client families compute them in ways
//! of their own, and the expression text says the same thing without doubt.

mod sql92;

use std::sync::Arc;

use protocol::message::{RecordView, java_hash_code};

use self::sql92::{Expression, SyntaxError};
use crate::store::PullFilter;

/// Longest expression a subscription may carry, in bytes.
pub(crate) const EXPRESSION_BYTES_MAX: usize = 1024;

/// The expression that matches every message.
pub(crate) const MATCH_ALL: &str = "*";

/// Which messages of a queue a subscription wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageFilter {
    /// Every message.
    All,
    /// Messages whose tag has one of these hashes, in ascending order.
    Tags(Arc<[i32]>),
    /// Messages whose properties fulfil an expression.
    Sql(Arc<SqlFilter>),
}

/// An SQL92 expression.
#[derive(Debug, PartialEq)]
pub struct SqlFilter(Expression);

impl Eq for SqlFilter {}

impl MessageFilter {
    /// Whether a message with this tag hash may pass.
    ///
    /// The hash is compared as a 32-bit integer, because an entry holds it sign-extended to 64 bits.
    pub fn may_pass(&self, tags_code: i64) -> bool {
        match self {
            Self::All | Self::Sql(_) => true,
            Self::Tags(codes) => i32::try_from(tags_code).is_ok_and(|code| codes.binary_search(&code).is_ok()),
        }
    }
}

impl PullFilter for MessageFilter {
    fn may_pass(&self, tags_code: i64) -> bool {
        self.may_pass(tags_code)
    }

    fn passes(&self, record: &[u8]) -> bool {
        match self {
            Self::All | Self::Tags(_) => true,
            Self::Sql(sql) => RecordView::parse(record).is_ok_and(|record| sql.0.passes(&record.properties())),
        }
    }
}

/// Why an expression cannot be used; the text goes into the answer's remark.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    /// The expression is longer than [`EXPRESSION_BYTES_MAX`].
    #[error("the expression has {0} bytes, more than {EXPRESSION_BYTES_MAX}")]
    TooLong(usize),
    /// Only separators and blanks.
    #[error("the expression names no tag")]
    NoTag,
    /// An SQL92 expression that is not understood.
    #[error("the expression is not understood {0}")]
    Syntax(#[from] SyntaxError),
    /// Not a kind of expression this broker evaluates.
    #[error("The broker does not support consumer to filter message by {0}")]
    UnsupportedKind(String),
}

/// Whether `expression_type` names tag expressions; absent and empty mean tags.
pub(crate) fn is_tag_type(expression_type: Option<&str>) -> bool {
    matches!(expression_type, None | Some("" | "TAG"))
}

/// Reads a tag expression: empty or `*` for all messages, else tags separated by `||`.
///
/// # Errors
/// [`FilterError::TooLong`] and [`FilterError::NoTag`].
pub(crate) fn parse_tags(expression: &str) -> Result<MessageFilter, FilterError> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(FilterError::TooLong(expression.len()));
    }
    if expression.is_empty() || expression == MATCH_ALL {
        return Ok(MessageFilter::All);
    }
    let mut codes: Vec<i32> = tags_of(expression).map(java_hash_code).collect();
    if codes.is_empty() {
        return Err(FilterError::NoTag);
    }
    codes.sort_unstable();
    codes.dedup();
    Ok(MessageFilter::Tags(codes.into()))
}

/// Reads an expression of any type.
///
/// # Errors
/// As [`parse_tags`], [`FilterError::Syntax`], and [`FilterError::UnsupportedKind`] for every other type.
pub(crate) fn parse(expression: &str, expression_type: Option<&str>) -> Result<MessageFilter, FilterError> {
    if is_tag_type(expression_type) {
        parse_tags(expression)
    } else if expression_type == Some("SQL92") {
        if expression.len() > EXPRESSION_BYTES_MAX {
            return Err(FilterError::TooLong(expression.len()));
        }
        Ok(MessageFilter::Sql(Arc::new(SqlFilter(Expression::parse(expression)?))))
    } else {
        Err(FilterError::UnsupportedKind(expression_type.unwrap_or_default().to_owned()))
    }
}

/// The tags that an expression names, in order.
pub(crate) fn tags_of(expression: &str) -> impl Iterator<Item = &str> {
    expression.split("||").map(str::trim).filter(|tag| !tag.is_empty() && *tag != MATCH_ALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str, expected: &[i32]) {
        let expected = if expected.is_empty() { MessageFilter::All } else { MessageFilter::Tags(expected.into()) };
        assert_eq!(parse_tags(expression), Ok(expected), "{expression:?}");
    }

    #[test]
    fn expressions_become_sorted_hashes() {
        check("", &[]);
        check("*", &[]);
        check("TagA", &[2_598_919]);
        check("TagB || TagA", &[2_598_919, 2_598_920]);
        check(" TagA ||||TagA|| ", &[2_598_919]);
        check("\u{8ba2}\u{5355}", &[1_129_459]);
    }

    #[test]
    fn useless_expressions_are_refused() {
        assert_eq!(parse_tags(" || "), Err(FilterError::NoTag));
        assert_eq!(parse_tags(&"a".repeat(1025)), Err(FilterError::TooLong(1025)));
        assert!(matches!(parse("a = 1", Some("XPATH")), Err(FilterError::UnsupportedKind(_))));
        assert!(matches!(parse("a = ", Some("SQL92")), Err(FilterError::Syntax(_))));
        assert_eq!(parse(&"a".repeat(1025), Some("SQL92")), Err(FilterError::TooLong(1025)));
    }

    #[test]
    fn hashes_are_compared_as_32_bit_integers() {
        let filter = parse_tags("TagA").unwrap();
        assert!(filter.may_pass(2_598_919));
        assert!(!filter.may_pass(2_598_920));
        assert!(!filter.may_pass(2_598_919 + (1 << 32)));
        assert!(MessageFilter::All.may_pass(i64::MIN));
    }
}
