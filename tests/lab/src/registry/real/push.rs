//! What the owner of the real registry does there: pushes images over its API.

use std::io;

use http::Request;
use http::header::{AUTHORIZATION, HeaderValue};

use super::{Auth, OWNER, Real, RealError};
use crate::net::Body;
use crate::registry::client::{Answer, basic_of};
use crate::registry::image::{Parts, digest};
use crate::registry::tokens::Access;

impl Real {
    /// What its owner says to be let in.
    fn owner(&self, repository: &str) -> String {
        match self.auth {
            Auth::Token => {
                let access = Access { repository: repository.to_owned(), actions: &["pull", "push"] };
                format!("Bearer {}", self.token(OWNER, &[access], false))
            }
            Auth::Basic => basic_of(OWNER, &self.owner_password),
        }
    }

    /// The same with the authorization of its owner in the place of any other.
    pub(in crate::registry) async fn forward_as_owner(
        &self,
        mut request: Request<Body>,
        repository: &str,
    ) -> io::Result<http::Response<Body>> {
        let value = HeaderValue::from_str(&self.owner(repository)).map_err(io::Error::other)?;
        request.headers_mut().insert(AUTHORIZATION, value);
        self.forward(request).await
    }

    /// Pushes an image over the registry's API: blobs, manifests, and what the tag names.
    pub(in crate::registry) async fn push(&self, repository: &str, tag: &str, parts: &Parts) -> Result<(), RealError> {
        for blob in &parts.blobs {
            let upload = self.ask("POST", &format!("/v2/{repository}/blobs/uploads/"), None, "", repository).await?;
            let location = upload.header("location").unwrap_or_default().to_owned();
            let target = format!("{location}&digest={}", digest(blob.as_bytes()));
            self.ask("PUT", &target, Some("application/octet-stream"), blob, repository).await?;
        }
        let platforms = parts.platforms.iter().map(|manifest| (manifest.digest.as_str(), manifest));
        for (reference, manifest) in platforms.chain([(tag, &parts.top)]) {
            let target = format!("/v2/{repository}/manifests/{reference}");
            self.ask("PUT", &target, Some(manifest.media_type), &manifest.text, repository).await?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        method: &str,
        target: &str,
        media_type: Option<&str>,
        body: &str,
        repository: &str,
    ) -> Result<Answer, RealError> {
        let what = format!("{method} {}", target.split('?').next().unwrap_or_default());
        let headers: Vec<_> = media_type.map(|media_type| ("content-type", media_type)).into_iter().collect();
        let url = format!("http://{}{target}", self.inner);
        let answer = self.client.ask(method, &url, &headers, Some(&self.owner(repository)), body).await;
        let answer = answer.map_err(|error| RealError::Ask(what.clone(), error))?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        Err(RealError::Refused { what, status: answer.status.as_u16(), body })
    }
}
