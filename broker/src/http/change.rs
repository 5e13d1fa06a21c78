//! Calls that change something: what they answer, done or only tried.

use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

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
}

/// The query of a change that takes nothing else.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DryRun {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    pub(super) dry_run: bool,
}

impl<T> Changed<T> {
    pub(super) fn done(result: T) -> Json<Self> {
        Json(Self::Done(result))
    }

    pub(super) fn planned(would: String) -> Json<Self> {
        Json(Self::Planned(Plan { dry_run: true, would }))
    }
}
