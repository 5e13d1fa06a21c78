//! One request or response.

use std::fmt::Display;

use bytes::Bytes;

use crate::code::{LanguageCode, RequestCode, ResponseCode};
use crate::ext_fields::ExtFields;

/// The version number (V5_3_3) in everything we send.
///
/// Clients switch features on by it: at least 232 lets Java consumers use SQL92 expressions; below 612 Java knows its name.
pub const PROTOCOL_VERSION: i32 = 479;

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;

/// How a header is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderForm {
    /// A JSON object. Every client reads it.
    Json,
    /// The compact binary layout, which CPP clients do not read.
    RocketMq,
}

/// One request or response, as it travels in a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct RemotingCommand {
    /// A [`RequestCode`] or, in a response, a [`ResponseCode`].
    pub code: i32,
    /// The sender's language.
    pub language: LanguageCode,
    /// The sender's version.
    pub version: i32,
    /// Ties a response to its request.
    pub opaque: i32,
    /// Bit 0: response; bit 1: no response wanted.
    pub flag: i32,
    /// Text for people; may explain an error.
    pub remark: Option<String>,
    /// The arguments of the request or of the answer.
    pub ext: ExtFields,
    /// Whatever the code says.
    pub body: Bytes,
    /// How the header was or will be written.
    pub form: HeaderForm,
}

impl RemotingCommand {
    /// A request without arguments. Its opaque is 0 until a connection gives it one.
    #[must_use]
    pub fn request(code: RequestCode) -> Self {
        Self {
            code: code.0,
            language: LanguageCode::Java,
            version: PROTOCOL_VERSION,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::new(),
            body: Bytes::new(),
            form: HeaderForm::Json,
        }
    }

    /// A request that wants no answer.
    #[must_use]
    pub fn oneway(code: RequestCode) -> Self {
        let mut command = Self::request(code);
        command.flag = FLAG_ONEWAY;
        command
    }

    /// The answer to `request`: same opaque and header form.
    #[must_use]
    pub fn response_to(request: &Self, code: ResponseCode) -> Self {
        Self::response(request.opaque, request.form, code)
    }

    /// The answer to a request of which only `opaque` and `form` are kept.
    #[must_use]
    pub fn response(opaque: i32, form: HeaderForm, code: ResponseCode) -> Self {
        Self {
            code: code.0,
            language: LanguageCode::Java,
            version: PROTOCOL_VERSION,
            opaque,
            flag: FLAG_RESPONSE,
            remark: None,
            ext: ExtFields::new(),
            body: Bytes::new(),
            form,
        }
    }

    /// The same command with `remark`.
    #[must_use]
    pub fn with_remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = Some(remark.into());
        self
    }

    /// The same command with one more ext field.
    #[must_use]
    pub fn with_ext(mut self, key: &str, value: impl Display) -> Self {
        self.ext.push_display(key, value);
        self
    }

    /// The same command with `body`.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Whether this answers a request.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether the sender wants no answer. Go clients never say so: their one-way requests are answered.
    #[must_use]
    pub const fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }

    /// Marks a request as one that wants no answer.
    pub const fn mark_oneway(&mut self) {
        self.flag |= FLAG_ONEWAY;
    }

    /// The code of a request.
    #[must_use]
    pub const fn request_code(&self) -> RequestCode {
        RequestCode(self.code)
    }

    /// The code of a response.
    #[must_use]
    pub const fn response_code(&self) -> ResponseCode {
        ResponseCode(self.code)
    }

    /// Whether this is an answer that reports success.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        self.code == ResponseCode::SUCCESS.0
    }
}
