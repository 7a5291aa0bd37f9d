//! Whether the holder of another Lease is dead: the older script's, or one that a fence names.

use super::{By, Judged};
use crate::holder::Life;
use crate::inventory::Context;
use crate::kube::lease::{self, LeaseRecord};
use crate::settings::LeaseName;
use talos_proto::chain;

impl Context {
    /// Judges the holder of a Lease by evidence alone. Without a holder there is nothing to judge.
    pub async fn life_of_holder(&self, record: &LeaseRecord) -> Judged {
        let holder = record.holder.as_deref().unwrap_or_default();
        self.ci.life(holder, record.evidence.as_ref()).await
    }

    /// Whether a holder's death needs no further proof: by its process, or by its job and then by its record.
    pub fn is_sure(&self, record: &LeaseRecord, judged: &Judged) -> bool {
        judged.by == By::Process || record.holder.as_ref().is_some_and(|holder| self.ci.is_confirmed(holder))
    }

    /// As [`Context::life_of_holder`]; a death by the CI job is only told after the record has stood unchanged for some
    /// renewals, which this waits for.
    pub async fn sure_life_of_holder(&self, name: &LeaseName, record: &LeaseRecord) -> Life {
        let judged = self.life_of_holder(record).await;
        if !matches!(judged.life, Life::Dead(_)) || self.is_sure(record, &judged) {
            return judged.life;
        }
        self.talos.clock().sleep(self.settings.timing.confirm(record.duration)).await;
        match lease::look(&self.servers, &name.namespace, &name.name).await {
            Ok(Some(again)) if again.same_holding(record) => {
                self.ci.confirm(record.holder.as_deref().unwrap_or_default());
                judged.life
            }
            Ok(Some(again)) if again.holder.is_some() => {
                Life::Alive("its Lease was written while we looked".to_owned())
            }
            Ok(_) => Life::Dead("its Lease is free by now".to_owned()),
            Err(error) => Life::Unknown(format!("its Lease could not be read again: {}", chain(&error))),
        }
    }
}
