//! SQL92 expressions over the properties of a message.
//!
//! ```text
//! or         = and { OR and }
//! and        = not { AND not }
//! not        = NOT not | condition
//! condition  = '(' or ')' | operand [ test ]          an operand alone must be TRUE, FALSE or NULL
//! test       = ( '=' | '<>' | '<' | '<=' | '>' | '>=' ) operand
//!            | IS [ NOT ] NULL
//!            | [ NOT ] BETWEEN operand AND operand
//!            | [ NOT ] IN '(' text { ',' text } ')'
//!            | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) text
//! operand    = property | [ '-' ] number | text | TRUE | FALSE | NULL
//! ```
//!
//! Words of the language are written in any case; names of properties are letters, digits, `_`, `$` and `.`, in their own
//! case. A property is text. Compared with a number or a truth value it is read as one, and if it cannot be, the
//! comparison is false. A property that is not there makes a comparison *unknown*: so is `NOT` unknown, `unknown AND
//! false` is false, `unknown OR true` is true. A message passes when the whole is true.

use std::cmp::Ordering;
use std::fmt;

use protocol::message::Properties;

/// How deep conditions may be nested.
const DEPTH_MAX: usize = 16;

/// An expression that has been understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expression(Node);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Or(Vec<Node>),
    And(Vec<Node>),
    Not(Box<Node>),
    Constant(Option<bool>),
    Compare(Operand, Comparison, Operand),
    IsNull(Operand),
    Between(Operand, Operand, Operand),
    In(Operand, Vec<String>),
    Text(Operand, TextTest, String),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Property(String),
    Whole(i64),
    Decimal(f64),
    Text(String),
    Truth(bool),
    Null,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextTest {
    Contains,
    StartsWith,
    EndsWith,
}

/// Why an expression is none, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {what}")]
pub(crate) struct SyntaxError {
    /// Counted from 1.
    at: usize,
    what: String,
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`SyntaxError`] with the place of the first thing that is not understood.
    pub(crate) fn parse(text: &str) -> Result<Self, SyntaxError> {
        let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
        let node = parser.or()?;
        match parser.peek() {
            Token::End => Ok(Self(node)),
            _ => Err(parser.expected("AND, OR or the end")),
        }
    }

    /// Whether a message with these properties passes.
    pub(crate) fn passes(&self, properties: &Properties<'_>) -> bool {
        self.0.evaluate(properties) == Some(true)
    }
}

impl Node {
    /// `None` is unknown.
    fn evaluate(&self, properties: &Properties<'_>) -> Option<bool> {
        match self {
            Self::Or(nodes) => any(nodes.iter().map(|node| node.evaluate(properties))),
            Self::And(nodes) => {
                any(nodes.iter().map(|node| node.evaluate(properties).map(|holds| !holds))).map(|no| !no)
            }
            Self::Not(node) => node.evaluate(properties).map(|holds| !holds),
            Self::Constant(value) => *value,
            Self::Compare(left, comparison, right) => compare(left, *comparison, right, properties),
            Self::IsNull(operand) => Some(operand.value(properties).is_none()),
            Self::Between(operand, low, high) => any([
                compare(operand, Comparison::Less, low, properties),
                compare(operand, Comparison::Greater, high, properties),
            ])
            .map(|outside| !outside && comparable(operand, low, properties) && comparable(operand, high, properties)),
            Self::In(operand, texts) => {
                let value = operand.value(properties)?;
                Some(matches!(value, Value::Text(value) if texts.iter().any(|text| text == value)))
            }
            Self::Text(operand, test, text) => {
                let Value::Text(value) = operand.value(properties)? else { return Some(false) };
                Some(match test {
                    TextTest::Contains => value.contains(text.as_str()),
                    TextTest::StartsWith => value.starts_with(text.as_str()),
                    TextTest::EndsWith => value.ends_with(text.as_str()),
                })
            }
        }
    }
}

