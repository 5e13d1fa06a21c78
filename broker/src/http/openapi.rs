//! The description of all calls, made from the code that serves them, and a page to read it.
//!
//! Every route is registered together with its description. What all calls have in common is added here: the error body,
//! tokens, and the key that keeps a change from being done twice. The page is three small files of ours and asks nobody
//! but the node.

use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Admin;
use super::change::Plan;
use super::error::ErrorBody;

const PAGE: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const STYLE: &str = include_str!("page/page.css");
/// The page runs and asks for nothing that does not come from the node.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

#[derive(OpenApi)]
#[openapi(
    info(title = "Gantry", description = "Administration of a Gantry cluster. Any node takes every call."),
    components(schemas(ErrorBody, Plan))
)]
struct Base;

/// The finished description, as text.
#[derive(Clone)]
pub(super) struct Document(Arc<str>);

pub(super) fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// Adds to each call what all have in common.
pub(super) fn finish(document: &utoipa::openapi::OpenApi) -> Document {
    let mut document = serde_json::to_value(document).expect("a description is JSON");
    let name_node = |operation: &Value| operation["x-answered-by"] == "node";
    if let Some(paths) = document["paths"].as_object_mut() {
        for operation in paths.values_mut().flat_map(|path| path.as_object_mut().into_iter().flatten()) {
            let (method, operation) = operation;
            if !operation.is_object() {
                continue;
            }
            let mut parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            if name_node(operation) {
                let text = "The node that is to answer; the one that is called, if none is named";
                parameters.push(json!({ "name": "node", "in": "query", "required": false, "description": text,
                    "schema": { "type": "string" } }));
            }
            if method != "get" {
                let text = "A random word: the same call with the same word is carried out once in ten minutes";
                parameters.push(json!({ "name": "Idempotency-Key", "in": "header", "required": false,
                    "description": text,
                    "schema": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$" } }));
            }
            operation["parameters"] = Value::Array(parameters);
            operation["responses"]["default"] = json!({ "description": "Nothing was changed, and why",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } } });
        }
    }
    document["components"]["securitySchemes"] = json!({ "token": { "type": "http", "scheme": "bearer" } });
    document["security"] = json!([{ "token": [] }, {}]);
    Document(document.to_string().into())
}

/// Marks calls that any node can be named for.
pub(super) fn answered_by_node(mut router: OpenApiRouter<Arc<dyn Admin>>) -> OpenApiRouter<Arc<dyn Admin>> {
    for path in router.get_openapi_mut().paths.paths.values_mut() {
        for operation in [&mut path.get, &mut path.put, &mut path.post, &mut path.delete].into_iter().flatten() {
            let mark = utoipa::openapi::extensions::ExtensionsBuilder::new().add("x-answered-by", "node").build();
            operation.extensions.get_or_insert_default().merge(mark);
        }
    }
    router
}

pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(document))
}

/// The page and its parts.
pub(super) fn page() -> Router<Arc<dyn Admin>> {
    Router::new()
        .route("/", get(async || file("text/html; charset=utf-8", PAGE)))
        .route("/docs/page.js", get(async || file("text/javascript; charset=utf-8", SCRIPT)))
        .route("/docs/page.css", get(async || file("text/css; charset=utf-8", STYLE)))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("referrer-policy"), "no-referrer"),
    ];
    (headers, text).into_response()
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "about", responses((status = 200, body = Object)))]
async fn document(Extension(document): Extension<Document>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], document.0.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What stands in the sources as the path of a call.
    fn paths_in_sources() -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http");
        let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        for file in files.chain([format!("{dir}.rs").into()]).filter(|file| file.is_file()) {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            found.extend(code.split("path = \"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
            let own_page = file.ends_with("openapi.rs");
            assert!(own_page || !code.contains(".route("), "{}: a route without a description", file.display());
        }
        found
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = finish(&super::super::described().1);
        let text = document.0.to_string();
        let document: Value = serde_json::from_str(&text).unwrap();
        let references: BTreeSet<&str> =
            text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 10, "{references:?}");
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_route_is_described() {
        let document = finish(&super::super::described().1);
        let document: Value = serde_json::from_str(&document.0).unwrap();
        let described: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(described, paths_in_sources());
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let at = format!("{method} {path}");
                assert!(ids.insert(operation["operationId"].to_string()), "{at}: its id is another's");
                assert!(operation["summary"].is_string(), "{at}: says nothing");
                assert!(operation["responses"]["default"].is_object(), "{at}");
                let named = |name: &str| {
                    let parameters = operation["parameters"].as_array().unwrap();
                    parameters.iter().any(|parameter| parameter["name"] == name)
                };
                assert_eq!(named("Idempotency-Key"), method != "get", "{at}");
                assert_eq!(named("dry_run"), method != "get", "{at}");
                for part in path.split('{').skip(1) {
                    assert!(named(part.split('}').next().unwrap()), "{at}: {part}");
                }
            }
        }
    }
}
