//! Whoever else may be at work, under another Lease than ours: the older script, or a run whose fence is left.

use super::Rollout;
use crate::exit::Exit;
use crate::fleet::Fencing;
use crate::holder::Life;
use crate::inventory::Inventory;
use crate::kube::lease::{LeaseRecord, look};
use crate::settings::LeaseName;

impl Rollout {
    /// Asked before the first write. A holder of the older script's Lease who is not known to be dead ends the run; of
    /// holders whose fences were found it is made sure that they are dead, and the next inventory goes by that.
    pub(super) async fn others_are_dead(&mut self, inventory: &Inventory) -> bool {
        let legacy = inventory.legacy.as_ref().zip(self.env.context.settings.legacy_lease.clone());
        if let Some((record, name)) = legacy
            && let Some(holder) = record.holder.clone()
        {
            let held = format!("the old script's Lease {name} is held by {holder}");
            match self.sure_life(&name, record).await {
                None => return false,
                Some(Life::Dead(why)) => self.env.progress.event("", &format!("{held}, who is dead: {why}")),
                Some(life) => {
                    let reason = format!(
                        "{held}, {life}; it counts as dead only by evidence: let that run end, or see `talos-ghcr fences` ({})",
                        record.facts("")
                    );
                    self.fail(Exit::Refused, "", reason);
                    return false;
                }
            }
        }
        let ours = &self.env.context.settings.lease;
        let fences = inventory.snapshot.nodes.iter().filter_map(|node| match &node.fencing {
            Fencing::Residue { fence, .. } => fence.lease.parse::<LeaseName>().ok().filter(|name| name != ours),
            _ => None,
        });
        let mut names: Vec<LeaseName> = Vec::new();
        for name in fences {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        for name in names {
            // One that cannot be read blocks only the nodes whose fences name it, as the next inventory will say.
            let read = look(&self.env.context.servers, &name.namespace, &name.name).await;
            if let Ok(Some(record)) = read
                && record.holder.is_some()
                && self.sure_life(&name, &record).await.is_none()
            {
                return false;
            }
        }
        true
    }

    /// `None`: the run was asked to stop meanwhile.
    async fn sure_life(&self, name: &LeaseName, record: &LeaseRecord) -> Option<Life> {
        self.env.unless_stopped(self.env.context.sure_life_of_holder(name, record)).await.ok()
    }
}