/// True if one is, else unknown if one is.
fn any(values: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let mut unknown = false;
    for value in values {
        match value {
            Some(true) => return Some(true),
            Some(false) => {}
            None => unknown = true,
        }
    }
    if unknown { None } else { Some(false) }
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Whole(i64),
    Decimal(f64),
    Text(&'a str),
    Truth(bool),
}

impl Operand {
    fn value<'a>(&'a self, properties: &Properties<'a>) -> Option<Value<'a>> {
        Some(match self {
            Self::Property(name) => Value::Text(properties.get(name)?),
            Self::Whole(number) => Value::Whole(*number),
            Self::Decimal(number) => Value::Decimal(*number),
            Self::Text(text) => Value::Text(text),
            Self::Truth(truth) => Value::Truth(*truth),
            Self::Null => return None,
        })
    }
}

fn compare(left: &Operand, comparison: Comparison, right: &Operand, properties: &Properties<'_>) -> Option<bool> {
    let (left, right) = (left.value(properties)?, right.value(properties)?);
    let order = order(left, right);
    Some(match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

fn comparable(left: &Operand, right: &Operand, properties: &Properties<'_>) -> bool {
    matches!((left.value(properties), right.value(properties)), (Some(left), Some(right)) if order(left, right).is_some())
}

/// How two values stand to each other; none if they cannot be compared. Text is read as what the other side is.
#[expect(clippy::cast_precision_loss, reason = "a whole number beside a decimal one is compared as a decimal one")]
fn order(left: Value<'_>, right: Value<'_>) -> Option<Ordering> {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Text(text), other) => order(text_as(text, other)?, other),
        (other, Value::Text(text)) => order(other, text_as(text, other)?),
        (Value::Whole(left), Value::Whole(right)) => Some(left.cmp(&right)),
        (Value::Whole(left), Value::Decimal(right)) => (left as f64).partial_cmp(&right),
        (Value::Decimal(left), Value::Whole(right)) => left.partial_cmp(&(right as f64)),
        (Value::Decimal(left), Value::Decimal(right)) => left.partial_cmp(&right),
        (Value::Truth(left), Value::Truth(right)) => Some(left.cmp(&right)),
        (Value::Truth(_), _) | (_, Value::Truth(_)) => None,
    }
}

fn text_as<'a>(text: &'a str, other: Value<'a>) -> Option<Value<'a>> {
    match other {
        Value::Whole(_) => text.parse().ok().map(Value::Whole),
        Value::Decimal(_) => text.trim().parse().ok().map(Value::Decimal),
        Value::Truth(_) if text.eq_ignore_ascii_case("true") => Some(Value::Truth(true)),
        Value::Truth(_) if text.eq_ignore_ascii_case("false") => Some(Value::Truth(false)),
        Value::Truth(_) => None,
        Value::Text(_) => Some(Value::Text(text)),
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// A word of the language or the name of a property.
    Word(String),
    Whole(i64),
    Decimal(f64),
    Text(String),
    Comparison(Comparison),
    Open,
    Close,
    Comma,
    Minus,
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => write!(f, "`{word}`"),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Decimal(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "'{text}'"),
            Self::Comparison(_) => f.write_str("a comparison"),
            Self::Open => f.write_str("`(`"),
            Self::Close => f.write_str("`)`"),
            Self::Comma => f.write_str("`,`"),
            Self::Minus => f.write_str("`-`"),
            Self::End => f.write_str("the end"),
        }
    }
}

