//! Tag expressions as the broker evaluates them: by the hash of the tag, never by its text.
//!
//! A consume queue entry holds only Java's `String.hashCode` of a message's tag, so two tags can look alike here; every
//! client filters again by text. The hashes a client sends are ignored: two of the client families compute them in ways
//! of their own, and the expression text says the same thing without doubt.

use std::sync::Arc;

use protocol::message::java_hash_code;

/// Longest expression a subscription may carry, in bytes.
pub(crate) const EXPRESSION_BYTES_MAX: usize = 1024;

/// The expression that matches every message.
pub(crate) const MATCH_ALL: &str = "*";

/// Which messages of a queue a subscription wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagFilter {
    /// Every message.
    All,
    /// Messages whose tag has one of these hashes, in ascending order.
    Codes(Arc<[i32]>),
}

impl TagFilter {
    /// Whether a message with this tag hash passes.
    ///
    /// The hash is compared as a 32-bit integer, because an entry holds it sign-extended to 64 bits.
    pub fn passes(&self, tags_code: i64) -> bool {
        match self {
            Self::All => true,
            Self::Codes(codes) => i32::try_from(tags_code).is_ok_and(|code| codes.binary_search(&code).is_ok()),
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
pub(crate) fn parse_tags(expression: &str) -> Result<TagFilter, FilterError> {
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(FilterError::TooLong(expression.len()));
    }
    if expression.is_empty() || expression == MATCH_ALL {
        return Ok(TagFilter::All);
    }
    let mut codes: Vec<i32> = tags_of(expression).map(java_hash_code).collect();
    if codes.is_empty() {
        return Err(FilterError::NoTag);
    }
    codes.sort_unstable();
    codes.dedup();
    Ok(TagFilter::Codes(codes.into()))
}

/// Reads an expression of any type.
///
/// # Errors
/// As [`parse_tags`], and [`FilterError::UnsupportedKind`] for every type but tags.
pub(crate) fn parse(expression: &str, expression_type: Option<&str>) -> Result<TagFilter, FilterError> {
    if is_tag_type(expression_type) {
        parse_tags(expression)
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
        let expected = if expected.is_empty() { TagFilter::All } else { TagFilter::Codes(expected.into()) };
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
        assert!(matches!(parse("a = 1", Some("SQL92")), Err(FilterError::UnsupportedKind(_))));
    }

    #[test]
    fn hashes_are_compared_as_32_bit_integers() {
        let filter = parse_tags("TagA").unwrap();
        assert!(filter.passes(2_598_919));
        assert!(!filter.passes(2_598_920));
        assert!(!filter.passes(2_598_919 + (1 << 32)));
        assert!(TagFilter::All.passes(i64::MIN));
    }
}
