//! Who gets the requests, and how they are answered.

use std::fmt;
use std::net::SocketAddr;

use bytes::Bytes;
use protocol::HeaderForm;
use protocol::RemotingCommand;

use crate::Connection;

/// Processes requests.
pub trait Handler: Send + Sync + 'static {
    /// Called for each request, in the order of one connection, on that connection's read task.
    ///
    /// It must not block: slow work is queued or spawned together with `responder`. A panic closes the connection.
    fn handle(&self, request: RemotingCommand, responder: Responder);

    /// Called once before the first request of `connection`.
    fn opened(&self, connection: &Connection) {
        let _ = connection;
    }

    /// Called once when `connection` has ended, after its last request was handed over.
    fn closed(&self, connection: &Connection) {
        let _ = connection;
    }
}

/// Answers 3 (not supported) to everything.
#[derive(Debug, Clone, Copy)]
pub struct Ignore;

impl Handler for Ignore {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let answer = RemotingCommand::response_to(&request, protocol::ResponseCode::REQUEST_CODE_NOT_SUPPORTED)
            .with_remark(format!(" request type {} not supported", request.code));
        responder.send(answer);
    }
}

/// The right to answer one request, once, from any thread.
///
/// While it lives, the request counts as in flight on its connection. Dropped unsent, it answers nothing.
pub struct Responder {
    origin: Origin,
    opaque: i32,
    code: i32,
    form: HeaderForm,
    oneway: bool,
    bytes: usize,
    answered: bool,
}

enum Origin {
    Connection(Connection),
    Detached { peer: SocketAddr, done: Option<Box<dyn FnOnce(RemotingCommand) + Send>> },
}

impl Responder {
    pub(crate) fn new(connection: Connection, request: &RemotingCommand, bytes: usize) -> Self {
        Self {
            origin: Origin::Connection(connection),
            opaque: request.opaque,
            code: request.code,
            form: request.form,
            oneway: request.is_oneway(),
            bytes,
            answered: false,
        }
    }

    /// A responder for a request that came some other way, such as forwarded by another node.
    ///
    /// `origin` is the address of the client. `done` gets the answer, its body in one piece; a one-way request never
    /// calls it.
    pub fn detached(
        request: &RemotingCommand,
        origin: SocketAddr,
        done: impl FnOnce(RemotingCommand) + Send + 'static,
    ) -> Self {
        Self {
            origin: Origin::Detached { peer: origin, done: Some(Box::new(done)) },
            opaque: request.opaque,
            code: request.code,
            form: request.form,
            oneway: request.is_oneway(),
            bytes: 0,
            answered: false,
        }
    }

    /// Sends `answer`. Its opaque, response bit and header form are set to fit the request.
    ///
    /// Does nothing for a one-way request or on a closed connection.
    pub fn send(self, answer: RemotingCommand) {
        self.send_parts(answer, Vec::new());
    }

    /// Sends `head` with a body made of the body of `head` and then `parts`, none of which is copied if it is large.
    pub fn send_parts(mut self, mut head: RemotingCommand, parts: Vec<Bytes>) {
        self.answered = true;
        if self.oneway {
            return;
        }
        head.opaque = self.opaque;
        head.form = self.form;
        head.flag |= 1;
        match &mut self.origin {
            Origin::Connection(connection) => connection.answer(&head, parts),
            Origin::Detached { done, .. } => {
                if !parts.is_empty() {
                    let mut body = Vec::with_capacity(head.body.len() + parts.iter().map(Bytes::len).sum::<usize>());
                    body.extend_from_slice(&head.body);
                    for part in &parts {
                        body.extend_from_slice(part);
                    }
                    head.body = Bytes::from(body);
                }
                if let Some(done) = done.take() {
                    done(head);
                }
            }
        }
    }

    /// Gives the answer up on purpose: some requests are better not answered at all.
    pub fn forget(mut self) {
        self.answered = true;
    }

    /// The connection of the request; `None` for a detached one.
    #[must_use]
    pub fn connection(&self) -> Option<&Connection> {
        match &self.origin {
            Origin::Connection(connection) => Some(connection),
            Origin::Detached { .. } => None,
        }
    }

    /// The client's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        match &self.origin {
            Origin::Connection(connection) => connection.peer_addr(),
            Origin::Detached { peer, .. } => *peer,
        }
    }

    /// Whether an answer can still reach anybody. False for a one-way request.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.oneway
            && match &self.origin {
                Origin::Connection(connection) => connection.is_open(),
                Origin::Detached { .. } => true,
            }
    }

    /// Whether the request is one-way.
    #[must_use]
    pub fn is_oneway(&self) -> bool {
        self.oneway
    }

    /// The opaque of the request.
    #[must_use]
    pub fn opaque(&self) -> i32 {
        self.opaque
    }

    /// The header form of the request.
    #[must_use]
    pub fn form(&self) -> HeaderForm {
        self.form
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered && !self.oneway {
            tracing::debug!(code = self.code, opaque = self.opaque, "request is dropped without an answer");
        }
        if let Origin::Connection(connection) = &self.origin {
            connection.request_done(self.bytes);
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("peer", &self.peer_addr())
            .field("code", &self.code)
            .field("opaque", &self.opaque)
            .field("oneway", &self.oneway)
            .finish_non_exhaustive()
    }
}
