//! The etcd cluster of the control planes.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use talos_proto::proto::machine::{EtcdMember, EtcdMemberAlarm, EtcdMemberStatus, etcd_member_alarm::AlarmType};

/// The members and who leads.
#[derive(Default)]
pub(crate) struct Etcd {
    members: BTreeMap<String, Member>,
    leader: Option<String>,
    term: u64,
    index: u64,
    alarms: Vec<(u64, AlarmType)>,
}

struct Member {
    id: u64,
    address: String,
    runs: bool,
}

impl Etcd {
    pub fn join(&mut self, name: &str, address: &str) {
        let mut id = [0; 8];
        id.copy_from_slice(&Sha256::digest(format!("etcd member {name} {address}"))[..8]);
        let member = Member { id: u64::from_be_bytes(id), address: address.to_owned(), runs: false };
        self.members.insert(name.to_owned(), member);
    }

    /// A member starts or stops; the leader changes when it must (in real clusters within 2 s, point 23).
    pub fn set_running(&mut self, name: &str, runs: bool) {
        if let Some(member) = self.members.get_mut(name) {
            member.runs = runs;
        }
        self.index += 1;
        let leader_runs = self.leader.as_ref().is_some_and(|leader| self.members[leader].runs);
        if !self.has_quorum() {
            self.leader = None;
        } else if !leader_runs {
            self.leader = self.members.iter().find(|(_, member)| member.runs).map(|(name, _)| name.clone());
            self.term += 1;
        }
    }

    pub fn has_quorum(&self) -> bool {
        self.members.values().filter(|member| member.runs).count() * 2 > self.members.len()
    }

    pub fn runs(&self, name: &str) -> bool {
        self.members.get(name).is_some_and(|member| member.runs)
    }

    pub fn leader(&self) -> Option<&str> {
        self.leader.as_deref()
    }

    pub fn set_leader(&mut self, name: &str) {
        if self.runs(name) {
            self.leader = Some(name.to_owned());
            self.term += 1;
        }
    }

    pub fn id(&self, name: &str) -> u64 {
        self.members.get(name).map_or(0, |member| member.id)
    }

    pub fn set_alarm(&mut self, name: &str, alarm: Option<AlarmType>) {
        let id = self.id(name);
        match alarm {
            Some(alarm) => self.alarms.push((id, alarm)),
            None => self.alarms.retain(|(member, _)| *member != id),
        }
    }

    /// A dead member is in the list like any other (talos-captures point 18).
    pub fn list(&self) -> Vec<EtcdMember> {
        let mut members: Vec<_> = self
            .members
            .iter()
            .map(|(name, member)| EtcdMember {
                id: member.id,
                hostname: name.clone(),
                peer_urls: vec![format!("https://{}:2380", member.address)],
                client_urls: vec![format!("https://{}:2379", member.address)],
                is_learner: false,
            })
            .collect();
        members.sort_by_key(|member| member.id);
        members
    }

    pub fn alarms(&self) -> Vec<EtcdMemberAlarm> {
        let alarm = |(id, kind): &(u64, AlarmType)| EtcdMemberAlarm { member_id: *id, alarm: (*kind).into() };
        self.alarms.iter().map(alarm).collect()
    }

    /// The status of one member as itself sees it: without a quorum no leader and an error, with an alarm the alarms
    /// of all members as texts with decimal ids (etcd.jsonl).
    pub fn status(&mut self, name: &str) -> EtcdMemberStatus {
        self.index += 1;
        let mut errors: Vec<_> =
            self.alarms.iter().map(|(id, alarm)| format!("memberID:{id} alarm:{} ", alarm.as_str_name())).collect();
        if self.leader.is_none() {
            errors.push("etcdserver: no leader".to_owned());
        }
        EtcdMemberStatus {
            protocol_version: "3.6.8".to_owned(),
            storage_version: "3.6.0".to_owned(),
            db_size: 1_724_416,
            db_size_in_use: 1_712_128,
            leader: self.leader.as_ref().map_or(0, |leader| self.id(leader)),
            raft_index: self.index,
            raft_term: self.term,
            raft_applied_index: self.index,
            errors,
            is_learner: false,
            member_id: self.id(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_follows_the_quorum() {
        let mut etcd = Etcd::default();
        for (name, address) in [("a", "1"), ("b", "2"), ("c", "3")] {
            etcd.join(name, address);
        }
        for name in ["a", "b", "c"] {
            etcd.set_running(name, true);
        }
        assert_eq!(etcd.leader(), Some("a"));
        let term = etcd.status("b").raft_term;
        etcd.set_running("a", false);
        assert_eq!(etcd.leader(), Some("b"));
        assert_eq!(etcd.status("b").raft_term, term + 1);
        assert_eq!(etcd.list().len(), 3);
        etcd.set_running("c", false);
        let status = etcd.status("b");
        assert_eq!((status.leader, status.errors), (0, vec!["etcdserver: no leader".to_owned()]));
        etcd.set_running("a", true);
        etcd.set_alarm("c", Some(AlarmType::Nospace));
        assert_eq!(etcd.status("a").errors, [format!("memberID:{} alarm:NOSPACE ", etcd.id("c"))]);
    }
}
