//! Where a holder's job is asked for, and whether the token may go there. Pure.

use http::Uri;
use secrecy::SecretString;

use crate::holder::{Evidence, run_of};

const GITHUB: &str = "https://github.com";
const GITHUB_API: &str = "https://api.github.com";

/// What our own environment says of GitHub.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) token: Option<SecretString>,
    server: Option<String>,
    api: Option<String>,
    repository: Option<String>,
}

/// A job to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// `https://host[:port][/path]`, without a slash at the end.
    pub(super) api: String,
    /// `owner/name`.
    pub(super) repository: String,
    pub(super) run: u64,
    pub(super) attempt: u32,
    /// The key of the job in its workflow; the API shows only the name.
    pub(super) job: Option<String>,
    pub(super) runner: Option<String>,
}

impl Environment {
    /// Reads it with the names that GitHub Actions and its command line use.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).map(|it| it.trim().to_owned()).filter(|it| !it.is_empty());
        Self {
            token: variable("GH_TOKEN").or_else(|| variable("GITHUB_TOKEN")).map(SecretString::from),
            server: variable("GITHUB_SERVER_URL"),
            api: variable("GITHUB_API_URL"),
            repository: variable("GITHUB_REPOSITORY"),
        }
    }

    /// Where a holder's job is asked for: `None` when it names no run.
    ///
    /// # Errors
    /// Why it is not asked for.
    pub(super) fn place(&self, holder: &str, evidence: Option<&Evidence>) -> Result<Option<Place>, String> {
        let evidence = evidence.filter(|evidence| evidence.run.is_some());
        let (run, attempt) = match evidence {
            Some(Evidence { run: Some(run), attempt: Some(attempt), .. }) => match (run.parse(), attempt.parse()) {
                (Ok(run), Ok(attempt)) => (run, attempt),
                _ => return Err("its evidence names no CI run that can be asked for".to_owned()),
            },
            Some(_) => return Err("its evidence names no attempt of its CI run".to_owned()),
            None => match run_of(holder) {
                Some(run) => run,
                None => return Ok(None),
            },
        };
        if self.token.is_none() {
            return Err("there is no GH_TOKEN or GITHUB_TOKEN to ask GitHub for its job with".to_owned());
        }
        let (server, api) = self.server()?;
        let theirs = evidence.and_then(|evidence| evidence.server.as_deref());
        if theirs.is_some_and(|theirs| !same_server(theirs, server)) {
            return Err(format!("its job is of another server than {server}, which is not shown our token"));
        }
        let repository = evidence.and_then(|evidence| evidence.repository.as_ref()).or(self.repository.as_ref());
        let Some(repository) = repository else {
            return Err("it names no repository, and GITHUB_REPOSITORY is not set".to_owned());
        };
        if !is_repository(repository) {
            return Err("what it names is no repository".to_owned());
        }
        Ok(Some(Place {
            api,
            repository: repository.clone(),
            run,
            attempt,
            job: evidence.and_then(|evidence| evidence.job.clone()),
            runner: evidence.and_then(|evidence| evidence.runner.clone()),
        }))
    }

    /// The server that we trust and its API. Both are set in a job; elsewhere none means github.com.
    fn server(&self) -> Result<(&str, String), String> {
        let server = self.server.as_deref().unwrap_or(GITHUB);
        let api = match self.api.as_deref() {
            Some(_) if self.server.is_none() => {
                return Err("GITHUB_API_URL is set without GITHUB_SERVER_URL".to_owned());
            }
            Some(api) => api,
            None if same_server(server, GITHUB) => GITHUB_API,
            None => return Err("GITHUB_SERVER_URL is set without GITHUB_API_URL".to_owned()),
        };
        let api = api.trim_end_matches('/');
        let fine = api.parse::<Uri>().is_ok_and(|uri| {
            let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
            uri.scheme_str() == Some("https") && plain && uri.query().is_none()
        });
        if !fine {
            return Err("GITHUB_API_URL is no https address: our token is not sent there".to_owned());
        }
        Ok((server, api.to_owned()))
    }
}

fn same_server(one: &str, other: &str) -> bool {
    one.trim_end_matches('/').eq_ignore_ascii_case(other.trim_end_matches('/'))
}

/// `owner/name`, of nothing that means something in a URL.
fn is_repository(text: &str) -> bool {
    let fine = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
    };
    text.split_once('/').is_some_and(|(owner, name)| fine(owner) && fine(name))
}
