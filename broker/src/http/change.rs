//! Calls that change something: how they are tried, and what they answer, done or only tried.
//!
//! Every one takes its query as a [`Change`], which knows `dry_run`, and answers a [`Changed`].

use axum::extract::{FromRequestParts, Query};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Json;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{ObjectBuilder, Required, Type};
use utoipa::{IntoParams, ToSchema};

use super::{AdminError, Nothing};

/// What a call that changes something has done, or would do.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Changed<T> {
    /// It was done, and this is how things are now.
    Done(T),
    /// It was a dry run.
    Planned(Plan),
}

/// The answer to a dry run: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// True.
    pub dry_run: bool,
    /// What the call would do.
    pub would: String,
    /// The same step by step, if it takes several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
}

impl<T> Changed<T> {
    pub(super) fn done(result: T) -> Json<Self> {
        Json(Self::Done(result))
    }

    pub(super) fn planned(would: String) -> Json<Self> {
        Json(Self::would(would))
    }

    /// Nothing but this sentence.
    pub(crate) fn would(would: String) -> Self {
        Self::Planned(Plan { dry_run: true, would, steps: Vec::new() })
    }

    /// Several steps, one after the other.
    pub(crate) fn would_step_by_step(steps: Vec<String>) -> Self {
        Self::Planned(Plan { dry_run: true, would: steps.join("; then "), steps })
    }
}

/// The query of a call that changes something: `dry_run`, and what else it takes.
pub(super) struct Change<Q = Nothing> {
    /// Say what would be done, and do nothing.
    pub(super) dry_run: bool,
    /// The rest.
    pub(super) query: Q,
}

impl<S: Sync, Q: DeserializeOwned> FromRequestParts<S> for Change<Q> {
    type Rejection = AdminError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AdminError> {
        let invalid = |text: String| Err(AdminError::Invalid(text));
        let (own, others): (Vec<&str>, Vec<&str>) =
            parts.uri.query().unwrap_or_default().split('&').partition(|pair| {
                *pair == DRY_RUN || pair.strip_prefix(DRY_RUN).is_some_and(|rest| rest.starts_with('='))
            });
        let dry_run = match own.as_slice() {
            [] => false,
            [one] if is_dry_run(one) => true,
            ["dry_run=false"] => false,
            [other] => return invalid(format!("the query has `{other}`; allowed are dry_run=true and dry_run=false")),
            more => return invalid(format!("the query has dry_run {} times", more.len())),
        };
        let rest: Result<Uri, _> = format!("/?{}", others.join("&")).parse();
        let Ok(rest) = rest else { return invalid("the query cannot be read".to_owned()) };
        match Query::try_from_uri(&rest) {
            Ok(Query(query)) => Ok(Self { dry_run, query }),
            Err(refused) => invalid(refused.body_text()),
        }
    }
}

const DRY_RUN: &str = "dry_run";

/// Whether a part of a query says that the call asks only what it would do.
pub(super) fn is_dry_run(pair: &str) -> bool {
    pair == "dry_run=true"
}

impl<Q: IntoParams> IntoParams for Change<Q> {
    fn into_params(parameter_in: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let mut parameters = Q::into_params(parameter_in);
        let dry_run = ParameterBuilder::new()
            .name(DRY_RUN)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some("Say what would be done, and do nothing"))
            .schema(Some(ObjectBuilder::new().schema_type(Type::Boolean)));
        parameters.push(dry_run.build());
        parameters
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct To {
        to: Option<String>,
    }

    async fn check(query: &str, expected: Result<(bool, Option<&str>), &str>) {
        let (mut parts, ()) = Request::get(format!("/x{query}")).body(()).unwrap().into_parts();
        let found = Change::<To>::from_request_parts(&mut parts, &()).await;
        match (found, expected) {
            (Ok(found), Ok((dry_run, to))) => assert_eq!((found.dry_run, found.query.to.as_deref()), (dry_run, to)),
            (Err(refused), Err(text)) => assert!(refused.to_string().contains(text), "{query}: {refused}"),
            (found, _) => panic!("{query}: {:?}", found.map(|found| (found.dry_run, found.query))),
        }
    }

    #[tokio::test]
    async fn a_dry_run_is_asked_for_in_one_way_and_anything_near_it_is_refused() {
        check("", Ok((false, None))).await;
        check("?", Ok((false, None))).await;
        check("?dry_run=true", Ok((true, None))).await;
        check("?to=n%202&dry_run=true", Ok((true, Some("n 2")))).await;
        check("?dry_run=false&to=n2", Ok((false, Some("n2")))).await;
        // What is misread as no dry run would be carried out.
        for wrong in ["?dry_run", "?dry_run=", "?dry_run=1", "?dry_run=True", "?dry_run=%74rue"] {
            check(wrong, Err("allowed are dry_run=true and dry_run=false")).await;
        }
        check("?dry_run=true&dry_run=false", Err("dry_run 2 times")).await;
        for wrong in ["?dry%5Frun=true", "?dry_run_=true", "?dryrun=true"] {
            check(wrong, Err("unknown field")).await;
        }
    }
}
