//! A node's pull as containerd makes one: resolve the reference with HEAD, log in as the 401 says, then fetch the
//! manifest by its digest, that of the node's platform when it is an index, and the blobs. A digest that does not match
//! is no answer.

use http::Uri;
use http::header::{LOCATION, WWW_AUTHENTICATE};
use serde_json::Value;

use super::client::{Answer, Client, basic_of};
use super::image::{ARCHITECTURES, INDEX, MANIFEST, digest};
use crate::talos::outside::PullAnswer;

/// How a node's requests call themselves.
pub const USER_AGENT: &str = "containerd/2.1.4";
/// Most redirects of one request; net/http of Go follows ten.
const MAX_HOPS: usize = 10;

/// One pull.
pub(super) struct Pull<'p> {
    pub client: &'p Client,
    /// `host:port` of the registry.
    pub host: &'p str,
    pub repository: &'p str,
    pub user: Option<(&'p str, &'p str)>,
    authorization: Option<String>,
}

impl<'p> Pull<'p> {
    pub(super) fn new(
        client: &'p Client,
        host: &'p str,
        repository: &'p str,
        user: Option<(&'p str, &'p str)>,
    ) -> Self {
        Self { client, host, repository, user, authorization: None }
    }

    /// The whole image; the digest of what `reference` names.
    pub(super) async fn run(mut self, reference: &str) -> PullAnswer {
        match self.image(reference).await {
            Ok(digest) => PullAnswer::Ok(digest),
            Err(answer) => answer,
        }
    }

    async fn image(&mut self, reference: &str) -> Result<String, PullAnswer> {
        let resolved = self.get("HEAD", &format!("manifests/{reference}")).await?;
        let top = resolved.header("docker-content-digest").ok_or(PullAnswer::Unreachable)?.to_owned();
        let mut manifest = self.content("manifests", &top).await?;
        if manifest["mediaType"] == INDEX {
            let entries = manifest["manifests"].as_array().cloned().unwrap_or_default();
            let mine = entries.iter().find(|entry| entry["platform"]["architecture"] == ARCHITECTURES[0]);
            let mine = mine.and_then(|entry| entry["digest"].as_str()).ok_or(PullAnswer::NotFound)?;
            manifest = self.content("manifests", mine).await?;
        }
        let layers = manifest["layers"].as_array().cloned().unwrap_or_default();
        for blob in std::iter::once(&manifest["config"]).chain(&layers) {
            let digest = blob["digest"].as_str().ok_or(PullAnswer::Unreachable)?;
            self.content("blobs", digest).await?;
        }
        Ok(top)
    }

    /// Manifest or blob by its digest, as JSON if it is any.
    async fn content(&mut self, kind: &str, wanted: &str) -> Result<Value, PullAnswer> {
        let answer = self.get("GET", &format!("{kind}/{wanted}")).await?;
        if digest(&answer.body) != wanted {
            return Err(PullAnswer::Unreachable);
        }
        Ok(serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    async fn get(&mut self, method: &str, what: &str) -> Result<Answer, PullAnswer> {
        let url = format!("https://{}/v2/{}/{what}", self.host, self.repository);
        let mut answer = self.send(method, &url).await?;
        if answer.status == 401 && self.authorization.is_none() {
            self.log_in(&answer).await?;
            answer = self.send(method, &url).await?;
        }
        match answer.status.as_u16() {
            200 => Ok(answer),
            401 | 403 => Err(PullAnswer::Denied),
            404 => Err(PullAnswer::NotFound),
            _ => Err(PullAnswer::Unreachable),
        }
    }

    /// The authorization is for the registry's own host: where a redirect leads elsewhere it stays behind.
    async fn send(&self, method: &str, url: &str) -> Result<Answer, PullAnswer> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_HOPS {
            let at_home = url.parse::<Uri>().is_ok_and(|uri| uri.authority().is_some_and(|it| it == self.host));
            let authorization = self.authorization.as_deref().filter(|_| at_home);
            let answer = self.ask(method, &url, authorization).await?;
            match answer.header(LOCATION.as_str()) {
                Some(next) if answer.status.is_redirection() => {
                    url = if next.starts_with('/') { format!("https://{}{next}", self.host) } else { next.to_owned() };
                }
                _ => return Ok(answer),
            }
        }
        Err(PullAnswer::Unreachable)
    }

    async fn ask(&self, method: &str, url: &str, authorization: Option<&str>) -> Result<Answer, PullAnswer> {
        let accept = format!("{MANIFEST}, {INDEX}, */*");
        let headers = [("accept", accept.as_str()), ("user-agent", USER_AGENT)];
        self.client.ask(method, url, &headers, authorization, "").await.map_err(|_| PullAnswer::Unreachable)
    }

    /// As the challenge says: with Basic, or with a token that Basic gets.
    async fn log_in(&mut self, refused: &Answer) -> Result<(), PullAnswer> {
        let challenge = refused.header(WWW_AUTHENTICATE.as_str()).ok_or(PullAnswer::Denied)?;
        let basic = self.user.map(|(user, password)| basic_of(user, password));
        if challenge.starts_with("Basic ") {
            self.authorization = basic;
            return Ok(());
        }
        let value = |key: &str| {
            let (_, rest) = challenge.split_once(&format!("{key}=\""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let (Some(realm), Some(service)) = (value("realm"), value("service")) else { return Err(PullAnswer::Denied) };
        let url =
            format!("{realm}?scope=repository%3A{}%3Apull&service={service}", self.repository.replace('/', "%2F"));
        let granted = self.ask("GET", &url, basic.as_deref()).await?;
        match granted.status.as_u16() {
            200 => {}
            401 | 403 => return Err(PullAnswer::Denied),
            _ => return Err(PullAnswer::Unreachable),
        }
        let granted: Value = serde_json::from_slice(&granted.body).unwrap_or_default();
        let token = granted["token"].as_str().ok_or(PullAnswer::Denied)?;
        self.authorization = Some(format!("Bearer {token}"));
        Ok(())
    }
}
