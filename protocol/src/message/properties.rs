//! The properties of a message: `name 0x01 value 0x02`, repeated.

const NAME_END: char = '\u{1}';
const VALUE_END: char = '\u{2}';
/// Shorter pieces cannot hold a name, a separator and a value.
const PIECE_BYTES_MIN: usize = 3;

/// Names of properties that the broker or the clients give a meaning.
pub mod property {
    /// Keys for the index, separated by blanks.
    pub const KEYS: &str = "KEYS";
    /// The tag, hashed for filtering.
    pub const TAGS: &str = "TAGS";
    /// The client's own id of the message.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// Whether the sender waits for the store.
    pub const WAIT: &str = "WAIT";
    /// Delay level.
    pub const DELAY: &str = "DELAY";
    /// Topic that a retried message was first sent to.
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    /// Topic that a message kept elsewhere belongs to.
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    /// Queue that a message kept elsewhere belongs to.
    pub const REAL_QID: &str = "REAL_QID";
    /// `true`: half message.
    pub const TRAN_MSG: &str = "TRAN_MSG";
    /// Producer group of a half message.
    pub const PGROUP: &str = "PGROUP";
    /// Id of the first copy of a retried message.
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    /// How often a message was retried, if the client says so.
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    /// Limit on retries, if the client says so.
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    /// Region of the broker.
    pub const MSG_REGION: &str = "MSG_REGION";
    /// Whether the message is traced.
    pub const TRACE_ON: &str = "TRACE_ON";
    /// Cluster of the broker.
    pub const CLUSTER: &str = "CLUSTER";
    /// Transaction id.
    pub const TRANSACTION_ID: &str = "__transactionId__";
    /// How often a half message was checked.
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    /// Seconds before a half message is checked.
    pub const CHECK_IMMUNITY_TIME_IN_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    /// Queue offset of the first copy of a half message.
    pub const TRAN_PREPARED_QUEUE_OFFSET: &str = "TRAN_PREPARED_QUEUE_OFFSET";
    /// Ties a reply to its request.
    pub const CORRELATION_ID: &str = "CORRELATION_ID";
    /// Client that waits for the reply.
    pub const REPLY_TO_CLIENT: &str = "REPLY_TO_CLIENT";
    /// How long it waits.
    pub const TTL: &str = "TTL";
    /// `reply` for a reply.
    pub const MSG_TYPE: &str = "MSG_TYPE";
    /// When a reply reached the broker.
    pub const ARRIVE_TIME: &str = "ARRIVE_TIME";
    /// When a reply was handed on.
    pub const PUSH_REPLY_TIME: &str = "PUSH_REPLY_TIME";
    /// Delay in seconds.
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    /// Delay in milliseconds.
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    /// Delivery time in milliseconds.
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// Delivery time as the broker stored it.
    pub const TIMER_OUT_MS: &str = "TIMER_OUT_MS";
    /// Id of a delayed message to take back.
    pub const TIMER_DEL_UNIQKEY: &str = "TIMER_DEL_UNIQKEY";
    /// Checkpoint of a pop.
    pub const POP_CK: &str = "POP_CK";
    /// Name of the namespace.
    pub const INSTANCE_ID: &str = "INSTANCE_ID";
    /// Further queues that a message is dispatched to.
    pub const INNER_MULTI_DISPATCH: &str = "INNER_MULTI_DISPATCH";
    /// Topic that a dead letter came from.
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    /// Id of the message that became a dead letter.
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
}

/// Properties as they stand in a record or a request.
///
/// Pieces without a name's end, shorter than three bytes or with an empty value are skipped, as clients do. If a name occurs
/// twice the last value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Properties<'a> {
    text: &'a str,
}

impl<'a> Properties<'a> {
    /// Longest text that a record can hold.
    pub const BYTES_MAX: usize = 32_767;

    /// Reads `text`; there is none that cannot be read.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// The text.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.text
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        pieces(self.text).filter_map(parse_piece)
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().filter(|(key, _)| *key == name).last().map(|(_, value)| value)
    }

    /// The keys in [`property::KEYS`]. The index holds them and [`property::UNIQ_KEY`].
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.get(property::KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }
}

/// What stands between the ends of values.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        match memchr::memchr(VALUE_END as u8, text.as_bytes()) {
            Some(end) => {
                rest = text.get(end.saturating_add(1)..);
                text.get(..end)
            }
            None => rest.take(),
        }
    })
}

fn parse_piece(piece: &str) -> Option<(&str, &str)> {
    if piece.len() < PIECE_BYTES_MIN {
        return None;
    }
    let end = memchr::memchr(NAME_END as u8, piece.as_bytes())?;
    let (name, value) = (piece.get(..end)?, piece.get(end.saturating_add(1)..)?);
    (!value.is_empty()).then_some((name, value))
}

/// Why a property cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("property holds a separator or is empty")]
pub struct PropertiesError;

/// Properties to be changed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PropertiesBuilder {
    text: String,
}

impl PropertiesBuilder {
    /// No properties.
    #[must_use]
    pub const fn new() -> Self {
        Self { text: String::new() }
    }