/// Tokens and where each begins, counted in characters from 1. The last one is [`Token::End`].
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let characters: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = characters.get(at) {
        let begin = at + 1;
        let error = |what: String| SyntaxError { at: begin, what };
        let run = |from: usize, holds: fn(char) -> bool| {
            characters[from..].iter().position(|c| !holds(*c)).map_or(characters.len(), |length| from + length)
        };
        let token = match c {
            _ if c.is_whitespace() => {
                at += 1;
                continue;
            }
            '\'' => {
                let mut value = String::new();
                loop {
                    at += 1;
                    match characters.get(at) {
                        None => return Err(error("the text has no closing quote".to_owned())),
                        Some('\'') if characters.get(at + 1) == Some(&'\'') => at += 1,
                        Some('\'') => break,
                        Some(_) => {}
                    }
                    value.push(characters[at]);
                }
                at += 1;
                Token::Text(value)
            }
            _ if c.is_ascii_digit() || c == '.' => {
                let mut end = run(at, |c| c.is_ascii_digit() || c == '.');
                if matches!(characters.get(end), Some('e' | 'E')) {
                    let signed = usize::from(matches!(characters.get(end + 1), Some('+' | '-')));
                    end = run(end + 1 + signed, |c| c.is_ascii_digit());
                }
                let number: String = characters[at..end].iter().collect();
                at = end;
                match (number.parse(), number.parse()) {
                    (Ok(whole), _) => Token::Whole(whole),
                    (_, Ok(decimal)) => Token::Decimal(decimal),
                    _ => return Err(error(format!("`{number}` is not a number"))),
                }
            }
            _ if c.is_alphabetic() || matches!(c, '_' | '$') => {
                let end = run(at, |c| c.is_alphanumeric() || matches!(c, '_' | '$' | '.'));
                let word = characters[at..end].iter().collect();
                at = end;
                Token::Word(word)
            }
            _ => {
                let pair = (c, characters.get(at + 1));
                let (token, length) = match pair {
                    ('<', Some('>')) => (Token::Comparison(Comparison::NotEqual), 2),
                    ('<', Some('=')) => (Token::Comparison(Comparison::LessOrEqual), 2),
                    ('>', Some('=')) => (Token::Comparison(Comparison::GreaterOrEqual), 2),
                    ('<', _) => (Token::Comparison(Comparison::Less), 1),
                    ('>', _) => (Token::Comparison(Comparison::Greater), 1),
                    ('=', _) => (Token::Comparison(Comparison::Equal), 1),
                    ('(', _) => (Token::Open, 1),
                    (')', _) => (Token::Close, 1),
                    (',', _) => (Token::Comma, 1),
                    ('-', _) => (Token::Minus, 1),
                    _ => return Err(error(format!("`{c}` means nothing here"))),
                };
                at += length;
                token
            }
        };
        tokens.push((begin, token));
    }
    tokens.push((characters.len() + 1, Token::End));
    Ok(tokens)
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].1
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        // The end is never passed.
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn error(&self, what: impl Into<String>) -> SyntaxError {
        SyntaxError { at: self.tokens[self.next].0, what: what.into() }
    }

    fn expected(&self, what: &str) -> SyntaxError {
        self.error(format!("expected {what}, found {}", self.peek()))
    }

    fn takes(&mut self, token: &Token) -> bool {
        let is = self.peek() == token;
        if is {
            self.take();
        }
        is
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Token::Word(found) if found.eq_ignore_ascii_case(word));
        if is {
            self.take();
        }
        is
    }

    fn want(&mut self, token: &Token) -> Result<(), SyntaxError> {
        if self.takes(token) { Ok(()) } else { Err(self.expected(&token.to_string())) }
    }

    fn want_word(&mut self, word: &str) -> Result<(), SyntaxError> {
        if self.takes_word(word) { Ok(()) } else { Err(self.expected(word)) }
    }

    fn want_text(&mut self) -> Result<String, SyntaxError> {
        match self.peek().clone() {
            Token::Text(text) => {
                self.take();
                Ok(text)
            }
            _ => Err(self.expected("a text between quotes")),
        }
    }

    fn or(&mut self) -> Result<Node, SyntaxError> {
        let mut nodes = vec![self.and()?];
        while self.takes_word("OR") {
            nodes.push(self.and()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Or(nodes) })
    }

    fn and(&mut self) -> Result<Node, SyntaxError> {
        let mut nodes = vec![self.not()?];
        while self.takes_word("AND") {
            nodes.push(self.not()?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::And(nodes) })
    }

    fn not(&mut self) -> Result<Node, SyntaxError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("conditions are nested more than {DEPTH_MAX} deep")));
        }
        let node = if self.takes_word("NOT") { Node::Not(Box::new(self.not()?)) } else { self.condition()? };
        self.depth -= 1;
        Ok(node)
    }

    fn condition(&mut self) -> Result<Node, SyntaxError> {
        if self.takes(&Token::Open) {
            let node = self.or()?;
            self.want(&Token::Close)?;
            return Ok(node);
        }
        let begin = self.next;
        let operand = self.operand()?;
        if let Token::Comparison(comparison) = *self.peek() {
            self.take();
            let right = self.operand()?;
            if !matches!(comparison, Comparison::Equal | Comparison::NotEqual) {
                self.orderable(begin, &operand)?;
                self.orderable(self.next - 1, &right)?;
            }
            return Ok(Node::Compare(operand, comparison, right));
        }
        if self.takes_word("IS") {
            let not = self.takes_word("NOT");
            self.want_word("NULL")?;
            return Ok(negate(not, Node::IsNull(operand)));
        }
        let not = self.takes_word("NOT");
        let test = if self.takes_word("BETWEEN") {
            self.orderable(begin, &operand)?;
            let low = self.operand()?;
            self.orderable(self.next - 1, &low)?;
            self.want_word("AND")?;
            let high = self.operand()?;
            self.orderable(self.next - 1, &high)?;
            Node::Between(operand, low, high)
        } else if self.takes_word("IN") {
            self.want(&Token::Open)?;
            let mut texts = vec![self.want_text()?];
            while self.takes(&Token::Comma) {
                texts.push(self.want_text()?);
            }
            self.want(&Token::Close)?;
            Node::In(operand, texts)
        } else if self.takes_word("CONTAINS") {
            Node::Text(operand, TextTest::Contains, self.want_text()?)
        } else if self.takes_word("STARTSWITH") {
            Node::Text(operand, TextTest::StartsWith, self.want_text()?)
        } else if self.takes_word("ENDSWITH") {
            Node::Text(operand, TextTest::EndsWith, self.want_text()?)
        } else {
            return match operand {
                Operand::Truth(truth) if !not => Ok(Node::Constant(Some(truth))),
                Operand::Null if !not => Ok(Node::Constant(None)),
                _ => Err(self.expected("a comparison, IS, IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")),
            };
        };
        Ok(negate(not, test))
    }

    fn operand(&mut self) -> Result<Operand, SyntaxError> {
        let minus = self.takes(&Token::Minus);
        let operand = match self.peek().clone() {
            Token::Whole(number) if minus => Operand::Whole(-number),
            Token::Decimal(number) if minus => Operand::Decimal(-number),
            _ if minus => return Err(self.expected("a number")),
            Token::Whole(number) => Operand::Whole(number),
            Token::Decimal(number) => Operand::Decimal(number),
            Token::Text(text) => Operand::Text(text),
            Token::Word(word) if word.eq_ignore_ascii_case("TRUE") => Operand::Truth(true),
            Token::Word(word) if word.eq_ignore_ascii_case("FALSE") => Operand::Truth(false),
            Token::Word(word) if word.eq_ignore_ascii_case("NULL") => Operand::Null,
            Token::Word(word) if !is_reserved(&word) => Operand::Property(word),
            _ => return Err(self.expected("a property or a value")),
        };
        self.take();
        Ok(operand)
    }

    /// Refuses what has no order: only numbers and properties have one.
    fn orderable(&self, token: usize, operand: &Operand) -> Result<(), SyntaxError> {
        match operand {
            Operand::Property(_) | Operand::Whole(_) | Operand::Decimal(_) => Ok(()),
            Operand::Text(_) | Operand::Truth(_) | Operand::Null => {
                let (at, found) = &self.tokens[token];
                Err(SyntaxError { at: *at, what: format!("{found} cannot be compared by size") })
            }
        }
    }
}

