//! The kubeconfig, as it is found in the wild.
//!
//! kube's own reader is strict about what is not used: a context without a cluster, or `auth-provider.config: ~` of
//! another user, breaks it (kube-rs/kube#1076), and its errors name no place. So the files are read here as plain YAML;
//! only the selected context, its cluster and its user are looked at, each fault is named with its file and its path
//! in it (`clusters[0].cluster.certificate-authority-data`), and kube gets a finished [`Config`]. kube's own `Config`
//! loader is not used either: it compares `NO_PROXY` with the address of the proxy and not with the server's.
//!
//! What counts is what kubectl does: the first of several files that has an entry wins, missing files of `KUBECONFIG`
//! are skipped, `…-data` wins over a file, relative paths start at the file they stand in (client-go
//! `tools/clientcmd/loader.go`).

mod cluster;
mod error;
mod exec;
mod fields;
mod files;
mod login;
mod pem;
mod proxy;
mod user;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::Config;
use talos_proto::clock::Clock;

pub use error::KubeconfigError;
use fields::At;
use files::{Entry, Found};
pub use login::Login;

/// How long a credential plugin may take; a person may have to confirm a login in a browser.
const PLUGIN_LIMIT: Duration = Duration::from_secs(60);

/// Where a kubeconfig is looked for.
pub struct Sources {
    /// `--kubeconfig`.
    pub explicit: Option<PathBuf>,
    /// `KUBECONFIG`.
    pub list: Option<OsString>,
    /// The folder that has `.kube/config`.
    pub home: Option<PathBuf>,
    /// The process's environment: for proxies, plugins, and whether it runs in a pod.
    pub environment: Vec<(OsString, OsString)>,
    /// How long a credential plugin may take.
    pub plugin_limit: Duration,
}

impl Sources {
    /// Those of this process.
    #[must_use]
    pub fn of_process(explicit: Option<&Path>) -> Self {
        Self {
            // CI sets variables that have no value as empty ones.
            explicit: explicit.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned),
            list: std::env::var_os("KUBECONFIG"),
            home: std::env::home_dir(),
            environment: std::env::vars_os().collect(),
            plugin_limit: PLUGIN_LIMIT,
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        let found = self.environment.iter().find(|(key, _)| key == name);
        found.and_then(|(_, value)| value.to_str()).filter(|value| !value.is_empty())
    }
}

/// The selected context, ready for a client.
pub struct Loaded {
    /// The server, who it must be, and who we are.
    pub config: Config,
    /// The files it came from, for messages.
    pub files: String,
    /// Where it came from, and as whom we log in.
    pub origin: Origin,
    /// What works but should not stay so, each with its file and path.
    pub warnings: Vec<String>,
}

/// Where a configuration came from, and as whom we log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The files, as they were read; none in a pod.
    pub files: Vec<PathBuf>,
    /// The selected context; none in a pod.
    pub context: Option<String>,
    /// How we prove who we are.
    pub login: Login,
}

/// Reads the kubeconfig and runs its credential plugin, if it has one. Nothing is dialled.
///
/// # Errors
/// [`KubeconfigError`] with the file, the path in it and what would be right; never a value that may be secret.
pub async fn load(sources: &Sources, context: Option<&str>, clock: &Clock) -> Result<Loaded, KubeconfigError> {
    let context = context.filter(|name| !name.is_empty());
    let files = match files::find(sources, context)? {
        Found::Files(files) => files,
        Found::InCluster => {
            let config = Config::incluster_env().map_err(|source| KubeconfigError::InCluster { source })?;
            let origin = Origin { login: Login::of(&config.auth_info), ..Origin::default() };
            return Ok(Loaded { config, files: "of this pod".to_owned(), origin, warnings: Vec::new() });
        }
    };
    let mut warnings = files.iter().filter_map(files::File::warning).collect();
    let selected = select(&files, context)?;
    let cluster = cluster::read(&selected.cluster, sources, &mut warnings)?;
    let (auth_info, login) = match &selected.user {
        Some(user) => user::read(user, &cluster, sources, clock, &mut warnings).await?,
        None => {
            warnings.push(selected.context.note("user", "is not set: requests are anonymous"));
            (kube::config::AuthInfo::default(), Login::default())
        }
    };
    let origin = Origin { files: files::paths(&files), context: Some(selected.name.to_owned()), login };
    let mut config = Config::new(cluster.server);
    config.root_cert = cluster.authorities;
    config.accept_invalid_certs = cluster.insecure;
    config.tls_server_name = cluster.tls_server_name;
    config.proxy_url = cluster.proxy;
    config.auth_info = auth_info;
    if let Some(namespace) = selected.context.text("namespace")? {
        config.default_namespace = namespace.to_owned();
    }
    Ok(Loaded { config, files: files::names(&files), origin, warnings })
}

struct Selected<'a> {
    name: &'a str,
    context: At<'a>,
    cluster: At<'a>,
    user: Option<At<'a>>,
}

fn select<'a>(files: &'a [files::File], asked: Option<&'a str>) -> Result<Selected<'a>, KubeconfigError> {
    let known = || files::known(files, "contexts");
    let Some(name) = asked.or_else(|| files::current_context(files)) else {
        return Err(KubeconfigError::NoContext { files: files::names(files), known: known() });
    };
    let context = files::entry(files, Entry::CONTEXT, name)?.ok_or_else(|| KubeconfigError::UnknownContext {
        files: files::names(files),
        name: name.to_owned(),
        origin: if asked.is_some() { "" } else { ", which is its current-context" },
        known: known(),
    })?;
    let wanted = |key: &str, section: &str| {
        context.fault(key, format!("is not set; name one of {section}: {}", files::known(files, section)))
    };
    let missing = |key: &str, name: &str, section: &str| {
        let known = files::known(files, section);
        context.fault(key, format!("there is no {name:?} among {section}; there is: {known}"))
    };
    let cluster = context.text("cluster")?.ok_or_else(|| wanted("cluster", "clusters"))?;
    let cluster =
        files::entry(files, Entry::CLUSTER, cluster)?.ok_or_else(|| missing("cluster", cluster, "clusters"))?;
    let user = match context.text("user")? {
        None => None,
        Some(user) => Some(files::entry(files, Entry::USER, user)?.ok_or_else(|| missing("user", user, "users"))?),
    };
    Ok(Selected { name, context, cluster, user })
}

#[cfg(test)]
mod tests;
