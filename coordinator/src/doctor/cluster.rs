//! All that is asked of the cluster, as much of it at once as can be, and nothing twice.

use std::sync::Arc;

use agent::credential::Desired;
use talos_proto::clock::Clock;
use talos_proto::identity::{ADMIN, Identity};
use talos_proto::{Talos, chain};

use super::{NO_KUBECONFIG, NO_SERVER, NO_TALOS, NOT_LOOKED_AT, clock, kubernetes, managers};
use crate::ci::Ci;
use crate::fences;
use crate::gates::{self, Closed};
use crate::inventory::{Context, Inventory, Known};
use crate::kube::api_servers::ApiServers;
use crate::kube::nodes::{self, NodeView};
use crate::settings::Settings;

/// All that was seen of the cluster.
pub(super) struct Cluster {
    pub(super) kubernetes: kubernetes::Seen,
    /// The Nodes, or why there are none.
    pub(super) listed: Result<Vec<NodeView>, String>,
    /// The Nodes and the machines behind them; needs both sides.
    pub(super) inventory: Result<Inventory, String>,
    /// Whether etcd can be without one member; `None` when it was not asked.
    pub(super) etcd: Option<Result<(), Closed>>,
    pub(super) clocks: Vec<clock::Reading>,
    pub(super) managers: Result<managers::Seen, String>,
    pub(super) residue: Result<fences::Seen, String>,
}

impl Cluster {
    pub(super) async fn look(
        servers: Option<&ApiServers>,
        talos: Option<&(Identity, Talos)>,
        desired: &Desired,
        settings: &Settings,
        clock: &Clock,
    ) -> Self {
        let none = async |kubernetes: kubernetes::Seen, why: &str| Self {
            kubernetes,
            listed: Err(why.to_owned()),
            inventory: Err(why.to_owned()),
            etcd: None,
            clocks: match talos {
                Some((identity, talos)) => clock::ask_endpoints(talos, identity.has_role(ADMIN)).await,
                None => Vec::new(),
            },
            managers: Err(why.to_owned()),
            residue: Err(why.to_owned()),
        };
        let Some(servers) = servers else { return none(kubernetes::Seen::default(), NO_KUBECONFIG).await };
        let mut kubernetes = kubernetes::greet(servers, settings).await;
        if !kubernetes.answers() {
            return none(kubernetes, NO_SERVER).await;
        }
        let ci = Arc::new(Ci::from_env(clock));
        let context = talos.map(|(identity, talos)| Context {
            servers: servers.clone(),
            talos: talos.clone(),
            ci: Arc::clone(&ci),
            identity: identity.clone(),
            desired: desired.clone(),
            settings: settings.clone(),
            warnings: Vec::new(),
        });
        let (rights, inventory, pods) = futures::join!(
            kubernetes::rights(servers, settings),
            async {
                match &context {
                    Some(context) => context.inventory(&Known::default()).await.map_err(|error| chain(&error)),
                    None => Err(format!("{NOT_LOOKED_AT}: {NO_TALOS}")),
                }
            },
            managers::pods(servers),
        );
        kubernetes.rights = Some(rights);
        let listed = match &inventory {
            Ok(inventory) => Ok(inventory.snapshot.nodes.iter().map(|node| node.kube.clone()).collect()),
            Err(_) => nodes::list(servers).await.map_err(|error| chain(&error)),
        };
        let nodes: &[NodeView] = listed.as_deref().unwrap_or_default();
        let (joined, residue, etcd, mut clocks) = futures::join!(
            kubernetes::join(servers, nodes),
            async {
                let nodes = listed.clone()?;
                let seen = fences::look_beside(nodes, servers, settings.leases(), &ci).await;
                seen.map_err(|error| chain(&error))
            },
            async {
                let (context, _) = (context.as_ref()?, inventory.as_ref().ok()?);
                let plane = nodes.iter().find(|node| node.control_plane && node.talos)?;
                Some(gates::etcd(&context.talos, nodes, plane).await)
            },
            async {
                match (&context, &inventory) {
                    (Some(context), Ok(inventory)) => clock::ask(context, inventory).await,
                    (Some(_), Err(_)) => clock::untold(nodes, "no machine could be joined with its Node"),
                    (None, _) => clock::untold(nodes, NO_TALOS),
                }
            },
        );
        kubernetes.take(joined);
        clock::by_servers(&mut clocks, &kubernetes, nodes);
        let managers = match &listed {
            Ok(nodes) => pods.map(|pods| managers::seen(nodes, &pods)),
            Err(why) => Err(why.clone()),
        };
        Self { kubernetes, listed, inventory, etcd, clocks, managers, residue }
    }

    pub(super) fn nodes(&self) -> &[NodeView] {
        self.listed.as_deref().unwrap_or_default()
    }

    /// Why the cluster's objects could not be looked at, if none could; what is wrong with the Nodes is said once.
    pub(super) fn without(&self) -> Option<&'static str> {
        let why = self.listed.as_ref().err()?;
        let elsewhere = [NO_SERVER, NO_KUBECONFIG].into_iter().find(|known| known == why);
        Some(elsewhere.unwrap_or("the Nodes cannot be listed"))
    }
}
