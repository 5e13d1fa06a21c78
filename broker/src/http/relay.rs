//! Calls that a node makes at others for whoever called it, with his token.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{HeaderMap, Method, header};
use bytes::Bytes;
use futures::future::join_all;
use serde::de::DeserializeOwned;

use super::Admin;
use super::error::ErrorBody;
use crate::peer::{AdminCall, AdminReply};

/// When all nodes are asked the same, one that has not answered by then counts as silent.
const ALL_TIME_MAX: Duration = Duration::from_secs(2);

/// A node that asks others, and who it asks for.
#[derive(Clone, Copy)]
pub(super) struct Relay<'a> {
    pub(super) admin: &'a dyn Admin,
    authorization: &'a str,
}

impl<'a> Relay<'a> {
    /// For whoever made the call with these headers.
    pub(super) fn new(admin: &'a dyn Admin, headers: &'a HeaderMap) -> Self {
        let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        Self { admin, authorization: authorization.unwrap_or_default() }
    }

    /// Has `node` carry out a call without a body. What it answers, if that is yes.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn call(
        self,
        method: Method,
        node: &str,
        target: String,
        limit: Duration,
    ) -> Result<Bytes, String> {
        let call = AdminCall {
            method: method.to_string(),
            target,
            authorization: self.authorization.to_owned(),
            ..AdminCall::default()
        };
        match self.admin.ask(node.to_owned(), call, limit).await {
            Ok(reply) if reply.status == 200 => Ok(reply.body),
            Ok(reply) => Err(refusal(&reply)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What `node` answers to a question.
    ///
    /// # Errors
    /// Why it does not, in words.
    pub(super) async fn get<T: DeserializeOwned>(
        self,
        node: &str,
        target: String,
        limit: Duration,
    ) -> Result<T, String> {
        let body = self.call(Method::GET, node, target, limit).await?;
        serde_json::from_slice(&body).map_err(|error| format!("its answer cannot be read: {error}"))
    }

    /// What each other node answers to a question.
    pub(super) async fn get_of_others<T: DeserializeOwned>(
        self,
        target: impl Fn(&str) -> String,
    ) -> BTreeMap<String, Result<T, String>> {
        let asked = self.admin.other_nodes().into_iter().map(|node| {
            let target = target(&node);
            async move {
                let answer = self.get(&node, target, ALL_TIME_MAX).await;
                (node, answer)
            }
        });
        join_all(asked).await.into_iter().collect()
    }
}

fn refusal(reply: &AdminReply) -> String {
    let said = match serde_json::from_slice::<ErrorBody>(&reply.body) {
        Ok(body) => body.message,
        Err(_) => String::from_utf8_lossy(&reply.body).into_owned(),
    };
    format!("it answers {}: {said}", reply.status)
}
