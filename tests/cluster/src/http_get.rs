//! A plain GET, for the ports of a webhook: readiness, metrics.

use anyhow::Context;
use kube::client::Body;
use kube::{Client, Config};

/// GETs an `http` or `https` address; the status code and the body. Any certificate is taken.
///
/// # Errors
/// If there is no answer.
pub async fn http_get(url: &str) -> anyhow::Result<(u16, String)> {
    let address: http::Uri = url.parse().with_context(|| format!("{url} is no address"))?;
    let path = address
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str)
        .to_owned();
    let base = http::Uri::builder()
        .scheme(address.scheme_str().unwrap_or("http"))
        .authority(
            address
                .authority()
                .with_context(|| format!("{url} names no host"))?
                .as_str(),
        )
        .path_and_query("/")
        .build()?;
    let mut config = Config::new(base);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let request = http::Request::get(path).body(Body::empty())?;
    let response = Client::try_from(config)?
        .send(request)
        .await
        .with_context(|| format!("GET {url}"))?;
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await?;
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}