fn negate(not: bool, node: Node) -> Node {
    if not { Node::Not(Box::new(node)) } else { node }
}

fn is_reserved(word: &str) -> bool {
    const RESERVED: [&str; 10] =
        ["AND", "OR", "NOT", "IS", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH", "NULL"];
    RESERVED.iter().any(|reserved| word.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROPERTIES: &str = "a\u{1}5\u{2}b\u{1}x'y\u{2}c\u{1}true\u{2}d\u{1}2.5\u{2}n.o\u{1}-3\u{2}";

    fn passes(text: &str) -> Option<bool> {
        let expression = Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        expression.0.evaluate(&Properties::new(PROPERTIES))
    }

    fn check(expected: Option<bool>, texts: &[&str]) {
        for text in texts {
            assert_eq!(passes(text), expected, "{text}");
            let negated = format!("NOT ({text})");
            assert_eq!(passes(&negated), expected.map(|holds| !holds), "{negated}");
        }
    }

    #[test]
    fn comparisons_read_text_as_what_the_other_side_is() {
        check(
            Some(true),
            &[
                "a = 5",
                "a = '5'",
                "5 = a",
                "a <> 6",
                "a < 6",
                "a <= 5",
                "a > 4",
                "a >= -5",
                "n.o = -3",
                "n.o < -2.5",
                "d = 2.5",
                "d > 2.25e0",
                "d >= 25e-1",
                "c = TRUE",
                "c <> false",
                "b = 'x''y'",
                "a > d",
                "a BETWEEN 5 AND 6",
                "a not between 6 and 7",
                "d BETWEEN 2.0 AND 3.0",
                "b <> 5",
                "b = b",
            ],
        );
        check(
            Some(false),
            // A decimal property is no whole number, a word is no number at all.
            &["a = 6", "d > 2", "b > 5", "b = 5", "b BETWEEN 1 AND 9", "a = TRUE", "c = 'TRUE'", "a BETWEEN 6 AND 9"],
        );
    }

    #[test]
    fn what_is_not_there_is_unknown() {
        check(
            None,
            &[
                "z = 1",
                "z <> 1",
                "1 > z",
                "z IN ('1')",
                "z NOT IN ('1')",
                "z BETWEEN 1 AND 2",
                "z CONTAINS 'x'",
                "z = NULL",
                "NULL",
                "z = 1 AND a = 5",
                "z = 1 OR a = 6",
                "A = 5",
            ],
        );
        check(Some(true), &["z IS NULL", "a IS NOT NULL", "z = 1 OR a = 5", "TRUE"]);
        check(Some(false), &["z IS NOT NULL", "z = 1 AND a = 6", "FALSE", "a IS NULL"]);
        assert!(!Expression::parse("NOT z = 1").unwrap().passes(&Properties::new(PROPERTIES)));
    }

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        check(
            Some(true),
            &["a = 5 OR a = 5 AND a = 6", "NOT a = 6 AND a = 5", "not not a = 5", "(a=6 OR a=5) AND c=true"],
        );
        check(Some(false), &["(a = 5 OR a = 5) AND a = 6", "NOT a = 5 OR a = 6"]);
    }

    #[test]
    fn texts_are_looked_into() {
        check(
            Some(true),
            &["b IN ('q', 'x''y')", "a NOT IN ('6')", "b contains ''''", "b STARTSWITH 'x'", "b NOT ENDSWITH 'x'"],
        );
        check(Some(false), &["b IN ('x')", "5 IN ('5')", "b CONTAINS 'z'", "5 CONTAINS '5'", "b ENDSWITH 'x'"]);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, expected) in [
            ("", "at character 1: expected a property or a value, found the end"),
            (
                "a",
                "at character 2: expected a comparison, IS, IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH, found the end",
            ),
            ("a = ", "at character 5: expected a property or a value, found the end"),
            ("a = 1 b", "at character 7: expected AND, OR or the end, found `b`"),
            ("(a = 1", "at character 7: expected `)`, found the end"),
            ("a > 'x'", "at character 5: 'x' cannot be compared by size"),
            ("TRUE < a", "at character 1: `TRUE` cannot be compared by size"),
            ("a IN ()", "at character 7: expected a text between quotes, found `)`"),
            ("a IN (1)", "at character 7: expected a text between quotes, found 1"),
            ("a = 'x", "at character 5: the text has no closing quote"),
            ("a = 1.2.3", "at character 5: `1.2.3` is not a number"),
            ("a ; b", "at character 3: `;` means nothing here"),
            ("\u{fc} = 1 AND # = 2", "at character 11: `#` means nothing here"),
            ("a = -'x'", "at character 6: expected a number, found 'x'"),
            ("a BETWEEN 1 OR 2", "at character 13: expected AND, found `OR`"),
            ("a IS 5", "at character 6: expected NULL, found 5"),
            ("AND = 1", "at character 1: expected a property or a value, found `AND`"),
        ] {
            assert_eq!(Expression::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn nesting_is_limited() {
        let nested = |depth: usize| format!("{}a = 5{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(passes(&nested(DEPTH_MAX - 1)), Some(true));
        let error = Expression::parse(&nested(DEPTH_MAX)).unwrap_err();
        assert_eq!(error.to_string(), "at character 17: conditions are nested more than 16 deep");
        assert!(Expression::parse(&"NOT ".repeat(100_000)).is_err());
        // Many side by side are not deep.
        assert_eq!(passes(&vec!["a = 6"; 100].join(" OR ")), Some(false));
    }

    proptest::proptest! {
        #[test]
        fn noise_is_refused_or_understood_without_a_panic(text in "[a-z'()=<>,.0-9 -]{0,60}|(NOT |AND |a |= |5 |\\( |\\) |IN |'x' |NULL ){0,20}") {
            if let Ok(expression) = Expression::parse(&text) {
                expression.passes(&Properties::new(PROPERTIES));
            }
        }
    }
}