    /// Starts from `text`, kept as it is except for its end.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        // Room for what a broker usually adds.
        let mut copy = String::with_capacity(text.len().saturating_add(96));
        copy.push_str(text);
        if !copy.is_empty() && !copy.ends_with(VALUE_END) {
            copy.push(VALUE_END);
        }
        Self { text: copy }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        Properties::new(&self.text).get(name)
    }

    /// Gives `name` the value `value`.
    ///
    /// # Errors
    /// If one of them is empty or holds a separator; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), PropertiesError> {
        let fit = |text: &str| !text.is_empty() && !text.contains([NAME_END, VALUE_END]);
        if !fit(name) || !fit(value) {
            return Err(PropertiesError);
        }
        self.remove(name);
        self.text.push_str(name);
        self.text.push(NAME_END);
        self.text.push_str(value);
        self.text.push(VALUE_END);
        Ok(())
    }

    /// The same, if a record still has room for the text then; says whether it had.
    ///
    /// # Errors
    /// As [`PropertiesBuilder::set`].
    pub fn set_if_it_fits(&mut self, name: &str, value: &str) -> Result<bool, PropertiesError> {
        let before = self.text.clone();
        self.set(name, value)?;
        let fits = self.as_str().len() <= Properties::BYTES_MAX;
        if !fits {
            self.text = before;
        }
        Ok(fits)
    }

    /// Removes `name` if it is there.
    pub fn remove(&mut self, name: &str) {
        if !self.text.contains(name) {
            return;
        }
        let is_name = |piece: &str| piece.split_once(NAME_END).is_some_and(|(key, _)| key == name);
        if !pieces(&self.text).any(is_name) {
            return;
        }
        let mut kept = String::with_capacity(self.text.len());
        for piece in pieces(&self.text).filter(|piece| !piece.is_empty() && !is_name(piece)) {
            kept.push_str(piece);
            kept.push(VALUE_END);
        }
        self.text = kept;
    }

    /// The text so far. Its last separator, which may be left out, is left out where a record has no room for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let is_one_too_long = self.text.len() == Properties::BYTES_MAX.saturating_add(1);
        self.text.strip_suffix(VALUE_END).filter(|_| is_one_too_long).unwrap_or(&self.text)
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let text = text.replace('=', "\u{1}").replace(';', "\u{2}");
        assert_eq!(Properties::new(&text).iter().collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn pieces_are_read_as_java_does() {
        check("", &[]);
        check("a=1;b=2;", &[("a", "1"), ("b", "2")]);
        check("a=1;b=2", &[("a", "1"), ("b", "2")]);
        check("a=;b=2;", &[("b", "2")]);
        check("a;;b=2", &[("b", "2")]);
        check("abc;b=2", &[("b", "2")]);
        check("TAGS=\u{8ba2}=x;", &[("TAGS", "\u{8ba2}\u{1}x")]);
    }

    #[test]
    fn the_last_of_equal_names_counts() {
        assert_eq!(Properties::new("a\u{1}1\u{2}a\u{1}2\u{2}").get("a"), Some("2"));
    }

    #[test]
    fn keys_are_separated_by_blanks() {
        let properties = Properties::new("KEYS\u{1}k1  k2 \u{2}");
        assert_eq!(properties.keys().collect::<Vec<_>>(), ["k1", "k2"]);
        assert_eq!(Properties::new("").keys().count(), 0);
    }

    #[test]
    fn setting_replaces_and_removing_keeps_the_rest() {
        let mut builder = PropertiesBuilder::from_text("a\u{1}1\u{2}b\u{1}2");
        builder.set("a", "3").unwrap();
        assert_eq!(builder.as_str(), "b\u{1}2\u{2}a\u{1}3\u{2}");
        builder.remove("b");
        builder.remove("absent");
        assert_eq!(builder.as_str(), "a\u{1}3\u{2}");
    }

    #[test]
    fn what_a_record_has_no_room_for_is_not_set() {
        let text = |bytes: usize| format!("a\u{1}{}", "x".repeat(bytes - 2));
        // Five bytes come along with the separator before them; the last separator may be left out.
        for (bytes, fits) in [(Properties::BYTES_MAX - 4, true), (Properties::BYTES_MAX - 3, false)] {
            let before = PropertiesBuilder::from_text(&text(bytes));
            let mut builder = before.clone();
            assert_eq!(builder.set_if_it_fits("b", "1"), Ok(fits), "{bytes}");
            assert_eq!(builder.get("b"), fits.then_some("1"));
            assert!(builder.as_str().len() <= Properties::BYTES_MAX);
            assert!(fits || builder == before);
        }
        let longest = text(Properties::BYTES_MAX);
        assert_eq!(PropertiesBuilder::from_text(&longest).as_str(), longest);
        assert_eq!(PropertiesBuilder::new().set_if_it_fits("a", ""), Err(PropertiesError));
    }

    #[test]
    fn separators_inside_names_and_values_are_refused() {
        let mut builder = PropertiesBuilder::new();
        for (name, value) in [("a\u{1}", "x"), ("a", "x\u{2}y"), ("", "x"), ("a", "")] {
            assert_eq!(builder.set(name, value), Err(PropertiesError));
        }
        assert_eq!(builder.as_str(), "");
    }
}
