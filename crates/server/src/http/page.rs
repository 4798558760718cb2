//! Pages for browsers: the front page, which explains what this is and how to use it, and those that lead to the services of
//! tasks. They load nothing from elsewhere and run no scripts.

pub mod interactive;
pub mod login;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{Html, IntoResponse, Response};

use crate::app::{API_VERSION, Master};
use crate::error::{AppError, ErrorKind};
use crate::http::error::status_of;

/// The front page. It needs no login, and shows nothing that `/info` does not.
pub async fn front(State(master): State<Master>, headers: HeaderMap) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or("localhost:8080");
    let scheme = if master.tls { "https" } else { "http" };
    answer(render(
        &master.context.config().cluster_name,
        &format!("{scheme}://{host}"),
    ))
}

/// A page as an answer.
fn answer(page: String) -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(page)).into_response()
}

/// In the head of a page that is to be loaded again by itself.
const AGAIN: &str = "<meta http-equiv=\"refresh\" content=\"2\">\n";

/// An error, for a user at a browser.
pub(crate) fn refused(error: &AppError) -> Response {
    let hint = match &error.hint {
        Some(hint) => format!("\n<p>{}</p>", escape(hint)),
        None => String::new(),
    };
    // What listens may need a moment more, and an agent that is away comes back.
    let (again, note) = match error.kind {
        ErrorKind::Unreachable => (AGAIN, "\n<p>This page reloads by itself.</p>"),
        _ => ("", ""),
    };
    let body = format!(
        "<h1>This page cannot be shown</h1>\n<p class=\"error\" role=\"alert\">{}</p>{hint}{note}",
        escape(&error.message)
    );
    error.log();
    (status_of(error), answer(layout("det master", again, &body))).into_response()
}

/// Text for use inside HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn render(cluster_name: &str, address: &str) -> String {
    let address = escape(address);
    let cluster = match cluster_name {
        "" => String::new(),
        name => format!("<p>Cluster: <strong>{}</strong></p>\n", escape(name)),
    };
    let body = format!(
        r#"<h1>det master</h1>
<p>A deep-learning training platform: it searches hyperparameters, runs trials on the GPUs and CPUs of its agents, and
keeps their checkpoints, metrics and logs. It speaks version {API_VERSION} of the API.</p>
{cluster}<p>Address: <code>{address}</code></p>
<h2>Log in</h2>
<pre>export DET_MASTER={address}
det user login USER</pre>
<p>In this browser, for notebooks and TensorBoards: <a href="/det/login">log in</a></p>
<h2>Run the example</h2>
<p>From a checkout of the project:</p>
<pre>det experiment create examples/digits/adaptive.yaml examples/digits --follow</pre>
<p>Then look at what it did:</p>
<pre>det experiment list
det experiment describe 1
det trial logs 1</pre>
<p>How the master is doing: <a href="/health">/health</a></p>"#
    );
    layout("det master", "", &body)
}

/// A page with this title and body, both HTML; `head` is what its head has besides.
fn layout(title: &str, head: &str, body: &str) -> String {
    format!(
        r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{head}<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
pre {{ background: #f4f4f4; color: #111; padding: 0.8rem; overflow-x: auto; }}
label {{ display: block; margin: 0.8rem 0; }}
input, button {{ font: inherit; padding: 0.3rem 0.5rem; }}
.error {{ color: #b00020; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #161616; color: #eee; }} a {{ color: #8cf; }} .error {{ color: #f88; }} }}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_the_address_and_loads_nothing() {
        let page = render("", "http://localhost:8080");
        assert!(page.contains("export DET_MASTER=http://localhost:8080"));
        assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("<script"));
    }

    #[tokio::test]
    async fn an_error_is_a_page_with_its_status_and_is_only_text() {
        let response = refused(&AppError::invalid("<b>no</b>").hint("<i>try</i>"));
        assert_eq!(response.status(), axum::http::StatusCode::BAD_REQUEST);
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        let page = String::from_utf8(body.unwrap().to_vec()).unwrap();
        assert!(page.contains("&lt;b&gt;no&lt;/b&gt;") && page.contains("&lt;i&gt;try&lt;/i&gt;"));
        assert!(!page.contains("<b>") && !page.contains("<i>"));
    }

    #[test]
    fn what_comes_from_outside_is_only_text() {
        let page = render("<b>", "http://\"><script>");
        assert!(page.contains("&lt;b&gt;") && !page.contains("<script"));
    }
}
